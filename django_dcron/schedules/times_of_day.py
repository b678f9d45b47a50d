"""Times of day: intervals of the seconds of a day, and windows of such times on some dates."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import date
from itertools import chain
from typing import TYPE_CHECKING

from django_dcron.schedules.days import DAY

if TYPE_CHECKING:
    from django_dcron.schedules.calendar import ExcludedDates

Interval = tuple[int, int]
"""Seconds of a day: the first one, and the one after the last."""
WHOLE_DAY: Interval = (0, 86_400)
ALL_TIMES = (WHOLE_DAY,)


@dataclass(frozen=True)
class DailyWindow:
    """A time of day on some dates. An ``end`` on the next day is past ``WHOLE_DAY``."""

    on: Callable[[date], bool]
    start: int
    end: int
    weekdays: frozenset[int] = frozenset()
    """The weekdays if the dates are all dates of these weekdays; otherwise empty."""
    entry: ExcludedDates | None = None
    """The dates of the window; None if the window is on every date."""

    def intervals(self, day: date) -> Iterator[Interval]:
        """Yield the seconds of ``day`` in the window."""
        if self.on(day):
            yield self.start, min(self.end, WHOLE_DAY[1])
        if self.end > WHOLE_DAY[1] and self.on(day - DAY):
            yield 0, self.end - WHOLE_DAY[1]

    def intervals_on(self, weekday: int, by_date: bool) -> Iterator[Interval]:
        """Yield the seconds in the window on dates of a weekday.

        ``by_date``: whether to yield the seconds of a window whose dates aren't all dates of
        certain weekdays. Such a window may be on some dates of the weekday.
        """

        def is_on(number: int) -> bool:
            return number in self.weekdays if self.weekdays else by_date

        if is_on(weekday):
            yield self.start, min(self.end, WHOLE_DAY[1])
        if self.end > WHOLE_DAY[1] and is_on((weekday - 1) % 7):
            yield 0, self.end - WHOLE_DAY[1]


def merge_intervals(intervals: Iterable[Interval]) -> tuple[Interval, ...]:
    """Sort the intervals, and merge adjacent or overlapping ones."""
    found: list[Interval] = []
    for begin, end in sorted(intervals):
        if found and begin <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((begin, end))
    return tuple(found)


def outside(intervals: Iterable[Interval]) -> tuple[Interval, ...]:
    """Return the times outside sorted intervals that don't overlap."""
    edges = [0, *chain.from_iterable(intervals), WHOLE_DAY[1]]
    gaps = zip(edges[::2], edges[1::2], strict=True)
    return tuple((begin, end) for begin, end in gaps if begin < end)


class TimesByDate:
    """Remembers the times of each date, in 8 bytes per date.

    Equal times are stored once. Threads share an instance: two of them may add the same date.
    """

    _LENGTH = 512

    def __init__(self) -> None:
        self._blocks: dict[int, list[tuple[Interval, ...] | None]] = {}
        """The times of ``_LENGTH`` dates in a row, by number."""
        self._distinct: dict[tuple[Interval, ...], tuple[Interval, ...]] = {}

    def get(self, day: date) -> tuple[Interval, ...] | None:
        number, place = divmod(day.toordinal(), self._LENGTH)
        block = self._blocks.get(number)
        return None if block is None else block[place]

    def add(self, day: date, times: tuple[Interval, ...]) -> None:
        number, place = divmod(day.toordinal(), self._LENGTH)
        block = self._blocks.setdefault(number, [None] * self._LENGTH)
        block[place] = self._distinct.setdefault(times, times)
