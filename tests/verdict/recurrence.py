"""Check by brute force whether a recurrence rule has an occurrence on a day.

A day is checked against each part of the rule. ``BYSETPOS`` also needs a check of all days of its
month or year. The module shares no code with the package or with python-dateutil.
"""

from __future__ import annotations

import re
from calendar import isleap, monthrange
from datetime import date, timedelta

DAY = timedelta(days=1)
WEEKDAYS = ["MO", "TU", "WE", "TH", "FR", "SA", "SU"]


class Rule:
    """The text after ``@rrule``. Raises ``ValueError`` for what it can't judge."""

    def __init__(self, text: str) -> None:
        start, _, rule = text.upper().partition(" ")
        day, _, clock = start.partition("T")
        self.start = date.fromisoformat(day)
        self.parts = dict(
            part.split("=") for part in rule.removeprefix("RRULE:").split(";") if part
        )
        hour, minute, second = (*map(int, filter(None, clock.split(":"))), 0, 0, 0)[:3]
        start_time = {"BYHOUR": hour, "BYMINUTE": minute, "BYSECOND": second}
        self.times = {name: set(self._list(name)) or {start_time[name]} for name in start_time}
        if "BYWEEKNO" in self.parts:
            raise ValueError("BYWEEKNO")

    def falls_on(self, day: date) -> bool:
        if day < self.start or not self._in_phase(day) or not self._fits(day):
            return False
        positions = self._list("BYSETPOS")
        if not positions:
            return True
        days = [each for each in self._period_of(day) if self._fits(each)]
        index = days.index(day)
        return index + 1 in positions or index - len(days) in positions

    def _list(self, name: str) -> list[int]:
        return [int(item) for item in self.parts.get(name, "").split(",") if item]

    def _interval(self) -> int:
        return int(self.parts.get("INTERVAL", "1"))

    def _in_phase(self, day: date) -> bool:
        kind = self.parts["FREQ"]
        if kind == "YEARLY":
            passed = day.year - self.start.year
        elif kind == "MONTHLY":
            passed = (day.year - self.start.year) * 12 + day.month - self.start.month
        elif kind == "WEEKLY":
            first = WEEKDAYS.index(self.parts.get("WKST", "MO"))
            week = self.start - (self.start.weekday() - first) % 7 * DAY
            passed = (day - week) // (7 * DAY)
        else:
            passed = (day - self.start).days
        return passed % self._interval() == 0

    def _period_of(self, day: date) -> list[date]:
        first = day.replace(day=1)
        if self.parts["FREQ"] == "YEARLY":
            first = first.replace(month=1)
        found = []
        while first.year == day.year and (
            self.parts["FREQ"] == "YEARLY" or first.month == day.month
        ):
            found.append(first)
            first += DAY
        return found

    def _fits(self, day: date) -> bool:
        parts, kind = self.parts, self.parts["FREQ"]
        by_day = any(each in parts for each in ("BYDAY", "BYMONTHDAY", "BYYEARDAY"))
        if not by_day and kind in ("MONTHLY", "YEARLY") and day.day != self.start.day:
            return False
        if not by_day and kind == "WEEKLY" and day.weekday() != self.start.weekday():
            return False
        months = self._list("BYMONTH")
        if not by_day and kind == "YEARLY" and not months:
            months = [self.start.month]
        month_length = monthrange(day.year, day.month)[1]
        year_length = 366 if isleap(day.year) else 365
        in_year = (day - date(day.year, 1, 1)).days
        limits = [
            (months, {day.month}),
            (self._list("BYMONTHDAY"), {day.day, day.day - month_length - 1}),
            (self._list("BYYEARDAY"), {in_year + 1, in_year - year_length}),
        ]
        if any(allowed and not values.intersection(allowed) for allowed, values in limits):
            return False
        return "BYDAY" not in parts or any(
            self._is_weekday(day, item) for item in parts["BYDAY"].split(",")
        )

    def _is_weekday(self, day: date, item: str) -> bool:
        found = re.fullmatch(r"([+-]?\d+)?(\w\w)", item)
        assert found is not None
        if day.weekday() != WEEKDAYS.index(found[2]):
            return False
        if not found[1]:
            return True
        in_month = self.parts["FREQ"] == "MONTHLY" or "BYMONTH" in self.parts
        first, last = day.replace(day=1), day.replace(day=monthrange(day.year, day.month)[1])
        if not in_month:
            first, last = date(day.year, 1, 1), date(day.year, 12, 31)
        return int(found[1]) in ((day - first).days // 7 + 1, -((last - day).days // 7) - 1)
