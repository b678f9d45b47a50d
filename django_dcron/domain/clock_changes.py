"""The clock changes that a schedule falls into, and what it does then: to be told before they come.

What is said follows from the two readings of the clock in ``daylight``. Between what the clocks show just before a change
and just after lie local times that are left out (put forward) or come twice (put back); a schedule falls into the change
if it has one of those. Invariants:

- a fixed-time schedule, at a shift of at most ``SMALL_SHIFT``: once right after the gap; once, in the first pass;
- any other: not at all in the gap; in both passes;
- one read by the wall clock that looks the same in every hour does not notice a small shift by whole hours: its runs are
  as far apart as ever, and nothing is said.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum

from django_dcron.domain.cron import Cron
from django_dcron.domain.daylight import SMALL_SHIFT
from django_dcron.domain.days import DAY
from django_dcron.domain.schedule import Schedule, WallClock
from django_dcron.domain.zones import FIRST, LAST, SECOND, Stretch, stretch_at

HOUR = timedelta(hours=1)


class Effect(StrEnum):
    ONCE_AFTER = "once_after"
    """What falls into the gap happens once, right after it."""
    NOT_AT_ALL = "not_at_all"
    FIRST_TIME = "first_time"
    """What comes twice happens the first time only."""
    BOTH_TIMES = "both_times"


@dataclass(frozen=True, slots=True)
class ClockChange:
    at: datetime
    """The first instant of the new offset, in UTC."""
    shown_before: datetime
    """What the clocks would have shown at ``at`` without the change; naive."""
    shown_after: datetime
    """What they show then; naive."""
    effect: Effect


def clock_changes(schedule: Schedule, after: datetime, until: datetime) -> Iterator[ClockChange]:
    """Those after ``after`` and up to ``until`` (aware) that the schedule falls into, in order."""
    if not isinstance(schedule.rule, WallClock):
        return
    cron, zone = schedule.rule
    instant, end = (moment.astimezone(UTC).replace(tzinfo=None) for moment in (after, until))
    while FIRST <= instant < LAST and (instant := stretch_at(zone, instant).end) <= end < LAST:
        stretch = stretch_at(zone, instant)
        before, now = instant + stretch.offset_before, instant + stretch.offset
        if effect := effect_at(cron, stretch):
            yield ClockChange(instant.replace(tzinfo=UTC), before, now, effect)


def effect_at(cron: Cron, stretch: Stretch) -> Effect | None:
    """Of the change that ``stretch`` begins with; None: it does not fall into it, or does not notice."""
    before, now = stretch.start + stretch.offset_before, stretch.start + stretch.offset
    shift = now - before
    small = abs(shift) <= SMALL_SHIFT
    fixed = cron.fixed and small
    unnoticed = small and not fixed and cron.hour.everything and not shift % HOUR
    if not shift or unnoticed or not _falls_between(cron, min(before, now), max(before, now)):
        return None
    if shift > timedelta():
        return Effect.ONCE_AFTER if fixed else Effect.NOT_AT_ALL
    return Effect.FIRST_TIME if fixed else Effect.BOTH_TIMES


def _falls_between(cron: Cron, low: datetime, high: datetime) -> bool:
    """Whether it has a local time from ``low`` to just before ``high``."""
    day, last = low.date(), (high - SECOND).date()
    while not cron.days.on(day):  # the search below would look for the next such day, years ahead
        day += DAY
        if day > last:
            return False
    found = cron.at_or_after(low)
    return found is not None and found < high
