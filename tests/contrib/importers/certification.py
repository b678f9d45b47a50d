"""The schedules of public projects, and how each source gets them.

``certification.json`` has one line per project: its source, its time zone and the values of its
schedules. The names, targets, arguments and queues are those of the tests.
"""

import json
import sys
from collections import defaultdict
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import procrastinate
import pytest
from apscheduler.triggers.cron import CronTrigger
from apscheduler.triggers.interval import IntervalTrigger
from celery import schedules
from django_cron import CronJobBase
from django_cron import Schedule as TimesOfDay
from huey import MemoryHuey
from huey import crontab as huey_crontab
from procrastinate.testing import InMemoryConnector
from pytest_django import Settings

from django_dcron.targets import functions
from tests.app.tasks import echo
from tests.celery_app import app
from tests.contrib.importers import plain, test_apscheduler, test_django_q
from tests.management.calling import call

HERE = __name__
ECHO = "tests.app.tasks.echo"
COMMAND = "django.core.management.call_command"
NOW = datetime(2027, 1, 1, 12, tzinfo=UTC)
PROJECTS: list[dict[str, Any]] = json.loads(
    Path(__file__).with_name("certification.json").read_text()
)
SOURCES = sorted({project["source"] for project in PROJECTS})

own_huey = MemoryHuey("certification", immediate=False)
own_procrastinate = procrastinate.App(connector=InMemoryConnector())


@dataclass(frozen=True)
class Entry:
    """One schedule of a project."""

    key: str
    zone: str
    schedule: Any
    """A number of seconds, the fields of a crontab, or a text."""
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def arguments(self) -> dict[str, Any]:
        return {
            "args": [1] if "args" in self.options else [],
            "kwargs": {"city": "Ulm"} if "kwargs" in self.options else {},
        }

    def chosen(self, *names: str) -> dict[str, Any]:
        return {name: self.options[name] for name in names if name in self.options}


def entries_of(source: str) -> dict[str, list[Entry]]:
    """Return the entries by time zone. One import gets all entries of a zone."""
    found = defaultdict(list)
    for number, project in enumerate(PROJECTS):
        if project["source"] == source:
            found[project["zone"]] += [
                Entry(f"project {number} entry {position}", project["zone"], **entry)
                for position, entry in enumerate(project["entries"])
            ]
    return found


def celery_schedule(entry: Entry) -> Any:
    if isinstance(entry.schedule, int):
        return schedules.schedule(timedelta(seconds=entry.schedule), app=app)
    if "event" in entry.schedule:
        return schedules.solar(**entry.schedule, app=app)
    return schedules.crontab(**entry.schedule, app=app)


def apscheduler_trigger(entry: Entry) -> Any:
    if isinstance(entry.schedule, int):
        return IntervalTrigger(seconds=entry.schedule, start_date=NOW, timezone=UTC)
    return CronTrigger(**entry.schedule, timezone=ZoneInfo(entry.zone))


@dataclass(frozen=True)
class Sources:
    """Write the entries of a time zone to their source, and import them."""

    patch: pytest.MonkeyPatch
    settings: Settings

    def run(self, source: str, zone: str, entries: list[Entry]) -> None:
        self.patch.setitem(app.__dict__, "timezone", ZoneInfo(zone))  # that of Celery's schedules
        options = getattr(self, source.replace("-", "_"))(zone, entries) or ()
        applied = call("import", source, *options, "--apply", "--json").json
        for each in applied["jobs"]:
            outcome = each["outcome"]
            assert outcome == "create" or (outcome == "refused" and each["reasons"]), each
        preview = call("import", source, *options, "--json").json
        assert {each["outcome"] for each in preview["jobs"]} <= {"same", "refused"}

    def celery(self, _zone: str, entries: list[Entry]) -> None:
        app.conf.beat_schedule = {
            entry.key: {
                "task": ECHO,
                "schedule": celery_schedule(entry),
                "options": entry.chosen("expires", "priority", "time_limit")
                | {"queue": "slow" if "queue" in entry.options else None},
                **entry.arguments,
            }
            for entry in entries
        }

    def django_celery_beat(self, zone: str, entries: list[Entry]) -> None:
        from django_celery_beat.models import CrontabSchedule, IntervalSchedule, PeriodicTask

        for entry in entries:
            if isinstance(entry.schedule, int):
                interval = IntervalSchedule.objects.create(every=entry.schedule, period="seconds")
                when = {"interval": interval}
            else:
                when = {"crontab": CrontabSchedule.objects.create(**entry.schedule, timezone=zone)}
            arguments = {name: json.dumps(value) for name, value in entry.arguments.items()}
            PeriodicTask.objects.create(name=entry.key, task=ECHO, **when, **arguments)

    def huey(self, _zone: str, entries: list[Entry]) -> tuple[str, ...]:
        for entry in entries:
            options = entry.chosen("retries", "retry_delay", "priority")
            own_huey.periodic_task(huey_crontab(**entry.schedule), name=entry.key, **options)(echo)
        return "--app", f"{HERE}.own_huey"

    def procrastinate(self, _zone: str, entries: list[Entry]) -> tuple[str, ...]:
        for entry in entries:
            retries = entry.options.get("retries", 1)
            retry = procrastinate.RetryStrategy(max_attempts=retries, wait=60)
            task = own_procrastinate.task(name=entry.key, retry=retry)(echo)
            own_procrastinate.periodic(cron=entry.schedule)(task)
        return "--app", f"{HERE}.own_procrastinate"

    def django_crontab(self, zone: str, entries: list[Entry]) -> tuple[str, ...]:
        self.settings.DCRON_COMMANDS = {"dumpdata": ["args"]}
        self.settings.CRONJOBS = [
            (
                entry.schedule,
                *(
                    (COMMAND, ["dumpdata", entry.key], {"verbosity": 1})
                    if "command" in entry.options
                    else (ECHO, [entry.key], {})
                ),
                *([">> /tmp/log"] if "suffix" in entry.options else []),
            )
            for entry in entries
        ]
        return "--timezone", zone

    def django_cron(self, _zone: str, entries: list[Entry]) -> None:
        self.settings.CRON_CLASSES = []
        for number, entry in enumerate(entries):
            attributes = {"code": entry.key, "schedule": TimesOfDay(**entry.schedule), "do": echo}
            job_class = type(f"Class{number}", (CronJobBase,), attributes)
            path = f"{HERE}.{job_class.__name__}"
            self.patch.setattr(sys.modules[HERE], job_class.__name__, job_class, raising=False)
            self.patch.setitem(app.tasks, path, app.task(echo.run, name=path))
            self.settings.CRON_CLASSES.append(path)

    def django_q2(self, _zone: str, entries: list[Entry]) -> None:
        for entry in entries:
            test_django_q.make("C", entry.key, cron=entry.schedule)

    def django_apscheduler(self, _zone: str, entries: list[Entry]) -> None:
        target = "tests.contrib.importers.plain.report"
        self.patch.setitem(functions.registered, target, plain.report)
        for entry in entries:
            test_apscheduler.store(apscheduler_trigger(entry), id=entry.key)
