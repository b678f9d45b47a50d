"""Translate what all Celery schedulers share: Celery's schedule objects, arguments and options.

All fields of Celery's crontab must match, including day of month and day of week. Celery expands
wrapping ranges (``fri-mon``), full names (``monday``) and steps itself. Therefore, this module
translates the resulting sets and not the text.
"""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from typing import Any

from django_dcron.contrib.importers.celery_task import LIMITS, expiry_fields
from django_dcron.contrib.importers.cron_text import CronPart, CronParts, cron_text
from django_dcron.contrib.importers.schedule_fields import interval_fields, next_due, zone_name
from django_dcron.contrib.importers.source_contents import (
    EntryOmitted,
    EntryRefused,
    Warn,
    check_json,
)

HIGHEST_PRIORITY = 9
RELATIVE = {
    timedelta(days=1): "0 0 * * *",
    timedelta(hours=1): "0 * * * *",
    timedelta(minutes=1): "* * * * *",
}
"""Cron text of relative intervals, whose runs Celery rounds to the full day, hour or minute."""
NO_HOUSEKEEPING = (
    "a job can't run Celery's built-in tasks; for celery.backend_cleanup, declare a job that calls "
    "celery.current_app.backend.cleanup()"
)


def check_task(task: str) -> None:
    """Raise ``EntryOmitted`` for Celery's own tasks, which aren't targets."""
    if task.startswith("celery."):
        raise EntryOmitted(NO_HOUSEKEEPING)


def why_solar_refused(event: str, latitude: Any, longitude: Any) -> str:
    """Return why a solar schedule is refused."""
    return (
        f"solar schedules are not supported ({event} at {latitude}, {longitude}); run a job every "
        "few minutes and let its code check the position of the sun"
    )


def is_crontab(schedule: Any) -> bool:
    return hasattr(schedule, "month_of_year")


def schedule_fields(schedule: Any, warn: Warn) -> dict[str, str]:
    """Return the fields ``schedule`` and ``timezone`` for an interval or a crontab of Celery."""
    if is_crontab(schedule):
        return {"schedule": crontab_text(schedule), "timezone": zone_name(schedule.tz)}
    if not hasattr(schedule, "run_every"):
        raise EntryRefused(
            f"the schedule type {type(schedule).__name__} is not supported ({schedule!r:.200})"
        )
    if schedule.relative and schedule.run_every in RELATIVE:
        return {"schedule": RELATIVE[schedule.run_every], "timezone": zone_name(schedule.tz)}
    if schedule.relative:
        warn(
            "a relative schedule is rounded to full intervals, but an imported interval "
            "counts from the import; consider a cron schedule"
        )
    return interval_fields(schedule.run_every)


def next_due_of_entry(schedule: Any, last: datetime | None, now: datetime) -> dict[str, datetime]:
    """Return ``NEXT_DUE`` for an interval that keeps the phase of its last run."""
    if is_crontab(schedule) or not hasattr(schedule, "run_every"):
        return {}
    return next_due(last, schedule.run_every, now)


def crontab_text(crontab: Any) -> str:
    def part(name: str) -> CronPart:
        written = getattr(crontab, f"_orig_{name}")
        return CronPart(
            getattr(crontab, name), str(written) if isinstance(written, str | int) else ""
        )

    return cron_text(
        CronParts(
            minute=part("minute"),
            hour=part("hour"),
            day_of_month=part("day_of_month"),
            month=part("month_of_year"),
            day_of_week=part("day_of_week"),
        )
    )


def argument_fields(args: Any, kwargs: Any) -> dict[str, Any]:
    """Check arguments, and return them as fields. Like beat, read empty values as no arguments."""
    args, kwargs = check_json("args", args or []), check_json("kwargs", kwargs or {})
    for name, value, kind in (("args", args, list), ("kwargs", kwargs, dict)):
        if not isinstance(value, kind):
            allowed = "list" if kind is list else "object"
            raise EntryRefused(f"{name}: {json.dumps(value):.80} is not a JSON {allowed}")
        if marked := _marked_type(value):
            raise EntryRefused(
                f"{name}: JSON has no {marked} values; change the task to accept text, and "
                "pass text"
            )
    return {"args": args, "kwargs": kwargs}


def _marked_type(value: Any) -> str:
    """Return the type that kombu or RedBeat would decode ``value`` to, or an empty text."""
    if isinstance(value, dict):
        if "__type__" in value:
            return str(value["__type__"])
        value = list(value.values())
    if isinstance(value, list):
        return next(filter(None, map(_marked_type, value)), "")
    return ""


def option_fields(values: dict[str, Any], warn: Warn) -> dict[str, Any]:
    """Translate the options queue, priority and expires of ``apply_async``.

    A warning names any other option. An exchange or routing key without a queue is refused.
    """
    queue = values.get("queue") or ""
    routed = {name: values[name] for name in ("exchange", "routing_key") if values.get(name)}
    text = ", ".join(f"{name} {value!r}" for name, value in routed.items())
    if routed and not queue:
        raise EntryRefused(
            f"the entry is routed by {text}, but a job needs a queue; set the entry's queue "
            "to the one that this routes to"
        )
    if routed:
        warn(f"{text} is ignored, because a job goes to its queue, {queue!r}")
    if headers := values.get("headers"):
        warn(f"headers have no equivalent and are ignored: {', '.join(sorted(map(str, headers)))}")
    known = {"queue", "exchange", "routing_key", "priority", "expires", "headers", *LIMITS}
    if others := sorted(
        name for name, value in values.items() if name not in known and value is not None
    ):
        warn(f"options without an equivalent are ignored: {', '.join(others)}")
    return {
        "queue": str(queue),
        "priority": _priority(values.get("priority"), warn),
        **expiry_fields(values.get("expires")),
    }


def _priority(priority: Any, warn: Warn) -> int | None:
    if priority is None:
        return None
    if isinstance(priority, bool) or not isinstance(priority, int) or priority < 0:
        raise EntryRefused(f"priority: {priority!r} is not a whole number of at least 0")
    if priority > HIGHEST_PRIORITY:
        warn(f"priority {priority} is reduced to {HIGHEST_PRIORITY}, the highest possible")
    return min(priority, HIGHEST_PRIORITY)
