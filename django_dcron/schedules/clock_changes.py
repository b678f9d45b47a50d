"""Find the upcoming clock changes that affect a schedule, and how each one affects it.

A clock change skips local times (clocks go forward) or repeats them (clocks go back). It affects a
schedule that matches one of these local times. The effects follow from the rules in ``daylight``.

Invariants:

- At a shift of at most ``SMALL_SHIFT``, a fixed-time schedule runs once right after a gap, and only
  in the first pass of an overlap.
- Any other schedule doesn't run in a gap, and runs in both passes of an overlap.
- An occurrence that a calendar moves into a gap runs once right after it. One that moves into an
  overlap runs in the first pass.
- A small shift by whole hours doesn't affect a wall-clock schedule that runs at the same minutes of
  every hour. Such a shift isn't reported.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from heapq import merge
from itertools import groupby
from operator import attrgetter

from django_dcron.schedules.cron import Cron
from django_dcron.schedules.daylight import SMALL_SHIFT
from django_dcron.schedules.days import DAY
from django_dcron.schedules.schedule import Schedule
from django_dcron.schedules.windows import Windowed
from django_dcron.schedules.zones import FIRST, LAST, SECOND, OffsetPeriod, offset_period_at

HOUR = timedelta(hours=1)


class Effect(StrEnum):
    ONCE_AFTER = "once_after"
    """Occurrences in the gap run once, right after it."""
    NOT_AT_ALL = "not_at_all"
    FIRST_TIME = "first_time"
    """Repeated occurrences run in the first pass only."""
    BOTH_TIMES = "both_times"


@dataclass(frozen=True, slots=True)
class ClockChange:
    zone: str
    at: datetime
    """The first instant of the new offset, in UTC."""
    shown_before: datetime
    """The local time at ``at`` without the change; naive."""
    shown_after: datetime
    """The local time at ``at`` with the change; naive."""
    effect: Effect


def clock_changes(schedule: Schedule, after: datetime, until: datetime) -> Iterator[ClockChange]:
    """Yield the clock changes in ``(after, until]`` that affect the schedule, in order.

    ``after`` and ``until`` must be aware. A change that affects several lines in the same way is
    yielded once.
    """
    found = merge(
        *(_changes_of(line, after, until) for line in schedule.lines), key=attrgetter("at")
    )
    for _at, changes in groupby(found, key=attrgetter("at")):
        yield from dict.fromkeys(changes)


def _changes_of(line: Schedule, after: datetime, until: datetime) -> Iterator[ClockChange]:
    if line.wall_clock is None:
        return
    cron, zone = line.wall_clock
    begin, end = (moment.astimezone(UTC).replace(tzinfo=None) for moment in (after, until))
    for period in _periods_begun(zone, begin, end):
        effect = effect_at(cron, period)
        if isinstance(line.rule, Windowed):
            if effect is not None:
                effect = _effect_with_calendar(effect, line.rule, cron, period)
            elif line.rule.moves:
                effect = _effect_on_moved(line.rule, cron, period)
        if effect is not None:
            at = period.start.replace(tzinfo=UTC)
            yield ClockChange(zone, at, period.shown_before, period.shown_after, effect)


def _periods_begun(zone: str, after: datetime, until: datetime) -> Iterator[OffsetPeriod]:
    """Yield the periods of constant offset that begin in ``(after, until]``, in naive UTC."""
    if not FIRST <= after < LAST:
        return
    start = offset_period_at(zone, after).end
    while start <= until < LAST:
        period = offset_period_at(zone, start)
        yield period
        start = period.end


def effect_at(cron: Cron, period: OffsetPeriod) -> Effect | None:
    """Return the effect of the clock change at the start of ``period``, if there is one."""
    shift = period.offset - period.offset_before
    small = abs(shift) <= SMALL_SHIFT
    fixed = cron.fixed and small
    unnoticed = small and not fixed and cron.hour.everything and not shift % HOUR
    low, high = sorted((period.shown_before, period.shown_after))
    if not shift or unnoticed or not _falls_between(cron, low, high):
        return None
    if shift > timedelta():
        return Effect.ONCE_AFTER if fixed else Effect.NOT_AT_ALL
    return Effect.FIRST_TIME if fixed else Effect.BOTH_TIMES


def _effect_with_calendar(
    effect: Effect, rule: Windowed, cron: Cron, period: OffsetPeriod
) -> Effect | None:
    """Return the effect on a schedule whose calendar excludes times, if there is one."""
    low, high = sorted((period.shown_before, period.shown_after))
    if not _has_open_time(rule, cron, low, high):
        return None
    if effect is Effect.ONCE_AFTER and rule.excludes(period.start):
        # With ``moves``, the occurrences run once, at the end of the excluded time.
        return None if rule.moves else Effect.NOT_AT_ALL
    return effect


def _effect_on_moved(rule: Windowed, cron: Cron, period: OffsetPeriod) -> Effect | None:
    """Return the effect on an occurrence that the calendar moves to a skipped or repeated time.

    If ``cron`` itself matches such a time, ``_effect_with_calendar`` decides.
    """
    low, high = sorted((period.shown_before, period.shown_after))
    if low == high or _falls_between(cron, low, high):
        return None
    end = rule.calendar.open_time_from(low)
    begin = rule.calendar.open_time_until(low)
    if end is None or begin is None or not begin < low < end < high:
        return None
    last = cron.at_or_before(low)
    if last is None or last <= begin:
        return None
    if period.offset < period.offset_before:
        return Effect.FIRST_TIME
    return None if rule.excludes(period.start) else Effect.ONCE_AFTER


def _has_open_time(rule: Windowed, cron: Cron, low: datetime, high: datetime) -> bool:
    """Return whether ``cron`` matches a time in ``[low, high)`` that isn't excluded.

    With ``moves``, an excluded time counts if its occurrence moves to a time before ``high``.
    """
    local: datetime | None = low
    while local is not None:
        found = cron.at_or_after(local)
        if found is None or found >= high:
            return False
        local = rule.calendar.open_time_from(found)
        if local == found or (rule.moves and local is not None and local < high):
            return True
    return False


def _falls_between(cron: Cron, low: datetime, high: datetime) -> bool:
    """Return whether ``cron`` matches a local time in ``[low, high)``."""
    day, last = low.date(), (high - SECOND).date()
    # ``at_or_after`` would search years ahead for the next matching day.
    while not cron.days.on(day):
        day += DAY
        if day > last:
            return False
    found = cron.at_or_after(low)
    return found is not None and found < high
