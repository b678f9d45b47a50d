"""A time as it stands on a clock, where clocks are changed: what it means, and what a schedule makes of it.

The rules are those of ``domain.daylight``, and ``domain.clock_changes`` tells them apart; here they are worded, for one time.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from django.utils.translation import gettext as _

from django_dcron.domain.clock_changes import Effect, effect_at
from django_dcron.domain.cron import Cron
from django_dcron.domain.schedule import WallClock
from django_dcron.domain.timetable import Timetable
from django_dcron.domain.zones import Stretch, stretch_at
from django_dcron.observability.wording import clock, moment

MINUTE = timedelta(minutes=1)
SECOND = timedelta(seconds=1)


@dataclass(frozen=True, slots=True)
class Asked:
    """What somebody who names a time means: a minute if it is a whole one, else a second."""

    start: datetime
    end: datetime
    """Not included. The same as ``start`` if that time does not exist, and stands for nothing."""
    is_minute: bool
    note: str = ""
    """What is to be said of the clocks of that day."""


def asked(instant: datetime, zone: ZoneInfo, timetable: Timetable | None) -> Asked:
    """``instant``: if it is given in ``zone``, it may be one that the clocks there skip."""
    local = instant if getattr(instant.tzinfo, "key", "") == zone.key else instant.astimezone(zone)
    local = local.replace(microsecond=0)
    is_minute = local.second == 0
    length = MINUTE if is_minute else SECOND
    start = local.astimezone(UTC)
    if start.astimezone(zone).replace(tzinfo=None) != local.replace(tzinfo=None):
        return _in_gap(local.replace(fold=0), length, zone, _cron(timetable))
    return Asked(start, start + length, is_minute, _if_repeated(local, length, zone, _cron(timetable)))


def stands_for(occurrence: datetime, zone: ZoneInfo, timetable: Timetable | None) -> str:
    """What is to be said of an occurrence that is there for a time which the clocks skip; empty for any other."""
    cron, stretch = _cron(timetable), _stretch(occurrence, zone)
    if cron is None or occurrence != stretch.start.replace(tzinfo=UTC):
        return ""
    first, after = _edges(stretch)
    skipped = cron.at_or_after(first) if effect_at(cron, stretch) is Effect.ONCE_AFTER else None
    if skipped is None or cron.at_or_after(after) == after:
        return ""
    return _(
        "It stands for %(time)s, which does not exist on that day in %(zone)s: clocks go from %(from)s to %(to)s."
    ) % {
        "time": clock(skipped),
        "zone": zone.key,
        "from": clock(first),
        "to": clock(after),
    }


def _in_gap(local: datetime, length: timedelta, zone: ZoneInfo, cron: Cron | None) -> Asked:
    stretch = _stretch(local.astimezone(UTC), zone)
    end = stretch.start.replace(tzinfo=UTC)
    first, after = _edges(stretch)
    said = {
        "time": clock(local),
        "day": f"{local:%Y-%m-%d}",
        "zone": zone.key,
        "from": clock(first),
        "to": clock(after),
    }
    if cron and _falls_on(cron, local, length) and effect_at(cron, stretch) is Effect.ONCE_AFTER:
        note = _(
            "%(time)s does not exist on %(day)s in %(zone)s: clocks go from %(from)s to %(to)s. What is due at a fixed time "
            "in between comes at %(to)s."
        )
        return Asked(end, end + SECOND, length == MINUTE, note % said)
    note = _("%(time)s does not exist on %(day)s in %(zone)s: clocks go from %(from)s to %(to)s.")
    return Asked(end, end, length == MINUTE, note % said)


def _if_repeated(local: datetime, length: timedelta, zone: ZoneInfo, cron: Cron | None) -> str:
    first, second = (local.replace(fold=fold) for fold in (0, 1))
    if first.utcoffset() == second.utcoffset():
        return ""
    said = {
        "time": clock(local),
        "day": f"{local:%Y-%m-%d}",
        "zone": zone.key,
        "first": moment(first, zone),
        "second": moment(second, zone),
        "meant": moment(local, zone),
    }
    falls = cron is not None and _falls_on(cron, local, length)
    if cron and falls and effect_at(cron, _stretch(second, zone)) is Effect.FIRST_TIME:
        note = _(
            "%(time)s comes twice on %(day)s in %(zone)s, as clocks are turned back: at %(first)s and %(second)s. What is due "
            "at a fixed time comes the first time only."
        )
    elif falls:
        note = _(
            "%(time)s comes twice on %(day)s in %(zone)s, as clocks are turned back: at %(first)s and %(second)s. The schedule "
            "falls on it both times; this is about %(meant)s."
        )
    else:
        note = _(
            "%(time)s comes twice on %(day)s in %(zone)s, as clocks are turned back: at %(first)s and %(second)s. This is "
            "about %(meant)s."
        )
    return note % said


def _cron(timetable: Timetable | None) -> Cron | None:
    rule = timetable and timetable.schedule.rule
    return rule.cron if isinstance(rule, WallClock) else None


def _falls_on(cron: Cron, local: datetime, length: timedelta) -> bool:
    naive = local.replace(tzinfo=None)
    found = cron.at_or_after(naive)
    return found is not None and found < naive + length


def _stretch(instant: datetime, zone: ZoneInfo) -> Stretch:
    return stretch_at(zone.key, instant.astimezone(UTC).replace(tzinfo=None))


def _edges(stretch: Stretch) -> tuple[datetime, datetime]:
    """What clocks show as they are changed, before and after."""
    return stretch.start + stretch.offset_before, stretch.start + stretch.offset
