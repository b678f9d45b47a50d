"""Parse calendars: text that names the dates and times a schedule must avoid.

A calendar has one entry per line, or several separated by commas. Text after a ``#`` is a comment.

- ``2026-12-24``: one date; ``2026-12-24..2027-01-01``: all dates of the range, inclusive.
- ``12-25``: this date every year; ``12-24..01-01``: this range every year, inclusive.
- ``SAT``, ``MON-FRI``: weekdays.
- ``holidays DE``, ``holidays DE-BY``: the public holidays of a country or a subdivision.
- ``22:00-06:00``: this time of every day, end excluded; ``SAT-SUN 22:00-06:00``: this time of the
  named days. A time that would end before it begins ends on the next day.
- ``only MON-FRI 09:00-17:00``: if there are such entries, all times outside them are excluded.

Invariants:

- This module contains no holiday data; ``holidays_in`` provides it.
- Calendar text raises no error but ``InvalidCalendar``, which gives the line, the value and what is
  allowed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import date
from itertools import chain

from django_dcron.exceptions import InvalidCalendar
from django_dcron.schedules.calendar import LEAP_YEAR, DateRange, ExcludedDates, HolidaysOf
from django_dcron.schedules.days import DAY
from django_dcron.schedules.times_of_day import WHOLE_DAY, DailyWindow, Interval
from django_dcron.utils.messages import TOO_LONG
from django_dcron.utils.messages import gettext_noop as _

HolidaysIn = Callable[[str, str], HolidaysOf]
"""Returns the ``HolidaysOf`` for a country (``DE``) and a subdivision (``BY``, or empty).

Raises ``InvalidCalendar`` if the country or subdivision is unknown.
"""

MAX_LENGTH = 10_000
MAX_HOLIDAYS = 20
"""The maximum number of countries and subdivisions.

A search looks up the holidays of all of them, year by year, up to ``HORIZON``. Each lookup of a
year takes a millisecond.
"""
MAX_WINDOWS = 50
"""The maximum number of entries with a time or ``only``. A search checks each one for each day."""
WEEKDAYS = ("MON", "TUE", "WED", "THU", "FRI", "SAT", "SUN")

_ENTRIES = (
    r"(?P<first>\d{4}-\d\d-\d\d)(?: ?\.\. ?(?P<last>\d{4}-\d\d-\d\d))?",
    r"(?P<from>\d\d-\d\d)(?: ?\.\. ?(?P<to>\d\d-\d\d))?",
    rf"(?P<weekday>{'|'.join(WEEKDAYS)})(?: ?- ?(?P<until>{'|'.join(WEEKDAYS)}))?",
    r"HOLIDAYS (?P<country>[A-Z]{2,3})(?:-(?P<part>.{1,40}?))?",
)
_TIME = r"(?P<begin>\d\d:\d\d) ?- ?(?P<end>\d\d:\d\d)"
_ENTRY = re.compile(
    rf"(?P<only>ONLY )?(?:(?:{'|'.join(_ENTRIES)})(?: {_TIME})?|{_TIME.replace('<', '<daily_')})",
    re.IGNORECASE | re.ASCII,
)
_NO_ENTRY = _(
    "Line %(line)d: unknown entry %(value)s (allowed: 2026-12-24, 2026-12-24..2027-01-01, "
    "12-25, 12-24..01-01, SAT, MON-FRI, holidays DE, holidays DE-BY, each with or without a "
    "time such as 22:00-06:00; 22:00-06:00; only MON-FRI 09:00-17:00)"
)
_MISSPELLED = _("Line %(line)d: unknown entry %(value)s. Did you mean %(near)s?")
_NO_DATE = _(
    "Line %(line)d: %(value)s is not a valid date (allowed: existing dates in the years "
    "1970 to 2199)"
)
_BACKWARDS = _("Line %(line)d: %(value)s ends before it begins; put the earlier date first")
_NO_TIME = _(
    "Line %(line)d: %(value)s is not a valid time (allowed: two different times from 00:00 to "
    "24:00, such as 22:00-06:00)"
)
_TOO_MANY_TIMES = _(
    "Line %(line)d: the calendar has more than %(most)d entries with a time or with “only”."
)
_UNKNOWN_HOLIDAYS = _("Line %(line)d: %(problem)s")
_TOO_MANY_HOLIDAYS = _(
    "Line %(line)d: the calendar has holidays of more than %(most)d countries and subdivisions. "
    "Remove some of them, or enter their dates."
)
_NOTHING = _("The calendar has no entries. Enter at least one, such as 12-25.")
_EVERYTHING = _("The calendar excludes every date. Remove an entry so that some dates remain.")


@dataclass(frozen=True, slots=True)
class CalendarEntry:
    """One entry of a calendar's text."""

    line: int
    text: str
    comment: str
    """The text after ``#`` in the entry's line."""
    dates: ExcludedDates
    """The dates that the entry names, without its time."""
    country: str = ""
    """The country of an entry for public holidays; otherwise empty."""
    part: str = ""
    """The subdivision of the country, or empty."""
    window: DailyWindow | None = None
    """The time of an entry with a time or ``only``; None for an entry of whole dates."""
    is_only: bool = False


def parse_entries(text: str, holidays_in: HolidaysIn) -> Iterator[CalendarEntry]:
    """Yield the entries of calendar text. Raises ``InvalidCalendar``."""
    _require_length(text)
    for line, value, comment in _entries(text):
        yield _parse_entry(line, value, comment, holidays_in)


def find_invalid_entries(text: str, holidays_in: HolidaysIn) -> Iterator[InvalidCalendar]:
    """Yield the error of each invalid entry of calendar text. Text that is too long isn't read."""
    try:
        _require_length(text)
    except InvalidCalendar as error:
        yield error
        return
    for line, value, comment in _entries(text):
        try:
            _parse_entry(line, value, comment, holidays_in)
        except InvalidCalendar as error:
            yield error


def _require_length(text: str) -> None:
    if len(text) > MAX_LENGTH:
        raise InvalidCalendar(TOO_LONG, count=len(text), most=MAX_LENGTH, code="too_long")


def _parse_entry(line: int, value: str, comment: str, holidays_in: HolidaysIn) -> CalendarEntry:
    found = _ENTRY.fullmatch(value)
    if found is None:
        params = {"line": line, "value": f"{value!r:.80}"}
        if near := _similar_entry(value):
            raise InvalidCalendar(_MISSPELLED, **params, near=near, code="unknown_entry")
        raise InvalidCalendar(_NO_ENTRY, **params, code="unknown_entry")
    dates = _dates(found, line, value, holidays_in)
    country, part = (found["country"] or "").upper(), found["part"] or ""
    begin, end = found["begin"] or found["daily_begin"], found["end"] or found["daily_end"]
    is_only = bool(found["only"])
    window = None
    if begin or is_only:
        start, stop = _seconds(begin, end, line, value) if begin else WHOLE_DAY
        on = _every_day if found["daily_begin"] else dates.has_entry_for
        weekdays = frozenset(range(7)) if found["daily_begin"] else dates.weekdays
        entry = None if found["daily_begin"] else dates
        window = DailyWindow(on, start, stop, weekdays, entry)
    return CalendarEntry(line, value, comment, dates, country, part, window, is_only)


def parse_calendar(text: str, holidays_in: HolidaysIn) -> ExcludedDates:
    """Parse calendar text; raises ``InvalidCalendar``."""
    named: list[ExcludedDates] = []
    windows: list[DailyWindow] = []
    only: list[DailyWindow] = []
    holidays: set[tuple[str, str]] = set()
    for entry in parse_entries(text, holidays_in):
        if entry.country:
            holidays.add((entry.country, entry.part.casefold()))
        if len(holidays) > MAX_HOLIDAYS:
            raise InvalidCalendar(
                _TOO_MANY_HOLIDAYS, line=entry.line, most=MAX_HOLIDAYS, code="too_many_holidays"
            )
        if entry.window is None:
            named.append(entry.dates)
            continue
        (only if entry.is_only else windows).append(entry.window)
        if len(windows) + len(only) > MAX_WINDOWS:
            raise InvalidCalendar(
                _TOO_MANY_TIMES, line=entry.line, most=MAX_WINDOWS, code="too_many_times"
            )
    if not (named or windows or only):
        raise InvalidCalendar(_NOTHING, code="no_dates")
    result = _combine(text, named, windows, only)
    if len(result.weekdays) == 7 or len(result.yearly) == 366:
        raise InvalidCalendar(_EVERYTHING, code="no_dates_left")
    return result


def _combine(
    text: str, named: list[ExcludedDates], windows: list[DailyWindow], only: list[DailyWindow]
) -> ExcludedDates:
    """Return the calendar of these entries. Holidays of a place that is named twice count once."""
    of_places = {each.text.casefold(): each.holidays for each in named if each.holidays}
    return ExcludedDates(
        text,
        weekdays=frozenset(chain.from_iterable(each.weekdays for each in named)),
        yearly=frozenset(chain.from_iterable(each.yearly for each in named)),
        ranges=_merge_ranges([each for dates in named for each in dates.ranges]),
        holidays=tuple(chain.from_iterable(of_places.values())),
        windows=tuple(windows),
        only=tuple(only),
    )


def _dates(found: re.Match[str], line: int, value: str, holidays_in: HolidaysIn) -> ExcludedDates:
    """Return the dates that one entry names, without its time."""
    weekdays: frozenset[int] = frozenset()
    yearly: frozenset[tuple[int, int]] = frozenset()
    ranges: tuple[DateRange, ...] = ()
    holidays: tuple[HolidaysOf, ...] = ()
    text = ""
    if found["first"]:
        ranges = (_range(found["first"], found["last"], line, value),)
    elif found["from"]:
        yearly = frozenset(_days_of_year(found["from"], found["to"], line, value))
    elif found["weekday"]:
        weekdays = frozenset(_weekdays(found["weekday"], found["until"]))
    elif found["country"]:
        country, part = found["country"].upper(), found["part"] or ""
        text = f"{country}-{part}"
        try:
            holidays = (holidays_in(country, part),)
        except InvalidCalendar as error:
            raise InvalidCalendar(
                _UNKNOWN_HOLIDAYS, line=line, problem=error.text, code="unknown_holidays"
            ) from None
    return ExcludedDates(text, weekdays, yearly, ranges, holidays)


def _every_day(_day: date) -> bool:
    return True


def _seconds(begin: str, end: str, line: int, value: str) -> Interval:
    """Return a time of day in seconds. An end on the next day is past ``WHOLE_DAY``."""
    first, last = (int(text[:2]) * 3600 + int(text[3:]) * 60 for text in (begin, end))
    is_valid = int(begin[3:]) < 60 and int(end[3:]) < 60 and last <= WHOLE_DAY[1]
    if not is_valid or first >= WHOLE_DAY[1] or first == last:
        raise InvalidCalendar(_NO_TIME, line=line, value=repr(value), code="invalid_time")
    return first, last if last > first else last + WHOLE_DAY[1]


def _entries(text: str) -> Iterator[tuple[int, str, str]]:
    """Yield the line number (from 1), text and comment of each entry.

    Whitespace in the text is collapsed to single spaces.
    """
    for number, line in enumerate(text.splitlines(), 1):
        entries, _hash, comment = line.partition("#")
        for entry in entries.split(","):
            if plain := " ".join(entry.split()):
                yield number, plain, comment.strip()


def _similar_entry(value: str) -> str:
    """Return the entry that ``value`` means in another notation, or an empty string."""
    if found := re.fullmatch(r"(\d{1,2})\. ?(\d{1,2})\.? ?(\d{4})?", value, re.ASCII):
        day, month = int(found[1]), int(found[2])
        try:
            date(int(found[3] or LEAP_YEAR), month, day)
        except ValueError:
            return ""
        return f"{found[3]}-{month:02}-{day:02}" if found[3] else f"{month:02}-{day:02}"
    return {"weekend": "SAT-SUN", "weekday": "MON-FRI"}.get(value.casefold().removesuffix("s"), "")


def _range(first: str, last: str | None, line: int, value: str) -> DateRange:
    begin = _date(first, line, value)
    end = _date(last, line, value) if last else begin
    if end < begin:
        raise InvalidCalendar(_BACKWARDS, line=line, value=repr(value), code="reversed_range")
    return DateRange(begin, end)


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


def _merge_ranges(ranges: list[DateRange]) -> tuple[DateRange, ...]:
    """Sort the ranges, and merge adjacent or overlapping ranges."""
    merged: list[DateRange] = []
    for each in sorted(ranges):
        if merged and each.first <= merged[-1].last + DAY:
            merged[-1] = DateRange(merged[-1].first, max(merged[-1].last, each.last))
        else:
            merged.append(each)
    return tuple(merged)
