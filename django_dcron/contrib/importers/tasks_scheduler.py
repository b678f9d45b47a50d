"""Import from django-tasks-scheduler: the rows of ``Task``.

Cron texts are croniter's, in UTC. An interval keeps its phase: a run that is late, or takes longer
than the interval, moves the next one by whole intervals.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from functools import partial
from importlib import import_module
from typing import Any

from django.conf import settings

from django_dcron.contrib.importers.croniter_text import from_croniter
from django_dcron.contrib.importers.schedule_fields import (
    LONG_INTERVAL,
    interval_fields,
    one_off_schedule,
    whole_second,
)
from django_dcron.contrib.importers.source_contents import (
    LAST_RUN,
    NEXT_DUE,
    EntryOmitted,
    EntryRefused,
    RowReader,
    SourceContents,
    SourceProblem,
    SourceRuns,
    Warn,
    check_json,
    read_rows,
    rows_of,
    translate_entry,
    warn_about_workers,
)
from django_dcron.utils.docs_links import ALERTS_PAGE, with_link

SOURCE = "django-tasks-scheduler"
WAS_DISABLED = "was disabled in django-tasks-scheduler"
VALUES: Mapping[str, Callable[[str], Any]] = {
    "str": str,
    "int": int,
    "float": float,
    "bool": lambda text: text.lower() == "true",
    "json": json.loads,
}
"""The reader of each argument type that JSON can represent."""
HINTS = {
    "callable": "the function is called at each run; call it in the task instead",
    "datetime": "JSON has no times; change the task to accept text, and pass text",
}


def read(now: datetime) -> SourceContents:
    rows = rows_of("scheduler", "Task", SOURCE).order_by("name")
    rows = rows.prefetch_related("callable_args", "callable_kwargs")
    contents = SourceContents(
        [
            translate_entry(
                f"task {name!r}", name, partial(_job, row, now), key=str(key), disabled=not enabled
            )
            for key, name, enabled, row in read_rows(rows, "name", "enabled")
        ],
        source=SOURCE,
    )
    if contents.entries:
        contents.notes.append(
            with_link(
                f"{SOURCE} mails the ADMINS about each failed task. Use alerts instead.",
                ALERTS_PAGE,
            )
        )
    return contents


def runs_since(since: datetime) -> SourceRuns:
    """Raise ``SourceProblem``: the rows store only when the latest run ended."""
    raise SourceProblem(
        f"{SOURCE} stores when a run ended, not when it was due, so there is nothing to compare."
    )


def _job(get_row: RowReader, now: datetime, warn: Warn) -> dict[str, Any]:
    row = get_row()
    if row.queue != "default":
        warn_about_workers("queue", row.queue, warn)
    if row.at_front:
        warn("at_front has no equivalent; set the job's priority or queue")
    if row.result_ttl is not None:
        warn(f"result_ttl {row.result_ttl} has no equivalent; set how long the job keeps runs")
    return {
        "target": row.callable,
        "args": check_json("args", [_value(each) for each in row.callable_args.all()]),
        "kwargs": check_json(
            "kwargs", {each.key: _value(each) for each in row.callable_kwargs.all()}
        ),
        "timeout": _timeout(row.timeout),
        "enabled": row.enabled,
        "pause_reason": "" if row.enabled else WAS_DISABLED,
        **_schedule_fields(row, now, warn),
        LAST_RUN: max(filter(None, (row.last_successful_run, row.last_failed_run)), default=None),
    }


def _value(argument: Any) -> Any:
    """Return an argument without calling anything. Raises ``EntryRefused``."""
    kind, text = argument.arg_type, argument.val
    if kind not in VALUES:
        hint = HINTS.get(kind, f"allowed: {', '.join(VALUES)}")
        raise EntryRefused(f"the argument {text!r:.80} has the type {kind!r:.20}, but {hint}")
    try:
        return VALUES[kind](text)
    except (ValueError, RecursionError) as error:
        raise EntryRefused(
            f"the argument {text!r:.80} is not of the type {kind} ({error})"
        ) from None


def _timeout(seconds: int | None) -> timedelta | None:
    """Return the timeout. -1 means none. A task without a value has the scheduler's default."""
    if not seconds:
        seconds = import_module("scheduler.settings").SCHEDULER_CONFIG.DEFAULT_JOB_TIMEOUT
    return timedelta(seconds=seconds) if seconds > 0 else None


def _schedule_fields(row: Any, now: datetime, warn: Warn) -> dict[str, Any]:
    if row.task_type == "OnceTaskType":
        return _one_off_values(row, now, warn)
    if row.task_type == "RepeatableTaskType":
        return _interval_values(row, now)
    if row.task_type == "CronTaskType":
        zone = "UTC" if settings.USE_TZ else settings.TIME_ZONE
        schedule = from_croniter(row.cron_string or "")
        return {"schedule": schedule, "timezone": zone, "starts_at": None, "ends_at": None}
    raise EntryRefused(f"unknown task type {row.task_type!r:.40}")


def _one_off_values(row: Any, now: datetime, warn: Warn) -> dict[str, Any]:
    if row.successful_runs or row.failed_runs:
        raise EntryOmitted("a one-off task that has already run")
    if row.scheduled_time is None:
        raise EntryOmitted("a one-off task without a time")
    schedule = one_off_schedule(row.scheduled_time, now, warn)
    return {**schedule, "starts_at": None, "ends_at": None}


def _interval_values(row: Any, now: datetime) -> dict[str, Any]:
    """Return the interval, from its next time on.

    ``repeat`` is the number of runs after the one at ``scheduled_time``.
    """
    if row.interval is None or row.interval_unit is None:
        raise EntryRefused("the task has no interval")
    length = timedelta(**{row.interval_unit: row.interval})
    fields: dict[str, Any] = {**interval_fields(length), "ends_at": None}
    first = row.scheduled_time
    if first is None:
        if row.repeat is not None:
            raise EntryRefused(
                "the task has no scheduled time, so the end of its repeats is unknown"
            )
        return fields | {"starts_at": None}
    due = first if first >= now else first - (first - now) // length * length
    if row.repeat is None:
        keeps_phase = length >= LONG_INTERVAL
        return fields | ({NEXT_DUE: whole_second(due)} if keeps_phase else {"starts_at": None})
    last = first + row.repeat * length
    if due > last:
        raise EntryOmitted("the task has no repeats left")
    # The start doesn't depend on ``now``, so a repeated import changes nothing.
    return fields | {"starts_at": whole_second(first), "ends_at": whole_second(last)}
