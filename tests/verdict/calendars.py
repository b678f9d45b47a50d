"""Check by brute force whether a calendar excludes a local time.

Each entry of the text is checked on its own. The module shares no code with the package. It raises
``ValueError`` for public holidays.

A date is excluded if all of its minutes are.

A dropped occurrence is judged by its own local time and by the times in its fields: the two differ
if the clocks skip the time in the fields. A moved occurrence is judged by its own local time.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import date, datetime, time, timedelta

DAY, MINUTE = timedelta(days=1), timedelta(minutes=1)
WEEKDAYS = ["MON", "TUE", "WED", "THU", "FRI", "SAT", "SUN"]


class Calendar:
    def __init__(self, text: str) -> None:
        self.only: list[Callable[[datetime], bool]] = []
        self.excluded: list[Callable[[datetime], bool]] = []
        self._dates: dict[date, bool] = {}
        lines = (line.partition("#")[0] for line in text.upper().splitlines())
        for entry in (" ".join(item.split()) for line in lines for item in line.split(",")):
            if entry:
                plain = entry.removeprefix("ONLY ")
                (self.excluded if plain == entry else self.only).append(_entry(plain))

    def excludes(self, local: datetime) -> bool:
        outside = bool(self.only) and not any(entry(local) for entry in self.only)
        return outside or any(entry(local) for entry in self.excluded)

    def excludes_date(self, day: date) -> bool:
        if day not in self._dates:
            midnight = datetime.combine(day, time.min)
            minutes = (midnight + number * MINUTE for number in range(DAY // MINUTE))
            self._dates[day] = all(map(self.excludes, minutes))
        return self._dates[day]


def _entry(text: str) -> Callable[[datetime], bool]:
    found = re.fullmatch(r"(.*?) ?((\d\d):(\d\d) ?- ?(\d\d):(\d\d))?", text)
    assert found is not None
    on = _days(found[1]) if found[1] else (lambda day: True)
    if not found[2]:
        return lambda local: on(local.date())
    first, last = (int(found[n]) * 60 + int(found[n + 1]) for n in (3, 5))

    def has(local: datetime) -> bool:
        minute = local.hour * 60 + local.minute
        if first < last:
            return on(local.date()) and first <= minute < last
        return (on(local.date()) and minute >= first) or (on(local.date() - DAY) and minute < last)

    return has


def _days(text: str) -> Callable[[date], bool]:
    if text.startswith("HOLIDAYS"):
        raise ValueError("public holidays")
    if text[:3] in WEEKDAYS:
        first, last = WEEKDAYS.index(text[:3]), WEEKDAYS.index(text[-3:])
        return lambda day: (day.weekday() - first) % 7 <= (last - first) % 7
    low, high = text.replace(" ", "").partition("..")[::2]
    if len(low) == 10:
        return lambda day: low <= day.isoformat() <= (high or low)
    last_day = high or low
    if low <= last_day:
        return lambda day: low <= day.isoformat()[5:] <= last_day
    return lambda day: not last_day < day.isoformat()[5:] < low


def with_calendar(
    occurs: Callable[[datetime], bool],
    calendar: Calendar,
    local: Callable[[datetime], datetime],
    policy: str,
    step: timedelta,
    fields: Callable[[datetime], list[datetime]] | None = None,
) -> Callable[[datetime], bool]:
    """Return a function that tells whether an instant is an occurrence under the calendar.

    ``occurs`` ignores the calendar. ``local`` returns the local time of an instant. ``step``: the
    distance between the instants to try. ``fields`` returns the times in the fields that lead to an
    occurrence; without it, they are the local time.
    """

    def excluded(instant: datetime) -> bool:
        return calendar.excludes(local(instant))

    def moved_to(instant: datetime) -> bool:
        at = instant - step
        while excluded(at):
            if occurs(at):
                return True
            at -= step
        return False

    def kept(instant: datetime) -> bool:
        if excluded(instant) or not occurs(instant):
            return False
        return fields is None or not all(map(calendar.excludes, fields(instant)))

    if policy == "skip":
        return kept
    if policy == "window_end":
        return lambda instant: not excluded(instant) and (occurs(instant) or moved_to(instant))
    raise ValueError(f"a calendar with {policy}")
