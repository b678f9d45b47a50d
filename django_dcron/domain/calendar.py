"""Calendars: text that names dates -> the dates on which a schedule is not to fall.

One entry a line, or several with commas between; what follows a ``#`` is a remark:

- ``2026-12-24``: a date; ``2026-12-24..2027-01-01``: all from one to the other, both included;
- ``12-25``: that date of every year; ``12-24..01-01``: those from one to the other, every year;
- ``SAT``, ``MON-FRI``: weekdays;
- ``holidays DE``, ``holidays DE-BY``: the public holidays of a country, or of a part of it.

Invariants:

- a calendar is a value, equal to another of the same text; whether it excludes a date depends on nothing but text and date (and
  on what ``holidays_in`` knows of public holidays: the domain itself knows none);
- a search for a date that is not excluded looks ``HORIZON`` ahead or back and no further;
- the only error text can raise is ``InvalidCalendar``: line, value and what is allowed.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import date
from enum import StrEnum

from django_dcron.domain.days import DAY, FIRST_DAY, HORIZON, LAST_DAY
from django_dcron.exceptions import InvalidCalendar
from django_dcron.phrases import gettext_noop as _

MAX_LENGTH = 10_000
WEEKDAYS = ("MON", "TUE", "WED", "THU", "FRI", "SAT", "SUN")
LEAP_YEAR = 2000

HolidaysOf = Callable[[int], frozenset[date]]
"""A year's public holidays, of one country or part of it."""
HolidaysIn = Callable[[str, str], HolidaysOf]
"""Those of a country (``DE``) and a part of it (``BY``, or empty). Raises ``InvalidCalendar`` for one it does not know."""


class ExclusionPolicy(StrEnum):
    """What becomes of an occurrence on an excluded date."""

    SKIP = "skip"
    NEXT_DAY = "next_day"
    """It moves to the same time of the next date that is not excluded."""


@dataclass(frozen=True)
class Calendar:
    text: str
    weekdays: frozenset[int] = field(compare=False, repr=False)
    """As ``date.weekday`` has them."""
    yearly: frozenset[tuple[int, int]] = field(compare=False, repr=False)
    """Months and days."""
    ranges: tuple[tuple[date, date], ...] = field(compare=False, repr=False)
    """In order, apart from each other."""
    holidays: tuple[HolidaysOf, ...] = field(compare=False, repr=False)

    def excludes(self, day: date) -> bool:
        return (
            day.weekday() in self.weekdays
            or (day.month, day.day) in self.yearly
            or self._range_with(day) is not None
            or any(day in of_year(day.year) for of_year in self.holidays)
        )

    def open_from(self, day: date) -> date | None:
        """The first date from ``day`` on that is not excluded; None if there is none up to the horizon."""
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
        """The last such date up to ``day``."""
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
    "line %(line)d: %(value)s is not known (allowed: 2026-12-24, 2026-12-24..2027-01-01, 12-25, 12-24..01-01, SAT, "
    "MON-FRI, holidays DE, holidays DE-BY)"
)
_NO_DATE = _("line %(line)d: %(value)s is no date (allowed: dates of the calendar in the years 1970 to 2199)")
_BACKWARDS = _("line %(line)d: %(value)s ends before it begins (allowed: the earlier date first)")
_TOO_LONG = _("%(count)d characters are too many (allowed: at most %(most)d)")
_UNKNOWN_HOLIDAYS = _("line %(line)d: %(problem)s")
_NOTHING = _("it names no date (allowed: at least one entry, such as 12-25)")
_EVERYTHING = _("it excludes every date (allowed: a calendar that leaves some)")


def parse_calendar(text: str, holidays_in: HolidaysIn) -> Calendar:
    """Raises ``InvalidCalendar``."""
    if len(text) > MAX_LENGTH:
        raise InvalidCalendar(_TOO_LONG, count=len(text), most=MAX_LENGTH)
    weekdays: set[int] = set()
    yearly: set[tuple[int, int]] = set()
    ranges: list[tuple[date, date]] = []
    holidays: list[HolidaysOf] = []
    for line, value in _entries(text):
        found = _ENTRY.fullmatch(value)
        if found is None:
            raise InvalidCalendar(_NO_ENTRY, line=line, value=f"{value!r:.80}")
        if found["first"]:
            ranges.append(_range(found["first"], found["last"], line, value))
        elif found["from"]:
            yearly.update(_days_of_year(found["from"], found["to"], line, value))
        elif found["weekday"]:
            weekdays.update(_weekdays(found["weekday"], found["until"]))
        else:
            try:
                holidays.append(holidays_in(found["country"].upper(), found["part"] or ""))
            except InvalidCalendar as error:
                raise InvalidCalendar(_UNKNOWN_HOLIDAYS, line=line, problem=error.phrase) from None
    if not (weekdays or yearly or ranges or holidays):
        raise InvalidCalendar(_NOTHING)
    if len(weekdays) == 7 or len(yearly) == 366:
        raise InvalidCalendar(_EVERYTHING)
    return Calendar(text, frozenset(weekdays), frozenset(yearly), _apart(ranges), tuple(holidays))


def _entries(text: str) -> Iterator[tuple[int, str]]:
    """The entries, with single spaces, and their lines, from 1 on."""
    for number, line in enumerate(text.splitlines(), 1):
        for entry in line.partition("#")[0].split(","):
            if plain := " ".join(entry.split()):
                yield number, plain


def _range(first: str, last: str | None, line: int, value: str) -> tuple[date, date]:
    begin = _date(first, line, value)
    end = _date(last, line, value) if last else begin
    if end < begin:
        raise InvalidCalendar(_BACKWARDS, line=line, value=repr(value))
    return begin, end


def _date(text: str, line: int, value: str) -> date:
    try:
        found = date.fromisoformat(text)
    except ValueError:
        found = None
    if found is None or not 1970 <= found.year < 2200:
        raise InvalidCalendar(_NO_DATE, line=line, value=repr(value))
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
    """In order, those that touch or overlap as one."""
    joined: list[tuple[date, date]] = []
    for first, last in sorted(ranges):
        if joined and first <= joined[-1][1] + DAY:
            joined[-1] = (joined[-1][0], max(joined[-1][1], last))
        else:
            joined.append((first, last))
    return tuple(joined)
