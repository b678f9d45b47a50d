"""Parse calendars: text that names the dates a schedule must avoid.

A calendar has one entry per line, or several separated by commas. Text after a ``#`` is a comment.

- ``2026-12-24``: one date; ``2026-12-24..2027-01-01``: all dates of the range, inclusive.
- ``12-25``: this date every year; ``12-24..01-01``: this range every year, inclusive.
- ``SAT``, ``MON-FRI``: weekdays.
- ``holidays DE``, ``holidays DE-BY``: the public holidays of a country or a subdivision.

Invariants:

- A calendar is a value. Two calendars with the same text are equal.
- Whether a calendar excludes a date depends only on its text, the date and ``holidays_in``.
- This module contains no holiday data; ``holidays_in`` provides it.
- The search for a date that isn't excluded covers at most ``HORIZON`` in either direction, and at
  most ``MAX_HOLIDAYS`` countries and subdivisions.
- Calendar text raises no error but ``InvalidCalendar``, which gives the line, the value and what is
  allowed.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import date
from enum import StrEnum

from django_dcron.exceptions import InvalidCalendar
from django_dcron.schedules.days import DAY, FIRST_DAY, HORIZON, LAST_DAY
from django_dcron.utils.messages import TOO_LONG
from django_dcron.utils.messages import gettext_noop as _

MAX_LENGTH = 10_000
MAX_HOLIDAYS = 20
"""The maximum number of countries and subdivisions.

A search looks up the holidays of each in each year up to ``HORIZON``. A year takes a millisecond.
"""
WEEKDAYS = ("MON", "TUE", "WED", "THU", "FRI", "SAT", "SUN")
LEAP_YEAR = 2000

HolidaysOf = Callable[[int], frozenset[date]]
"""Returns the public holidays of one country or subdivision in a given year."""
HolidaysIn = Callable[[str, str], HolidaysOf]
"""Returns the ``HolidaysOf`` for a country (``DE``) and a subdivision (``BY``, or empty).

Raises ``InvalidCalendar`` if the country or subdivision is unknown.
"""


class ExclusionPolicy(StrEnum):
    """What happens to an occurrence on an excluded date."""

    SKIP = "skip"
    NEXT_DAY = "next_day"
    """The occurrence moves to the same time on the next date that isn't excluded."""


@dataclass(frozen=True)
class ExcludedDates:
    text: str
    weekdays: frozenset[int] = field(compare=False, repr=False)
    """Weekday numbers as in ``date.weekday()`` (Monday is 0)."""
    yearly: frozenset[tuple[int, int]] = field(compare=False, repr=False)
    """Pairs of (month, day)."""
    ranges: tuple[tuple[date, date], ...] = field(compare=False, repr=False)
    """Sorted ranges that neither overlap nor touch."""
    holidays: tuple[HolidaysOf, ...] = field(compare=False, repr=False)

    def excludes(self, day: date) -> bool:
        return (
            day.weekday() in self.weekdays
            or (day.month, day.day) in self.yearly
            or self._range_with(day) is not None
            or any(day in of_year(day.year) for of_year in self.holidays)
        )

    def open_from(self, day: date) -> date | None:
        """Return the first date from ``day`` on that isn't excluded, None past the horizon."""
        last = min(day, LAST_DAY - HORIZON) + HORIZON
        while FIRST_DAY <= day <= last:
            if within := self._range_with(day):
                if within[1] >= last:
                    return None
                day = within[1] + DAY
            elif self.excludes(day):
                day += DAY
            else:
                return day
        return None

    def open_until(self, day: date) -> date | None:
        """Return the last date up to ``day`` that isn't excluded, None past the horizon."""
        first = max(day, FIRST_DAY + HORIZON) - HORIZON
        while first <= day <= LAST_DAY:
            if within := self._range_with(day):
                if within[0] <= first:
                    return None
                day = within[0] - DAY
            elif self.excludes(day):
                day -= DAY
            else:
                return day
        return None

    def _range_with(self, day: date) -> tuple[date, date] | None:
        number = bisect_right(self.ranges, (day, date.max)) - 1
        return self.ranges[number] if number >= 0 and day <= self.ranges[number][1] else None


_ENTRIES = (
    r"(?P<first>\d{4}-\d\d-\d\d)(?: ?\.\. ?(?P<last>\d{4}-\d\d-\d\d))?",
    r"(?P<from>\d\d-\d\d)(?: ?\.\. ?(?P<to>\d\d-\d\d))?",
    rf"(?P<weekday>{'|'.join(WEEKDAYS)})(?: ?- ?(?P<until>{'|'.join(WEEKDAYS)}))?",
    r"HOLIDAYS (?P<country>[A-Z]{2,3})(?:-(?P<part>.{1,40}))?",
)
_ENTRY = re.compile("|".join(_ENTRIES), re.IGNORECASE | re.ASCII)
_NO_ENTRY = _(
    "Line %(line)d: unknown entry %(value)s (allowed: 2026-12-24, 2026-12-24..2027-01-01, "
    "12-25, 12-24..01-01, SAT, MON-FRI, holidays DE, holidays DE-BY)"
)
_NO_DATE = _(
    "Line %(line)d: %(value)s is not a valid date (allowed: existing dates in the years "
    "1970 to 2199)"
)
_BACKWARDS = _("Line %(line)d: %(value)s ends before it begins; put the earlier date first")
_UNKNOWN_HOLIDAYS = _("Line %(line)d: %(problem)s")
_TOO_MANY_HOLIDAYS = _(
    "Line %(line)d: the calendar has holidays of more than %(most)d countries and subdivisions. "
    "Remove some of them, or enter their dates."
)
_NOTHING = _("The calendar has no dates. Enter at least one, such as 12-25.")
_EVERYTHING = _("The calendar excludes every date. Remove an entry so that some dates remain.")


def parse_calendar(text: str, holidays_in: HolidaysIn) -> ExcludedDates:
    """Parse calendar text; raises ``InvalidCalendar``."""
    if len(text) > MAX_LENGTH:
        raise InvalidCalendar(TOO_LONG, count=len(text), most=MAX_LENGTH, code="too_long")
    weekdays: set[int] = set()
    yearly: set[tuple[int, int]] = set()
    ranges: list[tuple[date, date]] = []
    holidays: dict[tuple[str, str], HolidaysOf] = {}
    for line, value in _entries(text):
        found = _ENTRY.fullmatch(value)
        if found is None:
            raise InvalidCalendar(
                _NO_ENTRY, line=line, value=f"{value!r:.80}", code="unknown_entry"
            )
        if found["first"]:
            ranges.append(_range(found["first"], found["last"], line, value))
        elif found["from"]:
            yearly.update(_days_of_year(found["from"], found["to"], line, value))
        elif found["weekday"]:
            weekdays.update(_weekdays(found["weekday"], found["until"]))
        else:
            country, part = found["country"].upper(), found["part"] or ""
            try:
                holidays[country, part.casefold()] = holidays_in(country, part)
            except InvalidCalendar as error:
                raise InvalidCalendar(
                    _UNKNOWN_HOLIDAYS, line=line, problem=error.text, code="unknown_holidays"
                ) from None
            if len(holidays) > MAX_HOLIDAYS:
                raise InvalidCalendar(
                    _TOO_MANY_HOLIDAYS, line=line, most=MAX_HOLIDAYS, code="too_many_holidays"
                )
    if not (weekdays or yearly or ranges or holidays):
        raise InvalidCalendar(_NOTHING, code="no_dates")
    if len(weekdays) == 7 or len(yearly) == 366:
        raise InvalidCalendar(_EVERYTHING, code="no_dates_left")
    return ExcludedDates(
        text, frozenset(weekdays), frozenset(yearly), _apart(ranges), tuple(holidays.values())
    )


def _entries(text: str) -> Iterator[tuple[int, str]]:
    """Yield each entry with its line number (from 1), its whitespace collapsed to single spaces."""
    for number, line in enumerate(text.splitlines(), 1):
        for entry in line.partition("#")[0].split(","):
            if plain := " ".join(entry.split()):
                yield number, plain


def _range(first: str, last: str | None, line: int, value: str) -> tuple[date, date]:
    begin = _date(first, line, value)
    end = _date(last, line, value) if last else begin
    if end < begin:
        raise InvalidCalendar(_BACKWARDS, line=line, value=repr(value), code="reversed_range")
    return begin, end


def _date(text: str, line: int, value: str) -> date:
    try:
        found = date.fromisoformat(text)
    except ValueError:
        found = None
    if found is None or not 1970 <= found.year < 2200:
        raise InvalidCalendar(_NO_DATE, line=line, value=repr(value), code="invalid_date")
    return found


def _days_of_year(first: str, last: str | None, line: int, value: str) -> Iterator[tuple[int, int]]:
    begin, end = (_date(f"{LEAP_YEAR}-{text}", line, value) for text in (first, last or first))
    day = begin
    while True:
        yield day.month, day.day
        if day == end:
            return
        day = (day + DAY).replace(year=LEAP_YEAR)


def _weekdays(first: str, last: str | None) -> Iterator[int]:
    begin, end = (WEEKDAYS.index(name.upper()) for name in (first, last or first))
    yield from ((begin + number) % 7 for number in range((end - begin) % 7 + 1))


def _apart(ranges: list[tuple[date, date]]) -> tuple[tuple[date, date], ...]:
    """Sort the ranges and merge adjacent or overlapping ranges."""
    joined: list[tuple[date, date]] = []
    for first, last in sorted(ranges):
        if joined and first <= joined[-1][1] + DAY:
            joined[-1] = (joined[-1][0], max(joined[-1][1], last))
        else:
            joined.append((first, last))
    return tuple(joined)
