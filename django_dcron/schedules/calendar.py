"""The dates and times that a calendar excludes, and the search for open ones.

A date or time is *open* if the calendar doesn't exclude it.

Invariants:

- Times are local times of the schedule. Windows begin and end at whole minutes; intervals are in
  seconds.
- A date is excluded if all of its times are.
- A calendar is a value. Two calendars with the same text are equal.
- Whether a calendar excludes a date depends only on its text, the date and its holidays.
- The search for an open date covers at most ``HORIZON`` in either direction.
"""

from __future__ import annotations

from bisect import bisect_right
from calendar import isleap
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import date, datetime, time, timedelta
from enum import StrEnum
from functools import cached_property
from itertools import chain
from typing import NamedTuple

from django_dcron.schedules.days import DAY, FIRST_DAY, HORIZON, LAST_DAY
from django_dcron.schedules.times_of_day import (
    ALL_TIMES,
    WHOLE_DAY,
    DailyWindow,
    Interval,
    TimesByDate,
    merge_intervals,
    outside,
)

LEAP_YEAR = 2000

HolidaysOf = Callable[[int], frozenset[date]]
"""Returns the public holidays of one country or subdivision in a given year."""


class DateRange(NamedTuple):
    first: date
    last: date
    """Included."""


class ExclusionPolicy(StrEnum):
    """What happens to an occurrence on an excluded date or at an excluded time."""

    SKIP = "skip"
    NEXT_DAY = "next_day"
    """The occurrence moves to the same time on the next date that isn't excluded."""
    WINDOW_END = "window_end"
    """All occurrences of an excluded period of time become one, at the end of the period."""


@dataclass(frozen=True)
class ExcludedDates:
    """The parsed entries of a calendar: the dates, and the times of days, that it excludes."""

    text: str
    weekdays: frozenset[int] = field(compare=False, repr=False)
    """Weekday numbers as in ``date.weekday()`` (Monday is 0)."""
    yearly: frozenset[tuple[int, int]] = field(compare=False, repr=False)
    """Pairs of (month, day)."""
    ranges: tuple[DateRange, ...] = field(compare=False, repr=False)
    """Sorted ranges that neither overlap nor touch."""
    holidays: tuple[HolidaysOf, ...] = field(compare=False, repr=False)
    windows: tuple[DailyWindow, ...] = field(default=(), compare=False, repr=False)
    only: tuple[DailyWindow, ...] = field(default=(), compare=False, repr=False)
    """If there are such windows, all other times are excluded."""

    @cached_property
    def _entries(self) -> tuple[ExcludedDates, ...]:
        """The calendar itself, for its whole dates, and the dates of each entry in a window."""
        return (self, *(each.entry for each in chain(self.windows, self.only) if each.entry))

    @cached_property
    def _windows_recur(self) -> bool:
        """Whether weekday, month and day alone decide about the windows."""
        return not any(entry.ranges or entry.holidays for entry in self._entries[1:])

    @cached_property
    def _times_by_date(self) -> TimesByDate:
        return TimesByDate()

    @cached_property
    def _times_by_recurrence(self) -> dict[tuple[int, ...], tuple[Interval, ...]]:
        """The times that windows exclude, by weekday, month and day, if nothing else decides."""
        return {}

    @cached_property
    def _has_holidays(self) -> bool:
        return any(entry.holidays for entry in self._entries)

    @cached_property
    def _edges(self) -> list[date]:
        """The first date of each range, and the first date after it."""
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
                was_excluded = (before.month, before.day) in entry.yearly
                if ((day.month, day.day) in entry.yearly) != was_excluded:
                    found.add((day.month, day.day))
        return sorted(found)

    def steady_dates(self, day: date) -> tuple[date, date]:
        """Return the first and the last date of a period around ``day``.

        In the period, the weekday alone decides about the excluded times. Without such a period,
        both are ``day``.
        """
        if self._has_holidays:
            return day, day
        place = bisect_right(self._edges, day)
        edges = [FIRST_DAY, *self._edges[max(place - 1, 0) : place + 1], LAST_DAY + DAY]
        if self._yearly_edges:
            for year in (day.year - 1, day.year, day.year + 1):
                edges += [_in_year(year, *edge) for edge in self._yearly_edges]
        first = max((edge for edge in edges if edge <= day), default=day)
        last = min((edge for edge in edges if edge > day), default=day + DAY) - DAY
        # A time that began on the day before an edge, under other entries, may end on the edge.
        return (first + DAY, last) if first < day else (day, day)

    @property
    def has_times(self) -> bool:
        """Whether the calendar excludes parts of days."""
        whole = (window.end - window.start == WHOLE_DAY[1] for window in self.only)
        return bool(self.windows) or not all(whole)

    @cached_property
    def excludes_dates(self) -> bool:
        """Whether the calendar is known to exclude whole dates, not only times of day.

        It is if it has an entry for whole dates, if one of its windows lasts 24 hours, or if the
        windows together exclude a date of the year ``LEAP_YEAR``. Several windows may together
        exclude only dates of other years, or a weekday that isn't on that date in this year. Such
        dates aren't found.
        """
        if self.weekdays or self.yearly or self.ranges or self.holidays:
            return True
        if any(each.end - each.start >= WHOLE_DAY[1] for each in self.windows):
            return True
        first = date(LEAP_YEAR, 1, 1)
        return any(self.excludes(first + number * DAY) for number in range(366))

    def excludes(self, day: date) -> bool:
        """Return whether all of the day is excluded."""
        return self.excluded_times(day) == ALL_TIMES

    def excluded_times(self, day: date) -> tuple[Interval, ...]:
        """Return the excluded times of a day, sorted. They neither overlap nor touch.

        They are computed once for each date. The lines of a schedule share the results.
        """
        times = self._times_by_date.get(day)
        if times is None:
            times = ALL_TIMES if self.has_entry_for(day) else self._times_of_windows(day)
            self._times_by_date.add(day, times)
        return times

    def _times_of_windows(self, day: date) -> tuple[Interval, ...]:
        if not self._windows_recur:
            return self._find_times_of_windows(day)
        # A time may begin on the day before. For March 1, this is February 28 or 29.
        key = (day.month, day.day, day.weekday(), (day - DAY).day if day.day == 1 else 0)
        if key not in self._times_by_recurrence:
            self._times_by_recurrence[key] = self._find_times_of_windows(day)
        return self._times_by_recurrence[key]

    def _find_times_of_windows(self, day: date) -> tuple[Interval, ...]:
        opened = merge_intervals(part for window in self.only for part in window.intervals(day))
        if self.only and not opened:
            return ALL_TIMES
        closed = [part for window in self.windows for part in window.intervals(day)]
        return merge_intervals([*closed, *outside(opened)] if self.only else closed)

    def possible_times(self, weekday: int) -> tuple[Interval, ...]:
        """Return the times that may be open on dates of the weekday, sorted.

        Entries that don't name weekdays may still exclude some of them on each date.
        """
        if weekday in self.weekdays:
            return ()
        closed = [part for each in self.windows for part in each.intervals_on(weekday, False)]
        if self.only:
            opened = (part for each in self.only for part in each.intervals_on(weekday, True))
            closed += outside(merge_intervals(opened))
        return outside(merge_intervals(closed))

    def open_time_from(self, local: datetime) -> datetime | None:
        """Return the first open second from ``local`` on, or None past the horizon."""
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
        """Return the last open second up to ``local``, or None past the horizon."""
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

    def has_entry_for(self, day: date) -> bool:
        """Return whether an entry for whole dates covers the day."""
        return (
            day.weekday() in self.weekdays
            or (day.month, day.day) in self.yearly
            or self._range_with(day) is not None
            or any(day in of_year(day.year) for of_year in self.holidays)
        )

    def open_from(self, day: date) -> date | None:
        """Return the first open date from ``day`` on, or None past the horizon."""
        last = min(day, LAST_DAY - HORIZON) + HORIZON
        while FIRST_DAY <= day <= last:
            if within := self._range_with(day):
                if within.last >= last:
                    return None
                day = within.last + DAY
            elif self.excludes(day):
                day += DAY
            else:
                return day
        return None

    def open_until(self, day: date) -> date | None:
        """Return the last open date up to ``day``, or None past the horizon."""
        first = max(day, FIRST_DAY + HORIZON) - HORIZON
        while first <= day <= LAST_DAY:
            if within := self._range_with(day):
                if within.first <= first:
                    return None
                day = within.first - DAY
            elif self.excludes(day):
                day -= DAY
            else:
                return day
        return None

    def _range_with(self, day: date) -> DateRange | None:
        """Return the range that contains the day."""
        number = bisect_right(self.ranges, (day, date.max)) - 1
        return self.ranges[number] if number >= 0 and day <= self.ranges[number].last else None


def _in_year(year: int, month: int, day: int) -> date:
    """Return a date of a year; March 1 instead of a leap day that the year doesn't have."""
    if (month, day) == (2, 29) and not isleap(year):
        return date(year, 3, 1)
    return date(year, month, day)


def _second_of_day(local: datetime) -> int:
    return local.hour * 3600 + local.minute * 60 + local.second


def _at(day: date, second: int) -> datetime:
    return datetime.combine(day, time.min) + timedelta(seconds=second)
