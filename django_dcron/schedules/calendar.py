"""Parse calendars: text that names the dates and times a schedule must avoid.

A calendar has one entry per line, or several separated by commas. Text after a ``#`` is a comment.

- ``2026-12-24``: one date; ``2026-12-24..2027-01-01``: all dates of the range, inclusive.
- ``12-25``: this date every year; ``12-24..01-01``: this range every year, inclusive.
- ``SAT``, ``MON-FRI``: weekdays.
- ``holidays DE``, ``holidays DE-BY``: the public holidays of a country or a subdivision.
- ``22:00-06:00``: this time of every day, up to its end; ``SAT-SUN 22:00-06:00``: of the days of an
  entry. A time that ends before it begins ends on the next day.
- ``only MON-FRI 09:00-17:00``: if there are such entries, all times outside them are excluded.

Invariants:

- Times are local times of the schedule, in whole minutes.
- A date is excluded if all of its times are.
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
from calendar import isleap
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import date, datetime, time, timedelta
from enum import StrEnum
from functools import cached_property
from itertools import chain

from django_dcron.exceptions import InvalidCalendar
from django_dcron.schedules.days import DAY, FIRST_DAY, HORIZON, LAST_DAY
from django_dcron.utils.messages import TOO_LONG
from django_dcron.utils.messages import gettext_noop as _

MAX_LENGTH = 10_000
MAX_HOLIDAYS = 20
"""The maximum number of countries and subdivisions.

A search looks up the holidays of each in each year up to ``HORIZON``. A year takes a millisecond.
"""
MAX_WINDOWS = 50
"""The maximum number of entries with a time or ``only``: each is checked for each day."""
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
    WINDOW_END = "window_end"
    """All occurrences of an excluded stretch of time become one, at the end of the stretch."""


Interval = tuple[int, int]
"""The seconds of a day from the first up to, and without, the second."""
WHOLE_DAY: Interval = (0, 86_400)


@dataclass(frozen=True)
class DailyWindow:
    """A time of day on some dates. ``end`` is past the end of the day if it is on the next one."""

    on: Callable[[date], bool]
    start: int
    end: int
    weekdays: frozenset[int] = frozenset()
    """The weekdays if the dates are all dates of these weekdays; otherwise empty."""
    entry: ExcludedDates | None = None
    """The dates, unless they are all dates."""

    def intervals(self, day: date) -> Iterator[Interval]:
        """Yield the seconds of ``day`` in the window."""
        if self.on(day):
            yield self.start, min(self.end, WHOLE_DAY[1])
        if self.end > WHOLE_DAY[1] and self.on(day - DAY):
            yield 0, self.end - WHOLE_DAY[1]

    def intervals_on(self, weekday: int, by_date: bool) -> Iterator[Interval]:
        """Yield the seconds in the window on dates of a weekday, as far as the weekday decides.

        ``by_date``: the answer if the date decides.
        """
        if weekday in self.weekdays if self.weekdays else by_date:
            yield self.start, min(self.end, WHOLE_DAY[1])
        before = (weekday - 1) % 7
        if self.end > WHOLE_DAY[1] and (before in self.weekdays if self.weekdays else by_date):
            yield 0, self.end - WHOLE_DAY[1]


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
    windows: tuple[DailyWindow, ...] = field(default=(), compare=False, repr=False)
    only: tuple[DailyWindow, ...] = field(default=(), compare=False, repr=False)
    """If there are such windows, all other times are excluded."""
    _known_times: dict[tuple[int, ...], tuple[Interval, ...]] = field(
        default_factory=dict, compare=False, repr=False
    )
    """The excluded times by weekday, month and day, if nothing else decides."""

    @cached_property
    def _entries(self) -> tuple[ExcludedDates, ...]:
        """The entries with a time or ``only``, and the others as one."""
        return (self, *(each.entry for each in chain(self.windows, self.only) if each.entry))

    @cached_property
    def _recurs(self) -> bool:
        return not any(entry.ranges or entry.holidays for entry in self._entries)

    @cached_property
    def _edges(self) -> list[date]:
        """The first dates of ranges, and the first dates after them."""
        ranges = chain.from_iterable(entry.ranges for entry in self._entries)
        return sorted({edge for first, last in ranges for edge in (first, last + DAY)})

    @cached_property
    def _yearly_edges(self) -> list[tuple[int, int]]:
        """The months and days on which an entry's yearly dates begin, or have ended."""
        found = set()
        for entry in self._entries:
            for number in range(366 if entry.yearly else 0):
                day = date(LEAP_YEAR, 1, 1) + number * DAY
                before = day - DAY
                if ((day.month, day.day) in entry.yearly) != (
                    (before.month, before.day) in entry.yearly
                ):
                    found.add((day.month, day.day))
        return sorted(found)

    def steady_dates(self, day: date) -> tuple[date, date]:
        """Return the first and the last date of a stretch around ``day``.

        In the stretch, the weekday alone decides about the excluded times. Without such a stretch,
        both are ``day``.
        """
        if any(entry.holidays for entry in self._entries):
            return day, day
        place = bisect_right(self._edges, day)
        edges = [FIRST_DAY, *self._edges[max(place - 1, 0) : place + 1], LAST_DAY + DAY]
        if self._yearly_edges:
            for year in (day.year - 1, day.year, day.year + 1):
                edges += [_in_year(year, *edge) for edge in self._yearly_edges]
        first = max((edge for edge in edges if edge <= day), default=day)
        last = min((edge for edge in edges if edge > day), default=day + DAY) - DAY
        # On an edge, a time may end that began on the day before, under other entries.
        return (first + DAY, last) if first < day else (day, day)

    @property
    def has_times(self) -> bool:
        """Whether the calendar excludes parts of days."""
        whole = (window.end - window.start == WHOLE_DAY[1] for window in self.only)
        return bool(self.windows) or not all(whole)

    @cached_property
    def excludes_dates(self) -> bool:
        """Whether the calendar excludes whole dates, not only times of day."""
        if self.weekdays or self.yearly or self.ranges or self.holidays:
            return True
        if any(each.end - each.start >= WHOLE_DAY[1] for each in self.windows):
            return True
        first = date(LEAP_YEAR, 1, 1)
        return any(self.excludes(first + number * DAY) for number in range(366))

    def excludes(self, day: date) -> bool:
        """Return whether all of the day is excluded."""
        if self._names(day):
            return True
        if not self.only and sum(each.end - each.start for each in self.windows) < WHOLE_DAY[1]:
            return False  # The windows are too short to cover a day.
        return self.excluded_times(day) == (WHOLE_DAY,)

    def excluded_times(self, day: date) -> tuple[Interval, ...]:
        """Return the excluded times of a day, sorted. They neither overlap nor touch."""
        if not self._recurs:
            return self._find_excluded_times(day)
        # The day before decides about times that begin there. March 1 has two.
        key = (day.month, day.day, day.weekday(), (day - DAY).day if day.day == 1 else 0)
        if key not in self._known_times:
            self._known_times[key] = self._find_excluded_times(day)
        return self._known_times[key]

    def _find_excluded_times(self, day: date) -> tuple[Interval, ...]:
        if self._names(day):
            return (WHOLE_DAY,)
        opened = _joined(part for window in self.only for part in window.intervals(day))
        if self.only and not opened:
            return (WHOLE_DAY,)
        closed = [part for window in self.windows for part in window.intervals(day)]
        return _joined([*closed, *outside(opened)] if self.only else closed)

    def possible_times(self, weekday: int) -> tuple[Interval, ...]:
        """Return the times that aren't excluded on each date of the weekday, sorted.

        Some of them may be excluded on each date, too, by entries that don't name weekdays.
        """
        if weekday in self.weekdays:
            return ()
        closed = [part for each in self.windows for part in each.intervals_on(weekday, False)]
        if self.only:
            opened = (part for each in self.only for part in each.intervals_on(weekday, True))
            closed += outside(_joined(opened))
        return outside(_joined(closed))

    def open_time_from(self, local: datetime) -> datetime | None:
        """Return the first second from ``local`` on that isn't excluded, None past the horizon."""
        day: date | None = local.date()
        second = _second_of_day(local)
        while day is not None:
            for begin, end in self.excluded_times(day):
                if begin <= second < end:
                    second = end
            if second < WHOLE_DAY[1]:
                return _at(day, second)
            day, second = self.open_from(day + DAY), 0
        return None

    def open_time_until(self, local: datetime) -> datetime | None:
        """Return the last second up to ``local`` that isn't excluded, None past the horizon."""
        day: date | None = local.date()
        second = _second_of_day(local)
        while day is not None:
            for begin, end in reversed(self.excluded_times(day)):
                if begin <= second < end:
                    second = begin - 1
            if second >= 0:
                return _at(day, second)
            day, second = self.open_until(day - DAY), WHOLE_DAY[1] - 1
        return None

    def _names(self, day: date) -> bool:
        """Return whether an entry without a time names the day."""
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


def parse_calendar(text: str, holidays_in: HolidaysIn) -> ExcludedDates:
    """Parse calendar text; raises ``InvalidCalendar``."""
    if len(text) > MAX_LENGTH:
        raise InvalidCalendar(TOO_LONG, count=len(text), most=MAX_LENGTH, code="too_long")
    named: list[ExcludedDates] = []
    windows: list[DailyWindow] = []
    only: list[DailyWindow] = []
    holidays: set[tuple[str, str]] = set()
    for line, value in _entries(text):
        found = _ENTRY.fullmatch(value)
        if found is None:
            raise InvalidCalendar(
                _NO_ENTRY, line=line, value=f"{value!r:.80}", code="unknown_entry"
            )
        dates = _dates(found, line, value, holidays_in)
        if found["country"]:
            holidays.add((found["country"].upper(), (found["part"] or "").casefold()))
        if len(holidays) > MAX_HOLIDAYS:
            raise InvalidCalendar(
                _TOO_MANY_HOLIDAYS, line=line, most=MAX_HOLIDAYS, code="too_many_holidays"
            )
        begin, end = found["begin"] or found["daily_begin"], found["end"] or found["daily_end"]
        if begin is None and not found["only"]:
            named.append(dates)
            continue
        start, stop = _seconds(begin, end, line, value) if begin else WHOLE_DAY
        on = _every_day if found["daily_begin"] else dates.excludes
        weekdays = frozenset(range(7)) if found["daily_begin"] else dates.weekdays
        entry = None if found["daily_begin"] else dates
        (only if found["only"] else windows).append(DailyWindow(on, start, stop, weekdays, entry))
        if len(windows) + len(only) > MAX_WINDOWS:
            raise InvalidCalendar(
                _TOO_MANY_TIMES, line=line, most=MAX_WINDOWS, code="too_many_times"
            )
    if not (named or windows or only):
        raise InvalidCalendar(_NOTHING, code="no_dates")
    of_places = {each.text.casefold(): each.holidays for each in named if each.holidays}
    result = ExcludedDates(
        text,
        frozenset(chain.from_iterable(each.weekdays for each in named)),
        frozenset(chain.from_iterable(each.yearly for each in named)),
        _merge_ranges([each for dates in named for each in dates.ranges]),
        tuple(chain.from_iterable(of_places.values())),
        tuple(windows),
        tuple(only),
    )
    if len(result.weekdays) == 7 or len(result.yearly) == 366:
        raise InvalidCalendar(_EVERYTHING, code="no_dates_left")
    return result


def _dates(found: re.Match[str], line: int, value: str, holidays_in: HolidaysIn) -> ExcludedDates:
    """Return the dates that one entry names, without its time."""
    weekdays: frozenset[int] = frozenset()
    yearly: frozenset[tuple[int, int]] = frozenset()
    ranges: tuple[tuple[date, date], ...] = ()
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
    """Return a time of day in seconds; one that ends on the next day ends past the day."""
    first, last = (int(text[:2]) * 3600 + int(text[3:]) * 60 for text in (begin, end))
    is_valid = int(begin[3:]) < 60 and int(end[3:]) < 60 and last <= WHOLE_DAY[1]
    if not is_valid or first >= WHOLE_DAY[1] or first == last:
        raise InvalidCalendar(_NO_TIME, line=line, value=repr(value), code="invalid_time")
    return first, last if last > first else last + WHOLE_DAY[1]


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


def _merge_ranges(ranges: list[tuple[date, date]]) -> tuple[tuple[date, date], ...]:
    """Sort the ranges and merge adjacent or overlapping ranges."""
    joined: list[tuple[date, date]] = []
    for first, last in sorted(ranges):
        if joined and first <= joined[-1][1] + DAY:
            joined[-1] = (joined[-1][0], max(joined[-1][1], last))
        else:
            joined.append((first, last))
    return tuple(joined)


def _joined(intervals: Iterable[Interval]) -> tuple[Interval, ...]:
    """Sort the intervals, and merge adjacent or overlapping ones."""
    joined: list[Interval] = []
    for begin, end in sorted(intervals):
        if joined and begin <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], end))
        else:
            joined.append((begin, end))
    return tuple(joined)


def _in_year(year: int, month: int, day: int) -> date:
    """Return a date of a year; March 1 instead of a leap day that the year doesn't have."""
    if (month, day) == (2, 29) and not isleap(year):
        return date(year, 3, 1)
    return date(year, month, day)


def outside(intervals: Iterable[Interval]) -> tuple[Interval, ...]:
    """Return the times outside sorted intervals that don't overlap."""
    edges = [0, *chain.from_iterable(intervals), WHOLE_DAY[1]]
    gaps = zip(edges[::2], edges[1::2], strict=True)
    return tuple((begin, end) for begin, end in gaps if begin < end)


def _second_of_day(local: datetime) -> int:
    return local.hour * 3600 + local.minute * 60 + local.second


def _at(day: date, second: int) -> datetime:
    return datetime.combine(day, time.min) + timedelta(seconds=second)
