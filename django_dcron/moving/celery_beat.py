"""django-celery-beat: the rows of ``PeriodicTask`` and their schedules."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from django_dcron.domain.schedule import parse_schedule
from django_dcron.domain.timetable import Timetable
from django_dcron.moving import celery_entry
from django_dcron.moving.found import (
    Left,
    Ran,
    Reading,
    Refused,
    Row,
    Warn,
    each_row,
    entry,
    once_text,
    rows_of,
)

WAS_DISABLED = "was disabled in django-celery-beat"
KINDS = ("interval", "crontab", "solar", "clocked")


def read(now: datetime) -> Reading:
    rows = _rows().select_related(*KINDS).order_by("name")
    return Reading(
        [entry(_origin(name), name, partial(_job, row, now)) for _key, name, row in each_row(rows, "name")]
    )


def ran(since: datetime) -> Ran:
    """The latest run of each row; beat writes it within three minutes."""
    latest = _rows().filter(last_run_at__gte=since).values_list("name", "last_run_at")
    return Ran({_origin(name): [at] for name, at in latest}, complete=False)


def _rows() -> Any:
    return rows_of("django_celery_beat", "PeriodicTask", "django-celery-beat")


def _origin(name: str) -> str:
    return f"periodic task {name!r}"


def _job(get_row: Row, now: datetime, warn: Warn) -> dict[str, Any]:
    row = get_row()
    celery_entry.check_task(row.task)
    if row.expires and row.expires <= now:
        raise Left(f"it expired at {row.expires.isoformat()}")
    values = {
        "description": row.description,
        "target": row.task,
        **celery_entry.arguments(_json(row, "args", "[]"), _json(row, "kwargs", "{}")),
        **celery_entry.options(
            {
                "queue": row.queue,
                "exchange": row.exchange,
                "routing_key": row.routing_key,
                "priority": row.priority,
                "expires": row.expires or row.expire_seconds,
                "headers": _json(row, "headers", "{}"),
            },
            warn,
        ),
        "starts_at": row.start_time,
        "enabled": row.enabled,
        "pause_reason": "" if row.enabled else WAS_DISABLED,
    }
    return values | _when(row, now, warn)


def _json(row: Any, name: str, default: str) -> Any:
    try:
        return json.loads(getattr(row, name) or default)
    except ValueError as error:
        raise Refused(f"{name}: {getattr(row, name)!r:.80} is not JSON ({error})") from None


def _when(row: Any, now: datetime, warn: Warn) -> dict[str, Any]:
    if row.solar:
        raise Refused(
            f"there are no solar schedules here ({row.solar.event} at {row.solar.latitude}, {row.solar.longitude}); let a job run "
            "every few minutes around it and its code look where the sun is, or leave this one where it is"
        )
    if row.clocked:
        return _once(row, row.clocked.clocked_time, now, warn)
    if row.interval:
        length = timedelta(**{row.interval.period: row.interval.every})
        if row.one_off:
            begin = row.start_time or (row.last_run_at or row.date_changed) + length
            return _once(row, begin, now, warn)
        return celery_entry.when(row.interval.schedule, warn)
    if row.crontab:
        found = celery_entry.when(_crontab(row), warn)
        return _first_alone(row, found, now, warn) if row.one_off else dict(found)
    raise Refused("it has no schedule")


def _crontab(row: Any) -> Any:
    try:
        return row.crontab.schedule
    except Exception as error:
        # Celery's ParseException is an Exception and nothing more.
        if not isinstance(error, ValueError) and type(error).__name__ != "ParseException":
            raise
        raise Refused(f"Celery itself cannot read its crontab ({row.crontab}): {error}") from None


def _first_alone(row: Any, found: dict[str, str], now: datetime, warn: Warn) -> dict[str, Any]:
    """One-off: of a crontab the next occurrence, and no other."""
    schedule = parse_schedule(found["schedule"], found["timezone"])
    first = Timetable(schedule, row.start_time).first_after(now)
    if first is None:
        raise Left("it has no occurrence to come")
    return _once(row, first, now, warn)


def _once(row: Any, at: datetime, now: datetime, warn: Warn) -> dict[str, Any]:
    if row.total_run_count or not row.enabled:
        raise Left("it was to run once, and has done so or was switched off")
    if at <= now:
        raise Refused(
            f"it was to run once, at {at.astimezone(UTC).isoformat()}, which has passed, and it has not run: run it by hand, or give it "
            "another time"
        )
    return {"schedule": once_text(at, warn), "timezone": "UTC", "starts_at": None}
