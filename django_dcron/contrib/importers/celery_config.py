"""Import from ``beat_schedule``, the static schedule in the configuration of the Celery app."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from django.apps import apps

from django_dcron.contrib.importers import celery_entry, celery_task
from django_dcron.contrib.importers.schedule_fields import (
    LONG_INTERVAL,
    check_not_over,
    iso_in_site_zone,
)
from django_dcron.contrib.importers.source_contents import (
    EntryOmitted,
    EntryRefused,
    SourceContents,
    SourceProblem,
    SourceRuns,
    Warn,
    translate_entry,
)
from django_dcron.db.errors import in_one_line
from django_dcron.dispatch import DispatchFailed, shared_dispatcher
from django_dcron.dispatch.base import SupportsWorkerRequests
from django_dcron.targets.celery_tasks import discovered_app

SOURCE = "celery"
CELERY_SCHEDULES = "celery.schedules"
"""The module of the schedule types that can be imported."""
KNOWN_KEYS = frozenset({"task", "schedule", "args", "kwargs", "options", "relative"})
COPIED_TO_THE_DATABASE = (
    "django-celery-beat's scheduler copies these entries to its own table. If beat uses that "
    "scheduler, import only django-celery-beat."
)


@dataclass(frozen=True, slots=True)
class Interval:
    """The schedule that Celery creates from a number of seconds or a timedelta."""

    run_every: timedelta
    relative: bool
    tz: Any


def read(now: datetime) -> SourceContents:
    """Read all entries. Raises ``SourceProblem``."""
    app = discovered_app()
    try:
        app.finalize(auto=True)  # runs the handlers that call add_periodic_task
        schedule = app.conf.beat_schedule
        entries = dict(schedule)
    except Exception as error:  # the project's handlers may raise anything
        raise SourceProblem(
            f"Celery's beat_schedule can't be read: {in_one_line(error)}."
        ) from error
    contents = SourceContents(
        [
            translate_entry(
                _origin(name), str(name), partial(_job, app, definition, now), key=str(name)
            )
            for name, definition in entries.items()
        ],
        source=SOURCE,
    )
    if entries and apps.is_installed("django_celery_beat"):
        contents.notes.append(COPIED_TO_THE_DATABASE)
    return contents


def runs_since(since: datetime) -> SourceRuns:
    """Raise ``SourceProblem``: beat stores no runs, and workers know only the latest message."""
    raise SourceProblem("beat stores no runs of a static schedule.")


def sent_by_beat() -> dict[str, timedelta]:
    """Return the time since a worker last received each task from beat, by name of the task.

    Workers remember only messages since they started. Raises ``SourceProblem`` if the workers can't
    be asked.
    """
    dispatcher: object = shared_dispatcher()
    try:
        replies = (
            dispatcher.ask_workers() if isinstance(dispatcher, SupportsWorkerRequests) else None
        )
    except DispatchFailed as error:
        raise SourceProblem(f"the workers can't be asked: {error}.") from error
    ages: dict[str, timedelta] = {}
    for reply in replies or ():
        for task in reply.beat_tasks:
            age = timedelta(seconds=task.age)
            ages[task.name] = min(age, ages.get(task.name, age))
    return ages


def entries_by_task() -> dict[str, set[str]]:
    """Return the keys of the entries of each task."""
    keys = defaultdict(set)
    for name, definition in dict(discovered_app().conf.beat_schedule).items():
        if isinstance(definition, Mapping):
            keys[str(definition.get("task"))].add(str(name))
    return keys


def _origin(name: Any) -> str:
    return f"beat_schedule entry {str(name)!r}"


def _job(app: Any, definition: Any, now: datetime, warn: Warn) -> dict[str, Any]:
    if not isinstance(definition, Mapping) or not isinstance(definition.get("task"), str):
        raise EntryRefused("the entry has no task")
    celery_entry.check_task(definition["task"])
    if others := sorted(set(definition) - KNOWN_KEYS):
        warn(f"keys without an equivalent are ignored: {', '.join(map(str, others))}")
    for name, kind in (("args", list | tuple), ("kwargs", Mapping), ("options", Mapping)):
        if (value := definition.get(name)) and not isinstance(value, kind):
            allowed = "a list or a tuple" if name == "args" else "a dict"
            raise EntryRefused(f"{name}: {value!r:.80} is not {allowed}")
    options = dict(definition.get("options") or {})
    if isinstance(options.get("expires"), timedelta):
        options["expires"] = options["expires"].total_seconds()
    translated = celery_entry.option_fields(options, warn)
    if translated["ends_at"] is not None and translated["ends_at"] < now:
        raise EntryOmitted(f"expired at {iso_in_site_zone(translated['ends_at'])}")
    schedule = _schedule(app, definition.get("schedule"), relative=bool(definition.get("relative")))
    fields = celery_entry.schedule_fields(schedule, warn)
    if fields["schedule"].startswith("@every") and schedule.run_every >= LONG_INTERVAL:
        warn(
            "the interval counts from when the job is enabled, because beat's last run isn't "
            "known; to keep its phase, set starts_at"
        )
    values = {
        "target": definition["task"],
        **celery_entry.argument_fields(
            list(definition.get("args") or ()), dict(definition.get("kwargs") or {})
        ),
        "starts_at": None,
        **translated,
        **celery_task.policy_fields(definition["task"], options, warn),
        "enabled": True,
        "pause_reason": "",
        **fields,
    }
    check_not_over(values, now)
    return values


def _schedule(app: Any, schedule: Any, *, relative: bool) -> Any:
    """Return the schedule object that Celery has or would create. Raises ``EntryRefused``."""
    if isinstance(schedule, bool) or schedule is None:
        raise EntryRefused(f"the entry has no schedule ({schedule!r})")
    if isinstance(schedule, int | float):
        schedule = _seconds(schedule)
    if isinstance(schedule, timedelta):
        return Interval(schedule, relative, app.timezone)
    if hasattr(schedule, "event") and hasattr(schedule, "lat"):
        raise EntryRefused(
            celery_entry.why_solar_refused(schedule.event, schedule.lat, schedule.lon)
        )
    if isinstance(schedule, str):
        raise EntryRefused(
            f"the schedule {schedule!r:.80} is a string, which beat can't run; use crontab(), a "
            "timedelta or a number of seconds"
        )
    if type(schedule).__module__ != CELERY_SCHEDULES:
        raise EntryRefused(
            f"the schedule type {type(schedule).__name__} is the project's own; use a cron "
            "schedule, or a job that runs often and checks in its code whether to work"
        )
    return schedule


def _seconds(number: float) -> timedelta:
    try:
        return timedelta(seconds=number)
    except (OverflowError, ValueError) as error:
        raise EntryRefused(f"the interval {number!r} s is not supported ({error})") from None
