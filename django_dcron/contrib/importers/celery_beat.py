"""Import from django-celery-beat: the rows of ``PeriodicTask`` and their schedules."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from django.db import transaction

from django_dcron.contrib.importers import celery_entry, celery_task
from django_dcron.contrib.importers.schedule_fields import (
    check_not_over,
    iso_in_site_zone,
    next_due,
    one_off_schedule,
)
from django_dcron.contrib.importers.source_contents import (
    LAST_RUN,
    NEXT_DUE,
    EntryOmitted,
    EntryRefused,
    RowReader,
    SourceContents,
    SourceRuns,
    Warn,
    read_rows,
    rows_of,
    translate_entry,
)
from django_dcron.schedules.schedule import parse_schedule
from django_dcron.schedules.timetable import Timetable

SOURCE = "django-celery-beat"
SECOND = timedelta(seconds=1)
WAS_DISABLED = "was disabled in django-celery-beat"
KINDS = ("interval", "crontab", "solar", "clocked")


def read(now: datetime) -> SourceContents:
    rows = _rows().select_related(*KINDS).order_by("name")
    return SourceContents(
        [
            translate_entry(
                _origin(name), name, partial(_job, row, now), key=str(key), disabled=not enabled
            )
            for key, name, enabled, row in read_rows(rows, "name", "enabled")
        ],
        source=SOURCE,
    )


def runs_since(since: datetime) -> SourceRuns:
    """Return the latest run of each row. Beat may write it up to three minutes later."""
    latest = _rows().filter(last_run_at__gte=since).values_list("name", "last_run_at")
    return SourceRuns({_origin(name): [at] for name, at in latest}, complete=False)


def entries_by_task() -> dict[str, set[str]]:
    """Return the keys of all rows by task.

    Disabled rows are included, because beat may have sent their tasks before they were disabled.
    """
    keys = defaultdict(set)
    for key, task in _rows().values_list("pk", "task"):
        keys[task].add(str(key))
    return keys


def hand_back(ran_until: Mapping[str, datetime | None]) -> set[str]:
    """Set beat's last runs by key, so that it doesn't send occurrences that ran here.

    If beat's last run is later, it is kept. Beat counts from the last change of a row that never
    ran, unless the row has a start: then it is due at its start. Returns the keys of the rows that
    exist.
    """
    rows = _rows()
    with transaction.atomic(using=rows.db):
        found = {str(row.pk): row for row in rows.select_for_update().filter(pk__in=[*ran_until])}
        earlier = []
        for key, row in found.items():
            at = ran_until[key]
            start = row.start_time
            known = row.last_run_at or (start - SECOND if start else row.date_changed)
            # The import rounds the start of an interval up to a whole second. Without a run here,
            # ``at`` is therefore up to a second later than the row's last run.
            if at is not None and at - known >= SECOND:
                row.last_run_at = at
                earlier.append(row)
        if earlier:
            rows.bulk_update(earlier, ["last_run_at"])
            rows_of("django_celery_beat", "PeriodicTasks", SOURCE).model.update_changed()
    return {*found}


def _rows() -> Any:
    return rows_of("django_celery_beat", "PeriodicTask", "django-celery-beat")


def _origin(name: str) -> str:
    return f"periodic task {name!r}"


def _job(get_row: RowReader, now: datetime, warn: Warn) -> dict[str, Any]:
    row = get_row()
    celery_entry.check_task(row.task)
    if row.expires and row.expires <= now:
        raise EntryOmitted(f"expired at {iso_in_site_zone(row.expires)}")
    expires = row.expires or row.expire_seconds
    values = {
        "description": row.description,
        "target": row.task,
        **celery_entry.argument_fields(_json(row, "args", "[]"), _json(row, "kwargs", "{}")),
        **celery_entry.option_fields(
            {
                "queue": row.queue,
                "exchange": row.exchange,
                "routing_key": row.routing_key,
                "priority": row.priority,
                "expires": expires,
                "headers": _json(row, "headers", "{}"),
            },
            warn,
        ),
        "starts_at": row.start_time,
        "enabled": row.enabled,
        "pause_reason": "" if row.enabled else WAS_DISABLED,
    }
    values |= celery_task.policy_fields(row.task, {"expires": expires}, warn)
    celery_task.warn_if_reads_beat_name(row.task, warn)
    values |= _schedule_fields(row, now, warn)
    if NEXT_DUE in values:
        values.pop("starts_at")
    values[LAST_RUN] = row.last_run_at or row.date_changed
    check_not_over(values, now)
    return values


def _json(row: Any, name: str, default: str) -> Any:
    try:
        return json.loads(getattr(row, name) or default)
    except ValueError as error:
        raise EntryRefused(f"{name}: {getattr(row, name)!r:.80} is not JSON ({error})") from None


def _schedule_fields(row: Any, now: datetime, warn: Warn) -> dict[str, Any]:
    if row.solar:
        raise EntryRefused(
            celery_entry.why_solar_refused(row.solar.event, row.solar.latitude, row.solar.longitude)
        )
    if row.clocked:
        return _one_off_values(row, row.clocked.clocked_time, now, warn)
    if row.interval:
        length = timedelta(**{row.interval.period: row.interval.every})
        if row.one_off:
            begin = row.start_time or (row.last_run_at or row.date_changed) + length
            return _one_off_values(row, begin, now, warn)
        return celery_entry.schedule_fields(row.interval.schedule, warn) | _phase(row, length, now)
    if row.crontab:
        fields = celery_entry.schedule_fields(_crontab(row), warn)
        return _next_occurrence_only(row, fields, now, warn) if row.one_off else dict(fields)
    raise EntryRefused("the entry has no schedule")


def _phase(row: Any, length: timedelta, now: datetime) -> dict[str, datetime]:
    """Return when beat would run the interval next.

    Beat runs a row that never ran at its start, or counts from the row's last change.
    """
    if row.start_time and row.start_time > now:
        return {}
    if row.start_time and row.last_run_at is None:
        return next_due(row.start_time - length, length, now)
    return next_due(row.last_run_at or row.date_changed, length, now)


def _crontab(row: Any) -> Any:
    try:
        return row.crontab.schedule
    except Exception as error:
        # Celery's ParseException derives directly from Exception.
        if not isinstance(error, ValueError) and type(error).__name__ != "ParseException":
            raise
        raise EntryRefused(f"Celery can't read the crontab ({row.crontab}): {error}") from None


def _next_occurrence_only(
    row: Any, fields: dict[str, str], now: datetime, warn: Warn
) -> dict[str, Any]:
    """Translate a one-off crontab: only the next occurrence after the row's last change runs.

    Otherwise, a repeated import would schedule a job again that has already run.
    """
    schedule = parse_schedule(fields["schedule"], fields["timezone"])
    first = Timetable(schedule, row.start_time).first_after(row.last_run_at or row.date_changed)
    if first is None:
        raise EntryOmitted("the schedule has no further occurrence")
    return _one_off_values(row, first, now, warn)


def _one_off_values(row: Any, at: datetime, now: datetime, warn: Warn) -> dict[str, Any]:
    if row.total_run_count or not row.enabled:
        raise EntryOmitted("a one-off task that has already run or is disabled")
    return {**one_off_schedule(at, now, warn), "starts_at": None}
