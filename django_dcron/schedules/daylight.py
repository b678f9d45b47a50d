"""Map local times to UTC with the daylight-saving rules of Vixie/Debian cron.

Both modes below share one walk from period to period of constant offset. A period owns the local
times from its *floor* up to its end. A local time that it owns occurs at ``local - offset``, but
not before the period begins.

- Wall clock (a time field starts with ``*``): the floor is the local time at which the period
  begins. Times in a gap don't occur. Times in an overlap occur twice.
- Fixed time: after a shift of at most ``SMALL_SHIFT``, the floor is where the previous period
  ended. The local calendar then has no gaps or repeats. All times lost in a gap occur once at its
  end, and repeated times occur in the first pass. Larger shifts (Apia's lost day) follow the
  wall-clock rule.

Invariants:

- ``next_instant`` and ``previous_instant`` are pure functions of (cron, zone, instant) and mirror
  each other exactly.
- Occurrences strictly increase in UTC.
- Each pass of a loop moves on by a period, or to within ``SLACK`` of the answer, so the work is
  bounded.
"""

# ruff: noqa: DTZ901 -- this module works on naive datetimes

from datetime import datetime, timedelta

from django_dcron.schedules.cron import Cron
from django_dcron.schedules.zones import FIRST, LAST, SECOND, SLACK, OffsetPeriod, offset_period_at

SMALL_SHIFT = timedelta(hours=3)


def next_instant(cron: Cron, zone: str, instant: datetime) -> datetime | None:
    """Return the first occurrence at or after ``instant``; both are naive UTC in whole seconds."""
    asked = found = datetime.max
    while FIRST <= instant < LAST:
        period = offset_period_at(zone, instant)
        floor = _floor(period, cron.fixed)
        local = floor if instant == period.start else max(floor, instant + period.offset)
        if not asked <= local <= found:  # The previous answer doesn't cover this local time.
            asked, found = local, cron.at_or_after(local) or datetime.max
        if found < period.end + period.offset:
            return max(period.start, found - period.offset)
        # Nothing more occurs in this period. Local time can step back only at its end, and by less
        # than ``SLACK``. If the end is further away than that, nothing can occur until ``found``
        # comes near.
        far = period.end - instant > SLACK
        instant = max(period.end, found - SLACK) if far else period.end
    return None


def previous_instant(cron: Cron, zone: str, instant: datetime) -> datetime | None:
    """Return the last occurrence at or before ``instant``; mirrors ``next_instant``."""
    asked = found = datetime.min
    while FIRST <= instant < LAST:
        period = offset_period_at(zone, instant)
        local = instant + period.offset
        if not found <= local <= asked:
            asked, found = local, cron.at_or_before(local) or datetime.min
        if found >= _floor(period, cron.fixed):
            return max(period.start, found - period.offset)
        far = instant - period.start > SLACK
        before = period.start - SECOND
        instant = min(before, found + SLACK) if far else before
    return None


def _floor(period: OffsetPeriod, fixed: bool) -> datetime:
    """Return the first local time that the period owns."""
    if fixed and abs(period.offset - period.offset_before) <= SMALL_SHIFT:
        return period.start + period.offset_before
    return period.start + period.offset
