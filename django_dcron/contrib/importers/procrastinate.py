"""Import from procrastinate: the periodic tasks of its Django app, or of another app.

Procrastinate computes the times of a cron text with croniter from timestamps, so they are in UTC.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from django.conf import settings

from django_dcron.contrib.importers import functions
from django_dcron.contrib.importers.croniter_text import from_croniter
from django_dcron.contrib.importers.retries import (
    HIGHEST_FACTOR,
    LONGEST_CONSTANT,
    constant_wait_fields,
    exponential_wait_fields,
    max_attempts_of,
)
from django_dcron.contrib.importers.source_contents import (
    LAST_RUN,
    EntryOmitted,
    EntryRefused,
    SourceContents,
    SourceRuns,
    Warn,
    check_json,
    rows_of,
    translate_entry,
    warn_about_workers,
)
from django_dcron.policies.retry import exception_name

SOURCE = "procrastinate"
DJANGO = "procrastinate.contrib.django"
OWN_TASKS = "procrastinate.builtin_tasks"
TIMESTAMP = "timestamp"
"""The argument that procrastinate adds: the scheduled time."""
SCHEDULED_AT = "django_dcron.current_run().scheduled_at"
Key = tuple[str, str]
"""The name of a task, and the ``periodic_id`` that distinguishes its schedules."""


def read(now: datetime, app: str = "") -> SourceContents:
    """Read all periodic tasks. Raises ``SourceProblem``.

    ``app``: the dotted path of a procrastinate app. Empty: the one of
    ``procrastinate.contrib.django``.
    """
    if app:
        procrastinate_app = functions.import_instance(
            app, "periodic_registry", "perform_import_paths"
        )
    else:
        procrastinate_app = functions.import_app_instance(
            DJANGO, "app", "procrastinate app", "shop.queue.app"
        )
    functions.load_tasks(procrastinate_app.perform_import_paths, "procrastinate's import paths")
    latest = {} if app else _latest(_defers())
    tasks: Mapping[Key, Any] = procrastinate_app.periodic_registry.periodic_tasks
    return SourceContents(
        [
            translate_entry(
                _origin(key), _name(key), partial(_job, task, latest.get(key)), key=_name(key)
            )
            for key, task in tasks.items()
        ],
        source=f"{SOURCE} {app}" if app else SOURCE,
    )


def runs_since(since: datetime) -> SourceRuns:
    """Return the latest scheduled time of each task of the Django app."""
    latest = _latest(_defers().filter(defer_timestamp__gte=since.timestamp()))
    return SourceRuns({_origin(key): [at] for key, at in latest.items()}, complete=False)


def _defers() -> Any:
    """Return the rows that store the latest scheduled time of each task."""
    rows = rows_of(DJANGO, "ProcrastinatePeriodicDefer", SOURCE, label=SOURCE)
    return rows.using(getattr(settings, "PROCRASTINATE_DATABASE_ALIAS", "default"))


def _latest(rows: Any) -> dict[Key, datetime]:
    latest: dict[Key, datetime] = {}
    for task, periodic_id, timestamp in rows.order_by("defer_timestamp").values_list(
        "task_name", "periodic_id", "defer_timestamp"
    ):
        if timestamp is not None:
            latest[task, periodic_id] = datetime.fromtimestamp(timestamp, UTC)
    return latest


def _name(key: Key) -> str:
    return " ".join(filter(None, key))


def _origin(key: Key) -> str:
    return f"periodic task {_name(key)!r}"


def _job(periodic: Any, last_run: datetime | None, warn: Warn) -> dict[str, Any]:
    task, options = periodic.task, periodic.configure_kwargs
    if task.func.__module__ == OWN_TASKS:
        raise EntryOmitted("a job can't run procrastinate's own tasks; keep it in procrastinate")
    for name in ("schedule_at", "schedule_in"):
        if options.get(name) is not None:
            raise EntryRefused(
                f"{name} ({options[name]!s:.60}) delays each run, and a job has no such delay; "
                "choose a schedule with the later time"
            )
    if task.pass_context:
        functions.check_injected(task.func, "", "django_dcron.current_run()", warn)
    functions.check_injected(task.func, TIMESTAMP, SCHEDULED_AT, warn)
    _warn_of_options(task, options, warn)
    kwargs = dict(options.get("task_kwargs") or {})
    kwargs.pop(TIMESTAMP, None)
    return {
        "target": functions.target_of(task.func),
        "args": [],
        "kwargs": check_json("kwargs", kwargs),
        **_retries(task.retry_strategy, warn),
        "schedule": from_croniter(periodic.cron),
        "timezone": "UTC",
        "enabled": True,
        "pause_reason": "",
        LAST_RUN: last_run,
    }


def _warn_of_options(task: Any, options: Mapping[str, Any], warn: Warn) -> None:
    values = {
        name: options.get(name) if options.get(name) is not None else getattr(task, name)
        for name in ("queue", "priority", "lock", "queueing_lock")
    }
    if values["queue"] != "default":
        warn_about_workers("queue", str(values["queue"]), warn)
    if values["priority"]:
        warn(f"priority {values['priority']} has no equivalent; set the job's priority or queue")
    for name in ("lock", "queueing_lock"):
        if values[name]:
            warn(
                f"{name} {values[name]!r} has no equivalent; the overlap policy applies to the "
                "runs of one job, so use a lock in the code if other jobs share it"
            )
    if others := [
        getattr(each, "__name__", repr(each)) for each in getattr(task, "task_middleware", ())
    ]:
        warn(f"middleware isn't called: {', '.join(others)}; call it in the function")


def _retries(strategy: Any, warn: Warn) -> dict[str, Any]:
    if strategy is None:
        return {}
    kind = type(strategy)
    if (kind.__module__, kind.__name__) != ("procrastinate.retry", "RetryStrategy"):
        warn(f"the retry strategy {kind.__name__} is the project's own; set the job's retries")
        return {}
    if (strategy.max_attempts or 0) < 0:
        return {}  # procrastinate never retries
    # Procrastinate's max_attempts counts the retries. 0 means no limit, like None.
    attempts = max_attempts_of(strategy.max_attempts or None, "max_attempts", warn)
    names = sorted(map(exception_name, strategy.retry_exceptions or ()))
    return {
        "max_attempts": attempts,
        **_waits(strategy, attempts, warn),
        "retry_on": [] if "Exception" in names else names,
        "never_retry_on": [],
    }


def _waits(strategy: Any, attempts: int, warn: Warn) -> dict[str, Any]:
    waits = [
        strategy.wait + strategy.linear_wait * number + strategy.exponential_wait ** (number + 1)
        for number in range(attempts - 1)
    ]
    factor = strategy.exponential_wait
    if all(wait == waits[0] for wait in waits):
        return constant_wait_fields(timedelta(seconds=waits[0]))
    if not strategy.wait and not strategy.linear_wait and 1 < factor <= HIGHEST_FACTOR:
        return exponential_wait_fields(timedelta(seconds=factor), float(factor), attempts)
    wait = min(max(waits), LONGEST_CONSTANT)
    warn(
        f"the waits between retries ({waits[0]} s, {waits[1]} s, ...) have no equivalent; each "
        f"wait is {wait} s, and retry_backoff changes it"
    )
    return constant_wait_fields(timedelta(seconds=wait))
