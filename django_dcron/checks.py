"""System checks: what would go wrong later, said at start, each with a stable id and what to do about it.

========  ==============================================================================================
E001      a DCRON setting has the wrong type or is out of range
E002      USE_TZ is off
E003      the lock's cache is missing or not a django-redis one
E004      runs go to Celery, but there is no Celery app
E005      a dotted path in the settings cannot be imported
E006      there is no transport for Celery's broker URL
E007      DCRON_ALERTS has a rule that cannot be read
E008      the middleware for Healthchecks does not know where that is
E009      runs go to Django's own tasks, which this Django does not have
E010      the backend of Django's tasks that runs go to is missing, or cannot be made
W001      the configured worker pool cannot end a run by force
W002      SQLite does not take its write lock at the start of a transaction
W003      a job's target is unknown, or does not take its arguments (with ``check --database``)
W004      a job's schedule or time zone cannot be read (with ``check --database``)
W005      a setting's name starts with DCRON, but there is no such setting
W006      DCRON_COMMANDS allows a management command, or an argument of one, that does not exist
W007      the admin's pages will not refresh themselves, as django_htmx is not installed
W008      failed runs should be kept for a shorter time than others
W009      a job's alerts cannot be read (with ``check --database``)
W010      a calendar cannot be read (with ``check --database``)
W011      the backend of Django's tasks that runs go to has no workers
W012      a job names a queue that is not allowed (with ``check --database``)
========  ==============================================================================================
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

from django.apps import AppConfig, apps
from django.conf import settings as django_settings
from django.core.checks import CheckMessage, Error, Tags, Warning, register
from django.core.management import get_commands
from django.db import connections
from django.utils.module_loading import import_string
from django.utils.version import get_version

from django_dcron.conf import Settings, settings
from django_dcron.domain.alerting import InvalidRule, read_rules
from django_dcron.targets import commands
from django_dcron.targets.base import did_you_mean
from django_dcron.url_credentials import without_urls

REDIS_CACHE = "django_redis.cache.RedisCache"
NAMED_JOBS = 20
"""How many jobs a check names at the most."""


@register(Tags.compatibility)
def check_settings(app_configs: Sequence[AppConfig] | None, **options: Any) -> list[CheckMessage]:
    found = [*_check_values(), *_check_names()]
    if any(message.is_serious() for message in found):
        return found  # the other checks read the settings
    others = [
        *_check_time_zones(),
        *_check_lock(),
        *_check_dispatcher(),
        *_check_django_tasks(),
        *_check_paths(),
        *_check_commands(),
        *_check_alerts(),
        *_check_check_ins(),
        *_check_sqlite(),
        *_check_admin(),
        *_check_retention(),
    ]
    return [*found, *map(_without_secrets, others)]


def _without_secrets(message: CheckMessage) -> CheckMessage:
    """A setting that should have a name, and has a URL, may have a password in it."""
    message.msg = without_urls(message.msg)
    return message


def _check_values() -> Iterator[CheckMessage]:
    for setting in Settings.all():
        if problem := setting.problem():
            near = did_you_mean(str(getattr(django_settings, setting.name)), setting.names) or "."
            yield Error(
                f"{problem}{near}", hint="See the settings in the documentation.", id="django_dcron.E001"
            )


def _check_names() -> Iterator[CheckMessage]:
    known = [setting.name for setting in Settings.all()]
    for name in dir(django_settings):
        if name.startswith("DCRON_") and name not in known:
            near = did_you_mean(name, known, likeness=0.8) or "."  # they all begin alike
            yield Warning(
                f"{name} is no setting of django-dcron{near}",
                hint="Correct its name or remove it; as it is, it does nothing.",
                id="django_dcron.W005",
            )


def _check_time_zones() -> Iterator[CheckMessage]:
    if not django_settings.USE_TZ:
        yield Error(
            "USE_TZ is False: the database would hold local times, of which some come twice a year.",
            hint="Set USE_TZ = True.",
            id="django_dcron.E002",
        )


def _check_lock() -> Iterator[CheckMessage]:
    if settings.LOCK != "redis":
        return
    cache = django_settings.CACHES.get(settings.CACHE)
    found = "missing" if cache is None else cache["BACKEND"]
    if found != REDIS_CACHE:
        yield Error(
            f"The lock is kept in the cache {settings.CACHE!r}, which is {found}, not a django-redis one.",
            hint=f'Use {REDIS_CACHE} for it, name another cache in DCRON_CACHE, or set DCRON_LOCK = "database".',
            id="django_dcron.E003",
        )


def _check_dispatcher() -> Iterator[CheckMessage]:
    if settings.DISPATCHER != "celery":
        return
    from django_dcron.dispatch.celery_setup import has_app, limitless_pool, transport_problem

    if not has_app():
        yield Error(
            "Runs are handed to Celery, but the project has no Celery app.",
            hint="Make one and import it in the project's __init__.py, as Celery's documentation for Django shows; "
            'or set DCRON_DISPATCHER = "thread", or "tasks" for a backend of Django\'s own tasks.',
            id="django_dcron.E004",
        )
        return
    if problem := transport_problem():
        yield Error(
            f"Celery cannot reach a broker by the URL it has: {problem}",
            hint="Correct broker_url, or install what its transport needs.",
            id="django_dcron.E006",
        )
    if pool := limitless_pool():
        yield Warning(
            f"Celery's worker_pool is {pool!r}: {_without_force(pool)}",
            hint="Use the prefork pool to have timeouts and cancels enforced.",
            id="django_dcron.W001",
        )


def _check_django_tasks() -> Iterator[CheckMessage]:
    if settings.DISPATCHER != "tasks":
        return
    from django_dcron.dispatch import django_tasks_setup as setup
    from django_dcron.targets.django_tasks import has_tasks

    alias = settings.TASKS_BACKEND
    if not has_tasks():
        yield Error(
            f"Runs are handed to Django's own tasks, which Django has from 6.0 on; this is {get_version()}.",
            hint='Upgrade Django, or set DCRON_DISPATCHER = "celery" or "thread".',
            id="django_dcron.E009",
        )
    elif problem := setup.backend_problem():
        yield Error(
            f"Runs are handed to the task backend {alias!r}, which cannot be had: {problem}",
            hint="Correct it in TASKS, or name another one in DCRON_TASKS_BACKEND.",
            id="django_dcron.E010",
        )
    elif said := setup.workerless():
        # No error: a project's tests may well have such a backend. No node starts with it.
        yield Warning(
            f"Runs are handed to the task backend {alias!r}, which {said}.",
            hint="Give TASKS a backend with workers, or name another one in DCRON_TASKS_BACKEND; to execute runs in the "
            'node itself, set DCRON_DISPATCHER = "thread".',
            id="django_dcron.W011",
        )


def _without_force(pool: str) -> str:
    if pool.startswith(("gevent", "eventlet")):
        return (
            "it cannot interrupt a run. A timeout is only recorded, a cancel only seen by code that asks "
            "current_run().cancelled."
        )
    return "a timeout or a cancel is raised in a run's code, but a run that ignores it is not ended."


def _check_paths() -> Iterator[CheckMessage]:
    named = [("DCRON_MIDDLEWARE", path) for path in settings.MIDDLEWARE]
    named += [("DCRON_LOCK", settings.LOCK)] if "." in settings.LOCK else []
    named += [("DCRON_DISPATCHER", settings.DISPATCHER)] if "." in settings.DISPATCHER else []
    named += [("DCRON_REST_QUERYSET", settings.REST_QUERYSET)] if settings.REST_QUERYSET else []
    for name, path in named:
        try:
            import_string(path)
        except ImportError as error:
            yield Error(
                f"{name} names {path!r}, which cannot be imported: {error}.",
                hint="Give the dotted path of something that exists.",
                id="django_dcron.E005",
            )


def _check_commands() -> Iterator[CheckMessage]:
    known = get_commands()
    for name in settings.COMMANDS:
        if name not in known:
            yield Warning(
                f"DCRON_COMMANDS allows {name!r}, but there is no such management command"
                f"{did_you_mean(name, list(known)) or '.'}",
                hint="Correct its name; a job that runs it would fail.",
                id="django_dcron.W006",
            )
        elif listed := commands.allowed_arguments(name):
            yield from _check_arguments_of(name, listed)


def _check_arguments_of(command: str, listed: Collection[str]) -> Iterator[CheckMessage]:
    names = commands.argument_names(commands.load(command))
    for name in listed:
        if name not in names:
            yield Warning(
                f"DCRON_COMMANDS allows {command!r} the argument {name!r}, which it does not have"
                f"{did_you_mean(name, names) or '.'}",
                hint="List options as they are typed (--indent), positional arguments and subcommands by name.",
                id="django_dcron.W006",
            )


def _check_alerts() -> Iterator[CheckMessage]:
    try:
        read_rules(settings.ALERTS, settings.ALERT_CHANNELS, of_job=False)
    except InvalidRule as error:
        yield Error(
            f"DCRON_ALERTS: {error}.",
            hint="Correct the rule; until then there are none.",
            id="django_dcron.E007",
        )


def _check_check_ins() -> Iterator[CheckMessage]:
    path = "django_dcron.execution.checkins.check_in_healthchecks"
    if path in settings.MIDDLEWARE and not settings.HEALTHCHECKS_URL:
        yield Error(
            "DCRON_MIDDLEWARE has check_in_healthchecks, but DCRON_HEALTHCHECKS_URL is empty: nobody hears of any run.",
            hint="Set it to the address of pings, with the project's ping key, or remove the middleware.",
            id="django_dcron.E008",
        )


def _check_sqlite() -> Iterator[CheckMessage]:
    """Of the database that dcron's tables are in; how others are written to is not our business."""
    from django_dcron.models import Job
    from django_dcron.models.database import alias_for

    alias = alias_for(Job)
    connection = connections[alias]
    mode = str(connection.settings_dict.get("OPTIONS", {}).get("transaction_mode") or "")
    if connection.vendor == "sqlite" and mode.upper() not in ("IMMEDIATE", "EXCLUSIVE"):
        yield Warning(
            f"The SQLite database {alias!r} takes its write lock only half way through a transaction.",
            hint='With several processes writing, set OPTIONS = {"transaction_mode": "IMMEDIATE", "timeout": 20}.',
            id="django_dcron.W002",
        )


def _check_admin() -> Iterator[CheckMessage]:
    if apps.is_installed("django.contrib.admin") and not apps.is_installed("django_htmx"):
        yield Warning(
            "The admin's pages of jobs and runs will not refresh themselves, nor preview what is typed.",
            hint='Add "django_htmx" to INSTALLED_APPS: it serves the script that does so.',
            id="django_dcron.W007",
        )


def _check_retention() -> Iterator[CheckMessage]:
    if settings.KEEP_FAILED_FOR < settings.KEEP_FOR:
        yield Warning(
            "DCRON_KEEP_FAILED_FOR is shorter than DCRON_KEEP_FOR: failed runs are kept as long as the others.",
            hint="Make it at least as long.",
            id="django_dcron.W008",
        )


@register(Tags.database)
def check_jobs(
    app_configs: Sequence[AppConfig] | None, databases: Sequence[str] | None = None, **options: Any
) -> list[CheckMessage]:
    """Only when asked for (``check --database default``): it reads the jobs."""
    from django_dcron.models import Calendar, Job
    from django_dcron.models.database import alias_for

    using = alias_for(Job)
    if (
        using not in (databases or ())
        or Job._meta.db_table not in connections[using].introspection.table_names()
    ):
        return []
    calendars = Calendar.objects.using(using).order_by("pk")
    problems = [problem for calendar in calendars for problem in _calendar_problems(calendar)]
    for job in Job.objects.using(using).enabled().select_related("calendar").iterator():
        problems += _job_problems(job)
        if len(problems) >= NAMED_JOBS:
            break
    return [*map(_without_secrets, problems)]


def _calendar_problems(calendar: Any) -> Iterator[CheckMessage]:
    from django_dcron.exceptions import InvalidCalendar
    from django_dcron.models.calendar import read_dates

    try:
        read_dates(calendar.dates)
    except InvalidCalendar as error:
        yield Warning(
            f"The jobs of calendar {calendar} are not scheduled: {error}",
            hint="Correct its dates, or install what is missing on every node.",
            id="django_dcron.W010",
        )


def _job_problems(job: Any) -> Iterator[CheckMessage]:
    from django_dcron import targets
    from django_dcron.exceptions import InvalidArguments, InvalidSchedule, InvalidValue, UnknownTarget

    try:
        targets.check_arguments(job.target, job.args, job.kwargs)
    except UnknownTarget as error:
        yield Warning(
            f"Job {job} would fail: {error}",
            hint="Correct the job, or register its target.",
            id="django_dcron.W003",
        )
    except InvalidArguments as error:
        yield Warning(
            f"Job {job} would fail: {error}",
            hint="Correct its arguments, or allow them in DCRON_COMMANDS or DCRON_SHELL.",
            id="django_dcron.W003",
        )
    try:
        job.parsed_schedule  # noqa: B018 (reading it parses it)
    except InvalidSchedule as error:
        yield Warning(
            f"Job {job} is not scheduled: {error}",
            hint="Correct its schedule or calendar.",
            id="django_dcron.W004",
        )
    try:
        targets.check_queue(job.queue)
    except InvalidValue as error:
        yield Warning(
            f"Job {job} cannot be saved: {error}",
            hint="Correct its queue, or name it in DCRON_QUEUES.",
            id="django_dcron.W012",
        )
    if job.alerts is not None:
        try:
            read_rules(job.alerts, settings.ALERT_CHANNELS, of_job=True)
        except InvalidRule as error:
            yield Warning(
                f"Job {job} is told of by the general rules, for its own cannot be read: {error}",
                hint="Correct its alerts, or name the channel in DCRON_ALERT_CHANNELS.",
                id="django_dcron.W009",
            )
