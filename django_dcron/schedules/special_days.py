"""Match the days that a number can't name: ``L``, ``LW``, ``nW``, ``WD#n``, ``nL``, ``n#k``.

``L``, ``L-n``, ``LW`` and ``nW`` are days of month; ``nL`` and ``n#k`` are days of week. The
meanings are Quartz's:

- ``nW`` is the weekday (Monday to Friday) nearest to day n in the same month. A month without day n
  has none.
- ``LW`` is the month's last weekday (Monday to Friday).

``WD#n`` and ``WD#L-n`` are working days counted from the start or the end of the month. A working
day is a day that the job's calendar doesn't exclude; without a calendar, Monday to Friday. A month
with fewer working days has none.

Days of week are numbered from 0 (Sunday) to 6.
"""

from calendar import monthrange
from collections.abc import Hashable
from dataclasses import dataclass
from datetime import date
from functools import lru_cache
from typing import Protocol

_SATURDAY, _SUNDAY = 5, 6  # as in date.weekday()


@dataclass(frozen=True, slots=True)
class LastDay:
    """``L`` and ``L-n``: n days before the month's last day."""

    before: int = 0

    def matches(self, day: date) -> bool:
        return day.day == monthrange(day.year, day.month)[1] - self.before

    def window(self) -> range:
        """Return all days of month on which it can fall."""
        return range(max(1, 28 - self.before), 32 - self.before)


@dataclass(frozen=True, slots=True)
class LastWeekday:
    """``LW``: the month's last day from Monday to Friday."""

    def matches(self, day: date) -> bool:
        last = monthrange(day.year, day.month)[1]
        weekday = day.replace(day=last).weekday()
        return day.day == last - max(0, weekday - 4)

    def window(self) -> range:
        return range(26, 32)


@dataclass(frozen=True, slots=True)
class NearestWeekday:
    """``nW``: the day from Monday to Friday nearest to day n, in the same month."""

    day: int

    def matches(self, day: date) -> bool:
        last = monthrange(day.year, day.month)[1]
        if self.day > last:
            return False
        weekday = day.replace(day=self.day).weekday()
        shift = 0
        if weekday == _SATURDAY:
            shift = -1 if self.day > 1 else 2
        elif weekday == _SUNDAY:
            shift = 1 if self.day < last else -2
        return day.day == self.day + shift

    def window(self) -> range:
        return range(max(1, self.day - 2), min(31, self.day + 2) + 1)


@dataclass(frozen=True, slots=True)
class NthWeekday:
    """``n#k``: the month's k-th weekday n; ``nL`` (``nth`` is None): its last one."""

    weekday: int
    nth: int | None

    def matches(self, day: date) -> bool:
        if day.isoweekday() % 7 != self.weekday:
            return False
        if self.nth is None:
            return day.day + 7 > monthrange(day.year, day.month)[1]
        return (day.day - 1) // 7 + 1 == self.nth

    def croniter(self) -> str:
        """Return croniter's notation for this day."""
        return f"l{self.weekday}" if self.nth is None else f"{self.weekday}#{self.nth}"


class WorkingDays(Hashable, Protocol):
    """The part of a calendar that determines the working days."""

    def excludes(self, day: date) -> bool: ...


@dataclass(frozen=True, slots=True)
class NthWorkingDay:
    """``WD#n`` (``nth`` is n), ``WD#L`` (-1) and ``WD#L-n`` (-1 - n)."""

    nth: int
    calendar: WorkingDays | None = None

    def matches(self, day: date) -> bool:
        days = _working_days(self.calendar, day.year, day.month)
        index = self.nth - 1 if self.nth > 0 else len(days) + self.nth
        return 0 <= index < len(days) and days[index] == day.day

    def window(self) -> range:
        return range(1, 32)


@lru_cache(maxsize=1024)
def _working_days(calendar: WorkingDays | None, year: int, month: int) -> tuple[int, ...]:
    """Return the working days of the month."""
    days = (date(year, month, number) for number in range(1, monthrange(year, month)[1] + 1))
    if calendar is None:
        return tuple(day.day for day in days if day.weekday() < _SATURDAY)
    return tuple(day.day for day in days if not calendar.excludes(day))


MonthSpecial = LastDay | LastWeekday | NearestWeekday | NthWorkingDay
Special = MonthSpecial | NthWeekday
