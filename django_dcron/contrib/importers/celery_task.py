"""Translate the retries, time limits and expiry that a Celery task declares to fields of its job.

The retry policy of the job decides about retries, and Celery doesn't. If a task declares none of
these options, the import doesn't set the fields.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from inspect import unwrap
from types import CodeType
from typing import Any

from django_dcron import targets
from django_dcron.contrib.importers.retries import (
    backoff_fields,
    constant_wait_fields,
    max_attempts_of,
)
from django_dcron.contrib.importers.source_contents import EntryRefused, Warn
from django_dcron.policies.retry import exception_name
from django_dcron.schedules.timetable import END, MICROSECOND
from django_dcron.targets.registry import is_known

LIMITS = ("soft_time_limit", "time_limit")
BEAT_NAME = "periodic_task_name"
"""The attribute of a task's request that only django-celery-beat sets."""


def policy_fields(name: str, options: dict[str, Any], warn: Warn) -> dict[str, Any]:
    """Return the retry and timeout fields of the job, and those of the task's ``expires``.

    ``options`` of the entry override the task's time limits and ``expires``. For an unknown task,
    only ``options`` count. The import refuses such a task later.
    """
    task = _task_of(name)
    if rate := getattr(task, "rate_limit", None):
        warn(
            f"rate_limit {rate} is ignored, because it applies to each worker; to limit the starts "
            "of all workers together, create a limit with max_started and interval, and set it as "
            "the job's limit"
        )
    return {
        **_retries(task, warn),
        **_timeout(task, options, warn),
        **_expiry_of_task(task, options),
    }


def warn_if_reads_beat_name(name: str, warn: Warn) -> None:
    """Warn about a task that reads the name of its row, which only django-celery-beat sets."""
    if any(BEAT_NAME in (*code.co_names, *code.co_consts) for code in _code_of(_task_of(name))):
        warn(
            f"the task reads {BEAT_NAME}, which only django-celery-beat sets; use "
            "django_dcron.current_run().job.name instead, which differs from the row's name if "
            "the job was renamed"
        )


def _task_of(name: str) -> Any:
    return getattr(targets.get(name), "task", None) if is_known(name) else None


def _expiry_of_task(task: Any, options: dict[str, Any]) -> dict[str, Any]:
    """Translate the task's ``expires``, which Celery uses if the entry has none."""
    expires = getattr(task, "expires", None)
    if not expires or options.get("expires"):
        return {}
    if isinstance(expires, timedelta):
        expires = expires.total_seconds()
    return {name: value for name, value in expiry_fields(expires).items() if value is not None}


def _retries(task: Any, warn: Warn) -> dict[str, Any]:
    automatic = tuple(getattr(task, "autoretry_for", None) or ())
    if not automatic and not _calls_retry(task):
        return {}
    retry_options: dict[str, Any] = getattr(task, "retry_kwargs", None) or {}
    max_retries = retry_options.get("max_retries", task.max_retries)
    values = {
        "max_attempts": max_attempts_of(max_retries, "max_retries", warn),
        **_waits(task, retry_options, automatic=bool(automatic)),
    }
    if automatic:
        all_exceptions = any(issubclass(Exception, error) for error in automatic)
        values["retry_on"] = [] if all_exceptions else _names(automatic)
        values["never_retry_on"] = _names(getattr(task, "dont_autoretry_for", None) or ())
        warn(
            "the task retries by itself (autoretry_for); while a run waits for its retry, the job "
            "skips further occurrences, which Celery would have run; to run them, set "
            "overlap_policy to queue_all or allow"
        )
    else:
        warn(
            "the task calls retry() itself, and the job retries after other exceptions, too; to "
            "limit them, set retry_on. A max_retries in the call isn't read: when the task runs, "
            "it can end a run before max_attempts, but not allow more attempts. While a run waits "
            "for its retry, the overlap policy decides about further occurrences"
        )
    return values


def _calls_retry(task: Any) -> bool:
    return any("retry" in code.co_names for code in _code_of(task))


def _code_of(task: Any) -> list[CodeType]:
    """Return the code of the task's function and of the functions in it. Empty if unknown."""
    run = getattr(task, "run", None)
    code = getattr(unwrap(run), "__code__", None) if callable(run) else None
    found = [code] if isinstance(code, CodeType) else []
    for each in found:
        found += [inner for inner in each.co_consts if isinstance(inner, CodeType)]
    return found


def _waits(task: Any, retry_options: dict[str, Any], *, automatic: bool) -> dict[str, Any]:
    """Return the backoff fields.

    With ``retry_jitter``, Celery waits for a random time from zero to the backoff. Half of the
    backoff with a jitter of 1 (plus or minus 100 %) gives the same range.
    """
    seconds = getattr(task, "retry_backoff", False) if automatic else False
    if not seconds:
        countdown = retry_options.get("countdown", task.default_retry_delay) or 0
        return constant_wait_fields(timedelta(seconds=countdown))
    jitter = bool(getattr(task, "retry_jitter", True))
    first = timedelta(seconds=max(1, int(seconds)))
    longest = timedelta(seconds=getattr(task, "retry_backoff_max", 600))
    return backoff_fields(first / (1 + jitter), 2.0, longest / (1 + jitter), float(jitter))


def _names(errors: Any) -> list[str]:
    return sorted(map(exception_name, errors))


def _timeout(task: Any, options: dict[str, Any], warn: Warn) -> dict[str, Any]:
    """Return the timeout: the soft limit, else the hard one.

    A limit in the entry's ``options`` overrides the same limit of the task.
    """
    limits = {}
    for name in LIMITS:
        limit = options.get(name) or getattr(task, name, None)
        if limit is None or limit == 0:
            continue
        if isinstance(limit, bool) or not isinstance(limit, int | float) or limit < 1:
            raise EntryRefused(f"{name}: {limit!r:.40} is not a number of seconds of at least 1")
        limits[name] = limit
    if not limits:
        return {}
    if len(limits) > 1:
        warn(
            f"time_limit {limits['time_limit']} is ignored because soft_time_limit is the job's "
            "timeout; a run is stopped soon after it"
        )
    return {
        "timeout": timedelta(seconds=limits.get("soft_time_limit", limits.get("time_limit", 0)))
    }


def expiry_fields(expires: Any) -> dict[str, Any]:
    """Translate ``expires``: a time ends the schedule, a number of seconds limits late starts."""
    if isinstance(expires, datetime):
        aware = expires if expires.tzinfo else expires.replace(tzinfo=UTC)
        ends_at = aware - MICROSECOND if aware < END else None  # schedules end there anyway
        return {"ends_at": ends_at, "start_deadline": None}
    if expires is None or expires == 0:
        return {"ends_at": None, "start_deadline": None}
    if isinstance(expires, bool) or not isinstance(expires, int | float) or expires < 1:
        raise EntryRefused(
            f"expires: {expires!r} is neither a time nor a number of seconds of at least 1"
        )
    return {"ends_at": None, "start_deadline": timedelta(seconds=expires)}
