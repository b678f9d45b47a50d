"""The days of a recurrence rule of RFC 5545, such as ``FREQ=WEEKLY;INTERVAL=2;BYDAY=FR``.

python-dateutil lists the days. A rule compiles to a ``Cron`` whose days are a ``Recurrence`` (see
``recurrence_text``). Times of day, clock changes, calendars and the planned load therefore work as
for cron schedules.

Invariants:

- Nothing depends on the time at which the rule is read.
- dateutil lists one calendar year at a time, so a search never walks from the start to the present.
- ``INTERVAL`` counts days, weeks, months or years from the one that contains the start.
- The start itself is a day of the rule only if it matches.
"""

# ruff: noqa: DTZ001 -- dateutil gets naive local times

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date, datetime
from functools import lru_cache
from itertools import chain, groupby
from operator import attrgetter

from dateutil.rrule import YEARLY, rrule, weekday

from django_dcron.schedules.days import FIRST_DAY, HORIZON, LAST_DAY

_YEARS_TO_SKIP = 10_000
"""An interval of years with which dateutil lists only the first year, even if no day matches."""


@dataclass(frozen=True)
class Recurrence:
    """The days of a rule: a set that can be searched in both directions."""

    text: str
    start: date
    frequency: str
    interval: int
    months: tuple[int, ...]
    month_days: tuple[int, ...]
    """Negative days count from the end of the month."""
    year_days: tuple[int, ...]
    weekdays: tuple[tuple[int, int | None], ...]
    """Weekdays (Monday is 0), each with the number in the month or year, or None for all."""
    positions: tuple[int, ...]
    week_start: int

    def on(self, day: date) -> bool:
        days = _days_of_year(self, day.year)
        index = bisect_left(days, day)
        return index < len(days) and days[index] == day

    def at_or_after(self, day: date) -> date | None:
        """Return the first day of the rule from ``day`` on, or None past the horizon."""
        last = min(day, LAST_DAY - HORIZON) + HORIZON
        for year in range(max(day, self.start).year, last.year + 1):
            days = _days_of_year(self, year)
            index = bisect_left(days, day)
            if index < len(days):
                return days[index] if days[index] <= last else None
        return None

    def at_or_before(self, day: date) -> date | None:
        """Return the last day of the rule up to ``day``, or None past the horizon."""
        first = max(max(day, FIRST_DAY + HORIZON) - HORIZON, self.start)
        for year in range(day.year, first.year - 1, -1):
            days = _days_of_year(self, year)
            index = bisect_right(days, day)
            if index:
                return days[index - 1] if days[index - 1] >= first else None
        return None

    def in_phase(self, day: date) -> bool:
        """Return whether ``interval`` selects the day, week, month or year of ``day``."""
        return (self._period(day) - self._period(self.start)) % self.interval == 0

    @property
    def as_fields(self) -> tuple[str, str, str]:
        """The day of month, month and day of week as cron fields, to describe the days.

        All are ``*`` if the fields can't express the days of the rule, and for a yearly rule
        without months, because "every year on Monday" would be misleading.
        """
        months = ",".join(map(str, self.months)) or "*"
        in_whole_year = self.frequency == "YEARLY" and not self.months
        unusual = self.positions or self.year_days or in_whole_year
        if unusual or (self.weekdays and self.month_days):
            return "*", "*", "*"
        if self.month_days:
            days = (str(day) if day > 0 else f"L-{-1 - day}" for day in self.month_days)
            return ",".join(days).replace("L-0", "L"), months, "*"
        items = []
        for day, number in self.weekdays:
            suffix = _number_suffix(number)
            if suffix is None:
                return "*", "*", "*"
            items.append(f"{(day + 1) % 7}{suffix}")  # cron counts from Sunday
        return "*", months, ",".join(items)

    @property
    def is_expressed(self) -> bool:
        """Whether ``as_fields`` expresses the days."""
        return any(field != "*" for field in self.as_fields)

    def _period(self, day: date) -> int:
        """Return the number of the day, week, month or year."""
        if self.frequency == "YEARLY":
            return day.year
        if self.frequency == "MONTHLY":
            return day.year * 12 + day.month
        if self.frequency == "WEEKLY":
            return (day.toordinal() - 1 - self.week_start) // 7  # ordinal 1 is a Monday
        return day.toordinal()


def _number_suffix(number: int | None) -> str | None:
    """Return how a cron field writes the number of a weekday in the month; None if it can't."""
    if number is None:
        return ""
    if number == -1:
        return "L"
    return f"#{number}" if 1 <= number <= 5 else None


@lru_cache(maxsize=1024)
def _days_of_year(rule: Recurrence, year: int) -> tuple[date, ...]:
    """Return the days of the rule in a year, sorted."""
    if not rule.start.year <= year <= LAST_DAY.year:
        return ()
    if rule.frequency == "YEARLY" and (year - rule.start.year) % rule.interval:
        return ()
    monthly = rule.frequency == "MONTHLY"
    listed = rrule(
        YEARLY,
        dtstart=datetime(year, 1, 1),
        interval=_YEARS_TO_SKIP,
        wkst=rule.week_start,
        # With months, dateutil counts a numbered weekday in its month.
        bymonth=rule.months or (range(1, 13) if monthly else None),
        bymonthday=rule.month_days or None,
        byyearday=rule.year_days or None,
        byweekday=[weekday(*pair) for pair in rule.weekdays] or None,
        bysetpos=None if monthly else rule.positions or None,
    )
    days: Iterable[date] = (each.date() for each in listed)
    if monthly and rule.positions:
        months = groupby(days, key=attrgetter("month"))
        days = chain.from_iterable(_at_positions([*month], rule.positions) for _, month in months)
    return tuple(day for day in days if day >= rule.start and rule.in_phase(day))


def _at_positions(days: list[date], positions: tuple[int, ...]) -> list[date]:
    """Return the days at these positions, counted from 1, or from -1 at the end."""
    indexes = {position - 1 if position > 0 else len(days) + position for position in positions}
    return [day for index, day in enumerate(days) if index in indexes]
