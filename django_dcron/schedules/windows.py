"""Apply a calendar with times to a rule: drop the occurrences at excluded times, or move them.

Invariants:

- A time is excluded if the calendar excludes the local time of the rule's zone at that instant. In
  a repeated hour, both passes are.
- Dropped: the occurrences are those of the rule at times that aren't excluded.
- Moved: an occurrence at an excluded time becomes one at the first instant after it that isn't
  excluded. All occurrences of one excluded stretch become the same one.
- ``next_after`` and ``previous_before`` mirror each other.
- A move asks the rule once. Dropping jumps over a whole stretch at a time, at most ``MAX_JUMPS``
  times and not beyond the horizon.
"""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple, Protocol

from django_dcron.schedules.calendar import ExcludedDates
from django_dcron.schedules.days import HORIZON
from django_dcron.schedules.zones import FIRST, LAST, SECOND, stretch_at

MAX_JUMPS = 2000
"""More excluded stretches in a row, each with occurrences, count as the end of the schedule."""


class OccurrenceRule(Protocol):
    """The occurrences of a rule; instants are naive UTC."""

    def next_after(self, instant: datetime) -> datetime | None: ...

    def previous_before(self, instant: datetime) -> datetime | None: ...


class Windowed(NamedTuple):
    rule: OccurrenceRule
    calendar: ExcludedDates
    zone: str
    moves: bool
    """Whether occurrences move to the end of the excluded time; otherwise they are dropped."""

    def next_after(self, instant: datetime) -> datetime | None:
        if self.moves:
            return _near(instant, self._next_moved(instant))
        found = self.rule.next_after(instant)
        for _ in range(MAX_JUMPS):
            found = _near(instant, found)
            if found is None or not self.excludes(found):
                return found
            end = self.open_from(found)
            found = end and self.rule.next_after(end - SECOND)
        return None

    def previous_before(self, instant: datetime) -> datetime | None:
        if self.moves:
            return _near(instant, self._previous_moved(instant))
        found = self.rule.previous_before(instant)
        for _ in range(MAX_JUMPS):
            found = _near(instant, found)
            if found is None or not self.excludes(found):
                return found
            last = self._open_until(found)
            found = last and self.rule.previous_before(last + SECOND)
        return None

    def excludes(self, instant: datetime) -> bool:
        return self.open_from(instant) != instant

    def open_from(self, instant: datetime) -> datetime | None:
        """Return the first second from ``instant`` on that isn't excluded."""
        while FIRST <= instant < LAST:
            stretch = stretch_at(self.zone, instant)
            local = self.calendar.open_time_from(instant + stretch.offset)
            if local is None:
                return None
            if local - stretch.offset < stretch.end:
                return local - stretch.offset
            instant = stretch.end
        return None

    def _open_until(self, instant: datetime) -> datetime | None:
        """Return the last second up to ``instant`` that isn't excluded."""
        while FIRST <= instant < LAST:
            stretch = stretch_at(self.zone, instant)
            local = self.calendar.open_time_until(instant + stretch.offset)
            if local is None:
                return None
            if local - stretch.offset >= stretch.start:
                return local - stretch.offset
            instant = stretch.start - SECOND
        return None

    def _next_moved(self, instant: datetime) -> datetime | None:
        """Moving keeps the order, so the first suitable occurrence has the first result."""
        first = instant.replace(microsecond=0) + SECOND
        # Occurrences since the last open second before ``first`` move to ``first`` or later.
        before = self._open_until(first - SECOND)
        found = self.rule.next_after(before or FIRST)
        return found and self.open_from(found)

    def _previous_moved(self, instant: datetime) -> datetime | None:
        whole = instant.replace(microsecond=0)
        last = self._open_until(whole if whole < instant else whole - SECOND)
        # Occurrences after the last open second move past it.
        found = last and self.rule.previous_before(last + SECOND)
        return found and self.open_from(found)


def _near(instant: datetime, found: datetime | None) -> datetime | None:
    return found if found is not None and abs(found - instant) <= HORIZON else None
