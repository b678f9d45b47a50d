"""Local times mapped to UTC: the daylight-saving rules, after Vixie/Debian cron.

Two readings of the clock, and one walk for both. The walk goes from stretch to stretch of constant offset; a
stretch owns the local times from its *floor* up to its end, and a local time it owns happens at `local - offset`,
but not before the stretch begins.

- Wall clock (some time field starts with `*`): the floor is the local time at which the stretch begins. What a
  gap leaves out does not happen; what an overlap repeats happens twice.
- Fixed time: after a shift of at most `SMALL_SHIFT` the floor is where the previous stretch ended, so the local
  calendar has neither holes nor repeats: times lost in a gap all happen at its end (once), repeated ones in the
  first pass. Greater shifts (Apia's lost day) are read by the wall clock.

Both are pure functions of (cron, zone, instant), strictly increasing in UTC, and mirror each other exactly.
Every pass of the loops moves on by a stretch or to within `SLACK` of the answer, so the work is bounded.
"""

# ruff: noqa: DTZ901 -- naive datetimes are what this is about

from datetime import datetime, timedelta

from django_dcron.domain.cron import Cron
from django_dcron.domain.zones import FIRST, LAST, SECOND, SLACK, Stretch, stretch_at

SMALL_SHIFT = timedelta(hours=3)


def next_instant(cron: Cron, zone: str, instant: datetime) -> datetime | None:
    """The first occurrence at or after `instant`; both are naive UTC in whole seconds."""
    asked = found = datetime.max
    while FIRST <= instant < LAST:
        stretch = stretch_at(zone, instant)
        floor = _floor(stretch, cron.fixed)
        local = floor if instant == stretch.start else max(floor, instant + stretch.offset)
        if not asked <= local <= found:  # the last answer does not cover this question
            asked, found = local, cron.at_or_after(local) or datetime.max
        if found < stretch.end + stretch.offset:
            return max(stretch.start, found - stretch.offset)
        # Nothing more in this stretch. Local time can only step back at its end, and by less than SLACK: if that
        # is further away than SLACK, nothing can happen until `found` comes near.
        far = stretch.end - instant > SLACK
        instant = max(stretch.end, found - SLACK) if far else stretch.end
    return None


def previous_instant(cron: Cron, zone: str, instant: datetime) -> datetime | None:
    """The last occurrence at or before `instant`: the mirror of `next_instant`."""
    asked = found = datetime.min
    while FIRST <= instant < LAST:
        stretch = stretch_at(zone, instant)
        local = instant + stretch.offset
        if not found <= local <= asked:
            asked, found = local, cron.at_or_before(local) or datetime.min
        if found >= _floor(stretch, cron.fixed):
            return max(stretch.start, found - stretch.offset)
        far = instant - stretch.start > SLACK
        before = stretch.start - SECOND
        instant = min(before, found + SLACK) if far else before
    return None


def _floor(stretch: Stretch, fixed: bool) -> datetime:
    """The first local time the stretch owns."""
    if fixed and abs(stretch.offset - stretch.offset_before) <= SMALL_SHIFT:
        return stretch.start + stretch.offset_before
    return stretch.start + stretch.offset
