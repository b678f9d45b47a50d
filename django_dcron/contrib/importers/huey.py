"""Import from Huey: the periodic tasks of ``huey.contrib.djhuey``, or of another Huey instance.

Huey stores a schedule as a function that returns whether a minute matches. The function of Huey's
own ``crontab`` encloses the values of the five fields, all of which must match. The values are
read, and nothing is called.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any
from zoneinfo import ZoneInfo

from django.conf import settings

from django_dcron.contrib.importers import functions
from django_dcron.contrib.importers.cron_text import CronPart, CronParts, cron_text
from django_dcron.contrib.importers.retries import (
    HIGHEST_FACTOR,
    constant_wait_fields,
    exponential_wait_fields,
    max_attempts_of,
)
from django_dcron.contrib.importers.schedule_fields import iso_in_site_zone
from django_dcron.contrib.importers.source_contents import (
    EntryOmitted,
    EntryRefused,
    PendingAction,
    SourceContents,
    SourceProblem,
    SourceRuns,
    Warn,
    translate_entry,
)
from django_dcron.db.errors import in_one_line
from django_dcron.utils.untrusted import Reader, Unreadable

SOURCE = "huey"
DJANGO = "huey.contrib.djhuey"
OWN_ATTRIBUTES = frozenset(
    {
        "context",
        "default_expires",
        "default_priority",
        "default_retries",
        "default_retry_backoff",
        "default_retry_delay",
        "default_timeout",
        "execute",
        "validate_datetime",
    }
)
"""The attributes of a task's class that Huey sets. Others are the project's."""
EXCEPTIONS = {
    "CancelExecution": "django_dcron.PermanentFailure",
    "RetryTask": "django_dcron.RetryLater",
}
"""Maps exceptions that Huey handles to those that a job raises instead."""
WAS_REVOKED = "was revoked in Huey"


@dataclass(frozen=True, slots=True)
class Revocation:
    """The stored revocation of a task."""

    until: datetime | None
    """When the task runs again. None: never, unless ``once``."""
    once: bool
    """Whether the task skips only its next run."""


def read(now: datetime, app: str = "") -> SourceContents:
    """Read all periodic tasks. Raises ``SourceProblem``.

    ``app``: the dotted path of a Huey instance. Empty: the one of ``huey.contrib.djhuey``.
    """
    if app:
        huey = functions.import_instance(app, "_registry", "storage", "utc")
    else:
        huey = functions.import_app_instance(DJANGO, "HUEY", "Huey instance", "shop.queue.huey")
    contents = SourceContents(source=f"{SOURCE} {app}" if app else SOURCE)
    tasks = {huey._registry.task_to_string(each): each for each in _tasks(huey)}
    revoked = _revoked(huey, tasks, contents.notes)
    zone = "UTC" if huey.utc else settings.TIME_ZONE
    contents.entries = [
        translate_entry(
            _origin(key),
            key,
            partial(_job, task, zone, revoked.get(key), now),
            key=key,
            disabled=_is_revoked(revoked.get(key), now),
        )
        for key, task in tasks.items()
    ]
    if hooks := _hooks(huey):
        contents.notes.append(
            f"Huey's hooks and signal handlers aren't called for jobs: {', '.join(hooks)}."
        )
    return contents


def runs_since(since: datetime) -> SourceRuns:
    """Raise ``SourceProblem``: Huey doesn't store when it ran a task."""
    raise SourceProblem("Huey stores no runs of periodic tasks, so there is nothing to compare.")


def _tasks(huey: Any) -> list[type]:
    return list(huey._registry._periodic_tasks)


def _origin(key: str) -> str:
    return f"periodic task {key!r}"


def _hooks(huey: Any) -> list[str]:
    handlers = [each for handlers in huey._signal.receivers.values() for each in handlers]
    names = [getattr(each, "__name__", repr(each)) for each in handlers]
    return sorted({*map(str, huey._pre_execute), *map(str, huey._post_execute), *names})


def _job(
    task: Any, zone: str, revoked: Revocation | None, now: datetime, warn: Warn
) -> dict[str, Any]:
    function = _enclosed(task.execute).get("func")
    if function is None:
        raise EntryRefused("its function can't be read; run it as a Celery task")
    if task.context:
        functions.check_injected(function, "task", "django_dcron.current_run()", warn)
    if priority := getattr(task, "default_priority", None):
        warn(f"priority {priority} has no equivalent; set the job's priority or queue")
    if exceptions := sorted(EXCEPTIONS.keys() & _names_used_by(function)):
        instead = ", ".join(EXCEPTIONS[name] for name in exceptions)
        warn(f"{', '.join(exceptions)} has no effect in a job; raise {instead} instead")
    if others := sorted(
        name for name in vars(task) if not name.startswith("__") and name not in OWN_ATTRIBUTES
    ):
        warn(f"settings without an equivalent are ignored: {', '.join(others)}")
    reason = _pause_reason(revoked, now, warn)
    return {
        "target": functions.target_of(function),
        "args": [],
        "kwargs": {},
        "starts_at": None,
        **_expiry(getattr(task, "default_expires", None), now),
        **_retries(task, warn),
        **_timeout(getattr(task, "default_timeout", None)),
        "schedule": _schedule(task),
        "timezone": zone,
        "enabled": not reason,
        "pause_reason": reason,
    }


def _names_used_by(function: Any) -> set[str]:
    return set(getattr(getattr(inspect.unwrap(function), "__code__", None), "co_names", ()))


def _schedule(task: Any) -> str:
    validator = _enclosed(task.validate_datetime).get("validate_datetime")
    fields = _enclosed(validator).get("cron_settings")
    if getattr(validator, "__module__", "") != "huey.api" or not fields:
        name = getattr(validator, "__qualname__", validator)
        raise EntryRefused(
            f"the schedule is a function of the project ({name}); "
            "use a cron schedule, or a job that runs often and checks in its code whether to work"
        )
    month, day, weekday, hour, minute = fields
    return cron_text(
        CronParts(
            minute=CronPart(minute),
            hour=CronPart(hour),
            day_of_month=CronPart(day),
            month=CronPart(month),
            day_of_week=CronPart({number % 7 for number in weekday}),
        )
    )


def _enclosed(function: Any) -> Mapping[str, Any]:
    """Return the variables that a function encloses. Empty for other objects."""
    return inspect.getclosurevars(function).nonlocals if inspect.isfunction(function) else {}


def _expiry(expires: Any, now: datetime) -> dict[str, Any]:
    """Translate ``expires``: a time ends the schedule, a duration limits late starts."""
    if not expires:
        return {"ends_at": None, "start_deadline": None}
    if isinstance(expires, datetime):  # Huey reads a naive one in local time
        zone = ZoneInfo(settings.TIME_ZONE)
        aware = expires if expires.tzinfo else expires.replace(tzinfo=zone)
        if aware <= now:
            raise EntryOmitted(f"expired at {iso_in_site_zone(aware)}")
        return {"ends_at": aware, "start_deadline": None}
    if not isinstance(expires, timedelta):
        expires = timedelta(seconds=expires)
    return {"ends_at": None, "start_deadline": expires}


def _retries(task: Any, warn: Warn) -> dict[str, Any]:
    if not task.default_retries:
        return {}
    attempts = max_attempts_of(task.default_retries, "retries", warn)
    delay = timedelta(seconds=task.default_retry_delay or 0)
    factor = float(getattr(task, "default_retry_backoff", 0) or 1)
    if not 1 <= factor <= HIGHEST_FACTOR:
        raise EntryRefused(
            f"retry_backoff {factor:g} is not supported (allowed: 1 to {HIGHEST_FACTOR:g})"
        )
    waits = (
        constant_wait_fields(delay)
        if factor == 1
        else exponential_wait_fields(delay, factor, attempts)
    )
    return {"max_attempts": attempts, **waits, "retry_on": [], "never_retry_on": []}


def _timeout(seconds: Any) -> dict[str, Any]:
    return {"timeout": timedelta(seconds=seconds)} if seconds else {}


def _is_revoked(revoked: Revocation | None, now: datetime) -> bool:
    """Return whether the task doesn't run now. A revocation of its next run doesn't count."""
    return (
        revoked is not None and not revoked.once and (revoked.until is None or revoked.until > now)
    )


def _pause_reason(revoked: Revocation | None, now: datetime, warn: Warn) -> str:
    if revoked is None:
        return ""
    if revoked.once:
        warn(
            PendingAction(
                "its next run is revoked in Huey, but the job runs; to skip it, pause the job"
            )
        )
        return ""
    if not _is_revoked(revoked, now):
        return ""
    if revoked.until is None:
        return WAS_REVOKED
    return f"{WAS_REVOKED} until {iso_in_site_zone(revoked.until, 'auto')}"


def _revoked(huey: Any, tasks: Mapping[str, Any], notes: list[str]) -> dict[str, Revocation]:
    """Return the revoked tasks. Add a note if Huey's storage can't be read."""
    revocations = {}
    try:
        with Reader() as reader:
            for key in tasks:
                # If nothing is stored, Huey returns a marker class.
                stored = huey.storage.peek_data(f"rt:{key}")
                if isinstance(stored, bytes | memoryview):
                    revocations[key] = _read_revocation(huey, bytes(stored), reader)
    except Exception as error:  # the storage's client may raise anything
        notes.append(
            f"Huey's storage can't be read ({in_one_line(error)}). Revoked tasks are imported "
            "as active jobs. Pause these jobs."
        )
    return revocations


def _read_revocation(huey: Any, stored: bytes, reader: Reader) -> Revocation:
    serializer = huey.serializer
    plain = type(serializer).__module__ == "huey.serializer" and not serializer.comp
    if not plain or type(serializer).__name__ != "Serializer":
        raise Unreadable("its serializer is not Huey's own")
    until, once = reader.read("pickle", stored)
    if until is not None:  # naive, in Huey's time zone
        zone = UTC if huey.utc else ZoneInfo(settings.TIME_ZONE)
        until = until.replace(tzinfo=zone)
    return Revocation(until, bool(once))
