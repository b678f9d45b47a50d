"""Map local times to UTC with the daylight-saving rules of Vixie/Debian cron.

Both modes below share one walk from stretch to stretch of constant offset. A stretch owns the local
times from its *floor* up to its end. A local time that it owns occurs at ``local - offset``, but
not before the stretch begins.

- Wall clock (a time field starts with ``*``): the floor is the local time at which the stretch
  begins. Times in a gap don't occur. Times in an overlap occur twice.
- Fixed time: after a shift of at most ``SMALL_SHIFT``, the floor is where the previous stretch
  ended. The local calendar then has no gaps or repeats. All times lost in a gap occur once at its
  end, and repeated times occur in the first pass. Larger shifts (Apia's lost day) follow the
  wall-clock rule.

Invariants:

- ``next_instant`` and ``previous_instant`` are pure functions of (cron, zone, instant) and mirror
  each other exactly.
- Occurrences strictly increase in UTC.
- Each pass of a loop moves on by a stretch, or to within ``SLACK`` of the answer, so the work is
  bounded.
"""

# ruff: noqa: DTZ901 -- this module works on naive datetimes

from datetime import datetime, timedelta

from django_dcron.schedules.cron import Cron
from django_dcron.schedules.zones import FIRST, LAST, SECOND, SLACK, OffsetPeriod, stretch_at

SMALL_SHIFT = timedelta(hours=3)


def next_instant(cron: Cron, zone: str, instant: datetime) -> datetime | None:
    """Return the first occurrence at or after ``instant``; both are naive UTC in whole seconds."""
    asked = found = datetime.max
    while FIRST <= instant < LAST:
        stretch = stretch_at(zone, instant)
        floor = _floor(stretch, cron.fixed)
        local = floor if instant == stretch.start else max(floor, instant + stretch.offset)
        if not asked <= local <= found:  # The previous answer doesn't cover this local time.
            asked, found = local, cron.at_or_after(local) or datetime.max
        if found < stretch.end + stretch.offset:
            return max(stretch.start, found - stretch.offset)
        # Nothing more occurs in this stretch. Local time can step back only at its end, and by less
        # than ``SLACK``. If the end is further away than that, nothing can occur until ``found``
        # comes near.
        far = stretch.end - instant > SLACK
        instant = max(stretch.end, found - SLACK) if far else stretch.end
    return None


def previous_instant(cron: Cron, zone: str, instant: datetime) -> datetime | None:
    """Return the last occurrence at or before ``instant``; mirrors ``next_instant``."""
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


def _floor(stretch: OffsetPeriod, fixed: bool) -> datetime:
    """Return the first local time that the stretch owns."""
    if fixed and abs(stretch.offset - stretch.offset_before) <= SMALL_SHIFT:
        return stretch.start + stretch.offset_before
    return stretch.start + stretch.offset
