"""What the schedulers for Celery have in common: schedules as Celery's objects, arguments and options as JSON.

Celery's crontab wants all its fields to match, day of month and day of week too, and expands ranges that wrap (``fri-mon``), names in full
(``monday``) and steps by itself: what is translated are the sets it ends up with, not its text.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

from django_dcron.moving.cron_text import Part, Parts, cron_text
from django_dcron.moving.found import Left, Refused, Warn, interval_text, zone_name

HIGHEST_PRIORITY = 9
INSTANT = timedelta(microseconds=1)
NO_HOUSEKEEPING = (
    "it is Celery's own, which no job runs: let the old scheduler go on with it, or use a result backend that forgets by itself, as "
    "Redis does"
)


def check_task(task: str) -> None:
    """Celery's own tasks are no targets."""
    if task.startswith("celery."):
        raise Left(NO_HOUSEKEEPING)


def is_crontab(schedule: Any) -> bool:
    return hasattr(schedule, "month_of_year")


def when(schedule: Any, warn: Warn) -> dict[str, str]:
    """The fields ``schedule`` and ``timezone`` for an interval or a crontab of Celery."""
    if is_crontab(schedule):
        return {"schedule": crontab_text(schedule), "timezone": zone_name(schedule.tz)}
    if not hasattr(schedule, "run_every"):
        raise Refused(f"there is no schedule here like its {type(schedule).__name__} ({schedule!r:.200})")
    if schedule.relative:
        warn(
            "it is relative, which puts it on round times; here it counts from the moment it is imported: a cron schedule may suit"
        )
    return {"schedule": interval_text(schedule.run_every), "timezone": "UTC"}


def crontab_text(crontab: Any) -> str:
    def part(name: str) -> Part:
        written = getattr(crontab, f"_orig_{name}")
        return Part(getattr(crontab, name), str(written) if isinstance(written, str | int) else "")

    return cron_text(
        Parts(
            minute=part("minute"),
            hour=part("hour"),
            day_of_month=part("day_of_month"),
            month=part("month_of_year"),
            day_of_week=part("day_of_week"),
        )
    )


def arguments(args: Any, kwargs: Any) -> dict[str, Any]:
    """As JSON has read them."""
    for name, value, kind in (("args", args, list), ("kwargs", kwargs, dict)):
        if not isinstance(value, kind):
            allowed = "list" if kind is list else "object"
            raise Refused(f"{name}: {json.dumps(value):.80} is no JSON {allowed}")
        if marked := _marked(value):
            raise Refused(
                f"{name}: it holds a {marked}, which JSON has not; let the task take a text, and give it that"
            )
    return {"args": args, "kwargs": kwargs}


def _marked(value: Any) -> str:
    """What kombu or RedBeat would turn into an object when they read it; empty if nothing."""
    if isinstance(value, dict):
        if "__type__" in value:
            return str(value["__type__"])
        value = list(value.values())
    if isinstance(value, list):
        return next(filter(None, map(_marked, value)), "")
    return ""


def options(given: dict[str, Any], warn: Warn) -> dict[str, Any]:
    """Of ``apply_async``: queue, exchange, routing_key, priority, expires, headers; others have no equivalent."""
    queue = given.get("queue") or ""
    routed = {name: given[name] for name in ("exchange", "routing_key") if given.get(name)}
    said = ", ".join(f"{name} {value!r}" for name, value in routed.items())
    if routed and not queue:
        raise Refused(
            f"it is routed by {said}; a job names a queue: give the entry the queue that this leads to"
        )
    if routed:
        warn(f"{said} is left out: a job goes to its queue, {queue!r}")
    if headers := given.get("headers"):
        warn(f"its headers have no equivalent: {', '.join(sorted(map(str, headers)))}")
    known = {"queue", "exchange", "routing_key", "priority", "expires", "headers"}
    if others := sorted(name for name, value in given.items() if name not in known and value is not None):
        warn(f"these options have no equivalent: {', '.join(others)}")
    return {
        "queue": str(queue),
        "priority": _priority(given.get("priority"), warn),
        **_expiry(given.get("expires")),
    }


def _priority(priority: Any, warn: Warn) -> int | None:
    if priority is None:
        return None
    if isinstance(priority, bool) or not isinstance(priority, int) or priority < 0:
        raise Refused(f"priority: {priority!r} is no whole number from 0")
    if priority > HIGHEST_PRIORITY:
        warn(f"its priority of {priority} becomes {HIGHEST_PRIORITY}, the highest")
    return min(priority, HIGHEST_PRIORITY)


def _expiry(expires: Any) -> dict[str, Any]:
    """A time is the end of the schedule; a number of seconds, how late a run may start."""
    if isinstance(expires, datetime):
        aware = expires if expires.tzinfo else expires.replace(tzinfo=UTC)
        return {"ends_at": aware - INSTANT, "start_deadline": None}
    if expires is None or expires == 0:
        return {"ends_at": None, "start_deadline": None}
    if isinstance(expires, bool) or not isinstance(expires, int | float) or expires < 1:
        raise Refused(f"expires: {expires!r} is neither a time nor a number of seconds from 1")
    return {"ends_at": None, "start_deadline": timedelta(seconds=expires)}
