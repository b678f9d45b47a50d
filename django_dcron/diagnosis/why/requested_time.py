"""Interpret a local time around clock changes, and describe its effect on a schedule.

The rules are those of ``schedules.daylight`` and ``schedules.clock_changes``. This module
describes them for one time.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from django.utils.translation import gettext as _

from django_dcron.diagnosis.why.sentence import Sentence
from django_dcron.schedules.clock_changes import Effect, effect_at
from django_dcron.schedules.cron import Cron
from django_dcron.schedules.timetable import Timetable
from django_dcron.schedules.zones import OffsetPeriod, offset_period_at
from django_dcron.utils.time_format import format_time, format_time_of_day

MINUTE = timedelta(minutes=1)
SECOND = timedelta(seconds=1)


@dataclass(frozen=True, slots=True)
class RequestedTime:
    """The interval that a requested time stands for.

    It is the whole minute if the seconds of the time are 0, otherwise one second.
    """

    start: datetime
    end: datetime
    """Exclusive.

    It equals ``start`` if the local time doesn't exist and no occurrence replaces it.
    """
    note: Sentence | None = None
    """A remark about a clock change on that day."""


def interpret_requested_time(
    instant: datetime, zone: ZoneInfo, timetable: Timetable | None, *, exact: bool = False
) -> RequestedTime:
    """Interpret ``instant``, which may be a local time that the clocks of ``zone`` skip.

    With ``exact``, a whole minute also means only its first second.
    """
    local = instant if getattr(instant.tzinfo, "key", "") == zone.key else instant.astimezone(zone)
    local = local.replace(microsecond=0)
    length = MINUTE if local.second == 0 and not exact else SECOND
    start = local.astimezone(UTC)
    if start.astimezone(zone).replace(tzinfo=None) != local.replace(tzinfo=None):
        return _in_gap(local.replace(fold=0), length, zone, _crons(timetable, zone))
    note = _repeated_time_note(local, length, zone, _crons(timetable, zone))
    return RequestedTime(start, start + length, note)


def occurrence_note(
    occurrence: datetime, zone: ZoneInfo, timetable: Timetable | None
) -> Sentence | None:
    """Return a remark if the occurrence replaces a skipped local time, else None."""
    crons, period = _crons(timetable, zone), _offset_period_at(occurrence, zone)
    if occurrence != period.start.replace(tzinfo=UTC):
        return None
    first, after = period.shown_before, period.shown_after
    moved = [cron for cron in crons if effect_at(cron, period) is Effect.ONCE_AFTER]
    skipped = min(filter(None, (cron.at_or_after(first) for cron in moved)), default=None)
    if skipped is None or any(cron.at_or_after(after) == after for cron in crons):
        return None
    text = _(
        "The occurrence replaces %(time)s, which doesn't exist on that day in %(zone)s. Clocks go "
        "from %(from)s to %(to)s."
    )
    params = {"zone": zone.key, "from": format_time_of_day(first), "to": format_time_of_day(after)}
    return Sentence("replaces_skipped_time", text, time=format_time_of_day(skipped), **params)


def _in_gap(local: datetime, length: timedelta, zone: ZoneInfo, crons: list[Cron]) -> RequestedTime:
    period = _offset_period_at(local.astimezone(UTC), zone)
    end = period.start.replace(tzinfo=UTC)
    values = {
        "time": format_time_of_day(local),
        "day": f"{local:%Y-%m-%d}",
        "zone": zone.key,
        "from": format_time_of_day(period.shown_before),
        "to": format_time_of_day(period.shown_after),
    }
    matching_crons = [cron for cron in crons if _falls_on(cron, local, length)]
    if any(effect_at(cron, period) is Effect.ONCE_AFTER for cron in matching_crons):
        note = _(
            "%(time)s doesn't exist on %(day)s in %(zone)s. Clocks go from %(from)s to %(to)s. A "
            "job with a fixed time in this gap runs at %(to)s."
        )
        moved = Sentence("skipped_time_moved", note, **values)
        return RequestedTime(end, end + SECOND, moved)
    note = _("%(time)s doesn't exist on %(day)s in %(zone)s. Clocks go from %(from)s to %(to)s.")
    return RequestedTime(end, end, Sentence("skipped_time", note, **values))


def _repeated_time_note(
    local: datetime, length: timedelta, zone: ZoneInfo, crons: list[Cron]
) -> Sentence | None:
    first, second = (local.replace(fold=fold) for fold in (0, 1))
    if first.utcoffset() == second.utcoffset():
        return None
    values = {
        "time": format_time_of_day(local),
        "day": f"{local:%Y-%m-%d}",
        "zone": zone.key,
        "first": format_time(first, zone),
        "second": format_time(second, zone),
        "meant": format_time(local, zone),
    }
    matching_crons = [cron for cron in crons if _falls_on(cron, local, length)]
    effects = {effect_at(cron, _offset_period_at(second, zone)) for cron in matching_crons}
    if effects == {Effect.FIRST_TIME}:
        note = _(
            "%(time)s occurs twice on %(day)s in %(zone)s because clocks go back: at %(first)s "
            "and at %(second)s. A job with a fixed time runs only the first time."
        )
        return Sentence("repeated_time_runs_once", note, **values)
    if matching_crons:
        note = _(
            "%(time)s occurs twice on %(day)s in %(zone)s because clocks go back: at %(first)s "
            "and at %(second)s. The schedule matches both times. This answer is about %(meant)s."
        )
        return Sentence("repeated_time_runs_twice", note, **values)
    note = _(
        "%(time)s occurs twice on %(day)s in %(zone)s because clocks go back: at %(first)s and "
        "at %(second)s. This answer is about %(meant)s."
    )
    return Sentence("repeated_time", note, **values)


def _crons(timetable: Timetable | None, zone: ZoneInfo) -> list[Cron]:
    """Return the cron fields of the lines in this time zone."""
    rules = [line.wall_clock for line in timetable.schedule.lines] if timetable else []
    return [rule.cron for rule in rules if rule is not None and rule.zone == zone.key]


def _falls_on(cron: Cron, local: datetime, length: timedelta) -> bool:
    naive = local.replace(tzinfo=None)
    found = cron.at_or_after(naive)
    return found is not None and found < naive + length


def _offset_period_at(instant: datetime, zone: ZoneInfo) -> OffsetPeriod:
    return offset_period_at(zone.key, instant.astimezone(UTC).replace(tzinfo=None))
