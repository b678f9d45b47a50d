"""The month grids on the page of a calendar and in the upcoming days of a job.

Invariants:

- The state of a day is recognizable without color: by a line through or below its number, or by a
  symbol. Hidden text names the state for screen readers.
- Weeks begin on the first day of the week of the active language.
"""

from __future__ import annotations

import calendar
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from functools import cached_property
from typing import Any

from django.utils.dates import WEEKDAYS, WEEKDAYS_ABBR
from django.utils.formats import date_format, get_format
from django.utils.translation import get_language
from django.utils.translation import gettext as _

from django_dcron.exceptions import InvalidCalendar
from django_dcron.models.calendar import read_entries
from django_dcron.schedules.exclusion_reasons import NO_REASONS, ExclusionReasons, reasons_on
from django_dcron.schedules.number_ranges import consecutive_ranges
from django_dcron.schedules.public_holidays import holiday_name
from django_dcron.schedules.times_of_day import ALL_TIMES, Interval


@dataclass(frozen=True, slots=True)
class MonthDay:
    number: int
    is_today: bool = False
    is_past: bool = False
    is_excluded: bool = False
    is_partly_excluded: bool = False
    is_frozen: bool = False
    label: str = ""
    """A short text below the number, such as a time."""
    notes: tuple[str, ...] = ()
    """The state of the day in words."""
    reasons: tuple[str, ...] = ()
    """The names of the holidays or entries that exclude the day or times of it."""

    @property
    def note(self) -> str:
        return "; ".join(self.notes)

    @property
    def classes(self) -> str:
        states = {
            "dcron-excluded": self.is_excluded,
            "dcron-today": self.is_today,
            "dcron-past": self.is_past,
        }
        return " ".join(name for name, is_on in states.items() if is_on)


@dataclass(frozen=True, slots=True)
class Month:
    name: str
    weeks: tuple[tuple[MonthDay | None, ...], ...]
    """The days of each week; None for days of other months."""

    @property
    def days(self) -> Iterator[MonthDay]:
        for week in self.weeks:
            yield from filter(None, week)

    @property
    def reasons(self) -> list[tuple[str, str]]:
        """Pairs of days, such as ``24-26``, and the reason that excludes them."""
        days: dict[str, list[int]] = {}
        for day in self.days:
            for reason in day.reasons:
                days.setdefault(reason, []).append(day.number)
        return [(_format_numbers(numbers), reason) for reason, numbers in days.items()]


@dataclass(frozen=True)
class MonthGrid:
    """Consecutive months. ``day_of`` returns what the grid shows for a date."""

    first: date
    """A date in the first month."""
    count: int
    day_of: Callable[[date], MonthDay]

    @cached_property
    def months(self) -> list[Month]:
        return list(self._months())

    @property
    def days(self) -> Iterator[MonthDay]:
        for month in self.months:
            yield from month.days

    @property
    def weekdays(self) -> list[tuple[Any, Any]]:
        """The short and long names of the weekdays, in the order of the active language."""
        first = _first_weekday()
        days = [(first + number) % 7 for number in range(7)]
        return [(WEEKDAYS_ABBR[day], WEEKDAYS[day]) for day in days]

    @property
    def has_excluded(self) -> bool:
        return any(day.is_excluded for day in self.days)

    @property
    def has_partly_excluded(self) -> bool:
        return any(day.is_partly_excluded for day in self.days)

    def _months(self) -> Iterator[Month]:
        grid = calendar.Calendar(_first_weekday())
        for number in range(self.count):
            years, month = divmod(self.first.month - 1 + number, 12)
            first = date(self.first.year + years, month + 1, 1)
            weeks = tuple(
                tuple(self.day_of(day) if day.month == first.month else None for day in week)
                for week in grid.monthdatescalendar(first.year, first.month)
            )
            yield Month(date_format(first, "YEAR_MONTH_FORMAT"), weeks)


def exclusion_reasons(dates: str) -> Callable[[date], ExclusionReasons]:
    """Return a function that returns why a calendar with these ``dates`` excludes a day."""
    try:
        entries = read_entries(dates)
    except InvalidCalendar:
        return lambda _day: NO_REASONS
    language = get_language() or ""
    return lambda day: reasons_on(
        day, entries, lambda country, part, on: holiday_name(country, part, on, language)
    )


def exclusion_note(excluded: Sequence[Interval], reasons: ExclusionReasons) -> str:
    """Describe the excluded times of a day, with the reasons. Empty if nothing is excluded.

    ``excluded``: intervals of whole minutes, in seconds of the day.
    """
    if not excluded:
        return ""
    what = _("excluded")
    if tuple(excluded) != ALL_TIMES:
        what = f"{what}: {_format_times(excluded)}"
    names = [
        *reasons.names,
        *([_("outside the “only” times")] if reasons.has_times_outside else []),
    ]
    return f"{what} ({', '.join(names)})" if names else what


def _format_times(intervals: Sequence[Interval]) -> str:
    minutes = ([second // 60 for second in interval] for interval in intervals)
    return ", ".join("-".join(f"{at // 60:02}:{at % 60:02}" for at in pair) for pair in minutes)


def _format_numbers(numbers: Sequence[int]) -> str:
    """Format sorted numbers; consecutive ones as a range, such as 5, 6, 24-26."""
    return ", ".join(
        f"{each[0]}-{each[-1]}" if len(each) > 2 else ", ".join(map(str, each))
        for each in consecutive_ranges(numbers)
    )


def _first_weekday() -> int:
    """Return the first day of the week; Monday is 0, as in Python. In Django, Sunday is 0."""
    return (int(get_format("FIRST_DAY_OF_WEEK")) - 1) % 7
