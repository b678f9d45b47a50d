"""Write the schedules of other schedulers as the fields of a job."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from django.conf import settings

from django_dcron.contrib.importers.source_contents import (
    LAST_RUN,
    NEXT_DUE,
    EntryOmitted,
    EntryRefused,
    OneOffPassed,
    Warn,
)
from django_dcron.schedules.schedule import parse_schedule
from django_dcron.schedules.timetable import Timetable

SECOND = timedelta(seconds=1)
LONG_INTERVAL = timedelta(minutes=10)
"""Intervals from this length on keep the phase of the source."""


def interval_text(length: timedelta) -> str:
    """Return the schedule text of an interval. Raises ``EntryRefused``."""
    if length < SECOND or length % SECOND:
        raise EntryRefused(
            f"the interval {length.total_seconds():g} s is not supported; intervals are "
            "whole seconds of at least 1"
        )
    minutes, seconds = divmod(length // SECOND, 60)
    hours, minutes = divmod(minutes, 60)
    parts = ((hours, "h"), (minutes, "m"), (seconds, "s"))
    return "@every " + "".join(f"{number}{unit}" for number, unit in parts if number)


def next_due(last: datetime | None, length: timedelta, now: datetime) -> dict[str, datetime]:
    """Return the field ``NEXT_DUE`` of an interval that last ran at ``last``.

    Empty if the interval is short or has never run. If it is overdue, it is due at ``now``, because
    the source would run it at once.
    """
    if last is None or length < LONG_INTERVAL:
        return {}
    return {NEXT_DUE: whole_second(max(last + length, now))}


def iso_in_site_zone(at: datetime, timespec: str = "seconds") -> str:
    """Return the time in ISO 8601 in the site's zone, as ``@at`` takes it."""
    local = at.astimezone(UTC).astimezone(ZoneInfo(settings.TIME_ZONE))
    return local.isoformat(timespec=timespec).replace("+00:00", "Z")


def whole_second(at: datetime) -> datetime:
    """Return the first whole second that isn't earlier than ``at``."""
    whole = at.replace(microsecond=0)
    return whole + SECOND if at.microsecond else whole


def one_off_schedule(at: datetime, now: datetime, warn: Warn) -> dict[str, str]:
    """Return the fields of a job that runs once. Raises ``EntryRefused`` if ``at`` has passed.

    Fractions of a second are rounded up, so the run is never early.
    """
    if at <= now:
        raise OneOffPassed(
            f"its only run time, {iso_in_site_zone(at)}, has passed; if the other "
            "scheduler hasn't run it (some record a run minutes later), run it manually or set "
            "another time"
        )
    if at.microsecond:
        warn(f"the time {iso_in_site_zone(at, 'auto')} is rounded up to a whole second")
    # Rounded in UTC, because a local time of the hour that repeats would change to the other one.
    text = iso_in_site_zone(whole_second(at.astimezone(UTC)))
    return {"schedule": f"@at {text}", "timezone": settings.TIME_ZONE}


def check_not_over(values: Mapping[str, Any], now: datetime) -> None:
    """Raise ``EntryOmitted`` if the source won't run an entry again before it ends.

    An occurrence after the last run counts, although it may have passed: the source hasn't run it.
    """
    ends_at = values["ends_at"]
    if ends_at is None:
        return
    first = values.get(NEXT_DUE) or _next_in_source(values, now)
    if first is None or first > ends_at:
        end = iso_in_site_zone(whole_second(ends_at))
        raise EntryOmitted(f"no occurrence is left before it ends at {end}")


def _next_in_source(values: Mapping[str, Any], now: datetime) -> datetime | None:
    """Return when the source may run an entry next. If that's unknown, it is the earliest time."""
    schedule = parse_schedule(values["schedule"], values["timezone"])
    starts_at, last = values.get("starts_at"), values.get(LAST_RUN)
    first = Timetable(schedule, starts_at).first_after(min(last or now, now))
    if schedule.interval is None or first is None or (starts_at and starts_at > now):
        return first
    return min(first, now if last is None else last + schedule.interval)


def interval_fields(length: timedelta) -> dict[str, str]:
    """Return the fields of a job that runs at an interval. It has the site's time zone.

    Raises ``EntryRefused``.
    """
    return {"schedule": interval_text(length), "timezone": settings.TIME_ZONE}


def zone_name(zone: Any) -> str:
    """Return the name of a time zone. Raises ``EntryRefused`` if it has none."""
    name = getattr(zone, "key", None) or getattr(zone, "zone", None)
    if name is None and datetime.now(zone).utcoffset() == timedelta() and type(zone) is type(UTC):
        name = "UTC"
    if not isinstance(name, str):
        raise EntryRefused(
            f"the time zone {zone!s:.60} is not in the tz database; use a name such as "
            "Europe/Berlin"
        )
    return name
