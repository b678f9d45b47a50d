"""System checks: each problem has a stable id and a hint with the fix.

========  ======================================================================================
E001      a DCRON setting has the wrong type or is out of range
E002      USE_TZ is off
E003      the lock's cache is missing or isn't a django-redis cache
E004      runs are dispatched to Celery, but there is no Celery app
E005      a dotted path in the settings can't be imported
E006      Celery's broker URL has no transport
E007      DCRON_ALERTS has an invalid rule
E008      the Healthchecks middleware is on, but DCRON_HEALTHCHECKS_URL is empty
E009      runs are dispatched to Django's tasks, which this Django doesn't have
E010      the configured backend of Django's tasks is missing or can't be created
W001      the configured worker pool can't end a run by force
W002      SQLite doesn't take its write lock at the start of a transaction
W003      a job's target is unknown or doesn't accept its arguments (with ``check --database``)
W004      a job's schedule or time zone is invalid (with ``check --database``)
W005      a setting that starts with DCRON doesn't exist
W006      DCRON_COMMANDS allows a management command or argument that doesn't exist
W007      the admin's pages don't refresh themselves, because django_htmx isn't installed
W008      DCRON_KEEP_FAILED_FOR is shorter than DCRON_KEEP_FOR
W009      a job's alert rules are invalid (with ``check --database``)
W010      a calendar is invalid (with ``check --database``)
W011      the configured backend of Django's tasks has no workers
W012      a job names a queue that isn't allowed (with ``check --database``)
W013      no node can start: one of E003, E004, E006, E009 and E010
W014      Celery's task_always_eager is on, which doesn't apply to runs
W015      Celery's broker is in memory, so no worker gets a run
W016      DCRON_SHELL has a word that contains "{}", which isn't replaced
========  ======================================================================================

E003, E004, E006, E009 and E010 are errors only where a node starts (``as_node_start``). Every other
command reports them as W013, so that tests, migrations and builds need no broker and no Redis.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from django.apps import AppConfig, apps
from django.conf import settings as django_settings
from django.core.checks import CheckMessage, Error, Tags, Warning, register
from django.core.management import get_commands
from django.db import connections
from django.utils.module_loading import import_string
from django.utils.version import get_version

from django_dcron.conf import ARGUMENTS_PLACE, Settings, settings
from django_dcron.policies.alerting import InvalidRule, read_rules
from django_dcron.targets import commands
from django_dcron.targets.base import did_you_mean
from django_dcron.utils.url_credentials import without_urls

REDIS_CACHE = "django_redis.cache.RedisCache"
NAMED_JOBS = 20
"""The maximum number of jobs that a check names."""

DOCS = "https://github.com/example/django-dcron/blob/main/docs/"
SECTIONS = {
    "DCRON_AUTOSTART": "scheduler",
    "DCRON_LOCK": "locks",
    "DCRON_DISPATCHER": "dispatch",
    "DCRON_RUN_LEASE": "execution",
    "DCRON_ALERT_CHANNELS": "alerts",
    "DCRON_KEEP_FOR": "retention",
    "DCRON_METRICS_JOBS": "metrics",
    "DCRON_REST_QUERYSET": "rest-api",
    "DCRON_ARGUMENTS_LIMIT": "targets-and-arguments",
}
"""The sections of the settings reference, by their first setting."""
PAGES = {
    "E002": "reference/checks.md",
    "E003": "reference/settings.md#locks",
    "E004": "tutorial/redis-and-celery.md",
    "E005": "reference/settings.md",
    "E006": "tutorial/redis-and-celery.md",
    "E007": "how-to/alerts.md",
    "E008": "reference/settings.md#alerts",
    "E009": "how-to/django-tasks.md",
    "E010": "how-to/django-tasks.md",
    "W001": "reference/settings.md#execution",
    "W002": "tutorial/first-job.md#change-the-settings",
    "W003": "reference/settings.md#targets-and-arguments",
    "W004": "reference/schedules.md",
    "W005": "reference/settings.md",
    "W006": "reference/settings.md#management-commands",
    "W007": "tutorial/first-job.md#change-the-settings",
    "W008": "reference/settings.md#retention",
    "W009": "how-to/alerts.md",
    "W010": "how-to/calendars.md",
    "W011": "how-to/django-tasks.md",
    "W012": "reference/settings.md#queues",
    "W014": "how-to/testing.md",
    "W015": "tutorial/redis-and-celery.md",
    "W016": "reference/settings.md#shell-commands",
}
"""The page to which the hint of each check links. E001 links to the section of its setting, and
W013 to the page of the problem that it names.
"""

_node_starts: ContextVar[bool] = ContextVar("dcron_node_starts", default=False)


@contextmanager
def as_node_start() -> Iterator[None]:
    """Report what keeps a node from starting as errors."""
    token = _node_starts.set(True)
    try:
        yield
    finally:
        _node_starts.reset(token)


def _obstacle(code: str, message: str, hint: str) -> CheckMessage:
    """Return the message about a problem that keeps a node from starting."""
    if _node_starts.get():
        return Error(message, hint=hint, id=f"django_dcron.{code}")
    hint = _with_link(hint, PAGES[code])
    return Warning(f"runcron can't start ({code}): {message}", hint=hint, id="django_dcron.W013")


def _with_link(hint: str | None, page: str) -> str:
    return f"{hint or ''} See {DOCS}{page}".strip()


def _linked(message: CheckMessage) -> CheckMessage:
    """Add the link to the documentation to the hint."""
    page = PAGES.get(str(message.id).rpartition(".")[2])
    if page:
        message.hint = _with_link(message.hint, page)
    return message


def _section_of(name: str) -> str:
    section = ""
    for setting in Settings.all():
        section = SECTIONS.get(setting.name, section)
        if setting.name == name:
            break
    return f"reference/settings.md#{section}"


@register(Tags.compatibility)
def check_settings(app_configs: Sequence[AppConfig] | None, **options: Any) -> list[CheckMessage]:
    found = [*_check_values(), *_check_names()]
    if any(message.is_serious() for message in found):
        return [*map(_linked, found)]  # The other checks read the settings.
    others = [
        *_check_time_zones(),
        *_check_lock(),
        *_check_dispatcher(),
        *_check_django_tasks(),
        *_check_paths(),
        *_check_commands(),
        *_check_shell(),
        *_check_alerts(),
        *_check_check_ins(),
        *_check_sqlite(),
        *_check_admin(),
        *_check_retention(),
    ]
    return [*map(_linked, found), *map(_linked, map(_without_secrets, others))]


def _without_secrets(message: CheckMessage) -> CheckMessage:
    """Remove URLs from the message, because they may contain passwords."""
    message.msg = without_urls(message.msg)
    return message


def _check_values() -> Iterator[CheckMessage]:
    for setting in Settings.all():
        if problem := setting.problem():
            near = did_you_mean(str(getattr(django_settings, setting.name)), setting.names)
            yield Error(
                f"{problem}{near}",
                hint=_with_link("Correct the value.", _section_of(setting.name)),
                id="django_dcron.E001",
            )


def _check_names() -> Iterator[CheckMessage]:
    known = [setting.name for setting in Settings.all()]
    for name in dir(django_settings):
        if name.startswith("DCRON_") and name not in known:
            near = did_you_mean(name, known, likeness=0.8)  # All names have the same prefix.
            yield Warning(
                f"Unknown setting {name}.{near}",
                hint="Correct the name, or remove the setting. It has no effect.",
                id="django_dcron.W005",
            )


def _check_time_zones() -> Iterator[CheckMessage]:
    if not django_settings.USE_TZ:
        yield Error(
            "USE_TZ is False, so the database would store local times, some of which occur "
            "twice a year.",
            hint="Set USE_TZ = True.",
            id="django_dcron.E002",
        )


def _check_lock() -> Iterator[CheckMessage]:
    if settings.LOCK != "redis":
        return
    cache = django_settings.CACHES.get(settings.CACHE)
    found = "doesn't exist" if cache is None else f"uses {cache['BACKEND']}"
    if cache is None or cache["BACKEND"] != REDIS_CACHE:
        yield _obstacle(
            "E003",
            'DCRON_LOCK is "redis", which needs a django-redis cache, but the cache '
            f"{settings.CACHE!r} {found}.",
            f"Use {REDIS_CACHE} for this cache, or name another cache in DCRON_CACHE. Without "
            'Redis, set DCRON_LOCK = "database" or start nodes with runcron --embedded.',
        )


def _check_dispatcher() -> Iterator[CheckMessage]:
    if settings.DISPATCHER != "celery":
        return
    from django_dcron.dispatch.celery_setup import (
        has_app,
        has_memory_broker,
        is_eager,
        limitless_pool,
        transport_problem,
    )

    if not has_app():
        yield _obstacle(
            "E004",
            'DCRON_DISPATCHER is "celery", but the project has no Celery app.',
            "Create a Celery app and import it in the project's __init__.py, as "
            "Celery's documentation for Django shows. Without Celery, set DCRON_DISPATCHER to "
            '"thread" or, for Django\'s own tasks, to "tasks", or start nodes with '
            "runcron --embedded.",
        )
        return
    if problem := transport_problem():
        yield _obstacle(
            "E006",
            f"Celery can't use its broker URL: {problem}",
            "Correct broker_url, or install the packages that its transport needs.",
        )
    if is_eager():
        yield Warning(
            "Celery's task_always_eager is on. It applies to delay(), but not to the runs of jobs, "
            "which are still sent to the broker.",
            hint="Remove CELERY_TASK_ALWAYS_EAGER. To execute runs without a worker, set "
            'DCRON_DISPATCHER = "thread". In tests, use django_dcron.testing.run_due.',
            id="django_dcron.W014",
        )
    if has_memory_broker():
        yield Warning(
            "Celery's broker is in the memory of this process, so workers in other processes "
            "never receive a run.",
            hint="Set broker_url to a broker that nodes and workers share, or set "
            'DCRON_DISPATCHER = "thread".',
            id="django_dcron.W015",
        )
    if pool := limitless_pool():
        yield Warning(
            f"Celery's worker_pool is {pool!r}. {_without_force(pool)}",
            hint="Use the prefork pool to enforce timeouts and cancellations.",
            id="django_dcron.W001",
        )


def _check_django_tasks() -> Iterator[CheckMessage]:
    if settings.DISPATCHER != "tasks":
        return
    from django_dcron.dispatch import django_tasks_setup as setup
    from django_dcron.targets.django_tasks import has_tasks

    alias = settings.TASKS_BACKEND
    if not has_tasks():
        yield _obstacle(
            "E009",
            'DCRON_DISPATCHER is "tasks", which needs Django 6.0 or later. This is Django '
            f"{get_version()}.",
            'Upgrade Django, or set DCRON_DISPATCHER = "celery" or "thread".',
        )
    elif problem := setup.backend_problem():
        yield _obstacle(
            "E010",
            f"The task backend {alias!r} in DCRON_TASKS_BACKEND can't be loaded: {problem}",
            "Correct the backend in TASKS, or name another one in DCRON_TASKS_BACKEND.",
        )
    elif text := setup.workerless():
        # A warning, because a project's tests may use such a backend. No node starts with it.
        yield Warning(
            f"The task backend {alias!r} in DCRON_TASKS_BACKEND {text}.",
            hint="Configure a backend with workers in TASKS, or name another one in "
            "DCRON_TASKS_BACKEND. To execute runs in the node itself, set "
            'DCRON_DISPATCHER = "thread".',
            id="django_dcron.W011",
        )


def _without_force(pool: str) -> str:
    if pool.startswith(("gevent", "eventlet")):
        return (
            "It can't interrupt a run. Timeouts are only recorded, and only code that "
            "checks current_run().cancelled notices a cancellation."
        )
    return (
        "Timeouts and cancellations raise an exception in a run's code, but a run that "
        "ignores it continues."
    )


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
                f"{name}: {path!r} can't be imported: {error}",
                hint="Correct the dotted path.",
                id="django_dcron.E005",
            )


def _check_commands() -> Iterator[CheckMessage]:
    known = get_commands()
    for name in settings.COMMANDS:
        if name not in known:
            yield Warning(
                "DCRON_COMMANDS: unknown management command "
                f"{name!r}.{did_you_mean(name, list(known))}",
                hint="Correct the name. A job that runs this command would fail.",
                id="django_dcron.W006",
            )
        elif listed := commands.allowed_arguments(name):
            yield from _check_arguments_of(name, listed)


def _check_shell() -> Iterator[CheckMessage]:
    for name, argv in settings.SHELL.items():
        if any(ARGUMENTS_PLACE in word and word != ARGUMENTS_PLACE for word in argv):
            # The words may contain secrets.
            yield Warning(
                f'DCRON_SHELL: a word of {name!r} contains "{{}}" beside other characters, so it '
                "isn't replaced by a job's arguments.",
                hint='Make "{}" a separate word. Each argument of a job then becomes one word.',
                id="django_dcron.W016",
            )


def _check_arguments_of(command: str, listed: Collection[str]) -> Iterator[CheckMessage]:
    names = commands.argument_names(commands.load(command))
    for name in listed:
        if name not in names:
            yield Warning(
                f"DCRON_COMMANDS: the command {command!r} has no argument "
                f"{name!r}.{did_you_mean(name, names)}",
                hint="List options as typed on the command line (--indent), and positional "
                "arguments and subcommands by name.",
                id="django_dcron.W006",
            )


def _check_alerts() -> Iterator[CheckMessage]:
    try:
        read_rules(settings.ALERTS, settings.ALERT_CHANNELS, of_job=False)
    except InvalidRule as error:
        yield Error(
            f"DCRON_ALERTS: {error}.",
            hint="Correct the rule. Until then, no alerts are sent for DCRON_ALERTS.",
            id="django_dcron.E007",
        )


def _check_check_ins() -> Iterator[CheckMessage]:
    path = "django_dcron.contrib.checkins.check_in_healthchecks"
    if path in settings.MIDDLEWARE and not settings.HEALTHCHECKS_URL:
        yield Error(
            "DCRON_MIDDLEWARE contains check_in_healthchecks, but DCRON_HEALTHCHECKS_URL "
            "is empty, so no check-ins are sent.",
            hint="Set DCRON_HEALTHCHECKS_URL to the ping URL with the project's ping key, "
            "or remove the middleware.",
            id="django_dcron.E008",
        )


def _check_sqlite() -> Iterator[CheckMessage]:
    """Check the database of django-dcron's tables only."""
    from django_dcron.db.routing import alias_for
    from django_dcron.models import Job

    alias = alias_for(Job)
    connection = connections[alias]
    mode = str(connection.settings_dict.get("OPTIONS", {}).get("transaction_mode") or "")
    if connection.vendor == "sqlite" and mode.upper() not in ("IMMEDIATE", "EXCLUSIVE"):
        yield Warning(
            f"The SQLite database {alias!r} takes its write lock only at the first write of "
            "a transaction, which can fail if several processes write.",
            hint='Set OPTIONS = {"transaction_mode": "IMMEDIATE", "timeout": 20}.',
            id="django_dcron.W002",
        )


def _check_admin() -> Iterator[CheckMessage]:
    if apps.is_installed("django.contrib.admin") and not apps.is_installed("django_htmx"):
        yield Warning(
            "django_htmx is not installed, so the admin's pages don't refresh "
            "automatically and show no previews.",
            hint='Add "django_htmx" to INSTALLED_APPS. It serves the script that these pages need.',
            id="django_dcron.W007",
        )


def _check_retention() -> Iterator[CheckMessage]:
    if settings.KEEP_FAILED_FOR < settings.KEEP_FOR:
        yield Warning(
            "DCRON_KEEP_FAILED_FOR is shorter than DCRON_KEEP_FOR, so failed runs are kept "
            "for DCRON_KEEP_FOR.",
            hint="Set DCRON_KEEP_FAILED_FOR to at least DCRON_KEEP_FOR.",
            id="django_dcron.W008",
        )


@register(Tags.database)
def check_jobs(
    app_configs: Sequence[AppConfig] | None, databases: Sequence[str] | None = None, **options: Any
) -> list[CheckMessage]:
    """Check the stored jobs.

    Runs only with ``check --database default``, because it reads the jobs.
    """
    from django_dcron.db.routing import alias_for
    from django_dcron.models import Calendar, Job

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
    return [*map(_linked, map(_without_secrets, problems))]


def _calendar_problems(calendar: Any) -> Iterator[CheckMessage]:
    from django_dcron.exceptions import InvalidCalendar
    from django_dcron.models.calendar import read_dates

    try:
        read_dates(calendar.dates)
    except InvalidCalendar as error:
        yield Warning(
            f"Jobs that use the calendar {calendar} are quarantined: {error}",
            hint="Correct the calendar's dates, or install the missing package on every node.",
            id="django_dcron.W010",
        )


def _job_problems(job: Any) -> Iterator[CheckMessage]:
    from django_dcron import targets
    from django_dcron.exceptions import (
        InvalidArguments,
        InvalidSchedule,
        InvalidValue,
        UnknownTarget,
    )

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
            hint="Correct the job's arguments, or allow them in DCRON_COMMANDS or DCRON_SHELL.",
            id="django_dcron.W003",
        )
    try:
        job.parsed_schedule  # noqa: B018 (reading it parses it)
    except InvalidSchedule as error:
        yield Warning(
            f"Job {job} is quarantined: {error}",
            hint="Correct the job's schedule or calendar.",
            id="django_dcron.W004",
        )
    try:
        targets.check_queue(job.queue)
    except InvalidValue as error:
        yield Warning(
            f"Job {job} can't be saved: {error}",
            hint="Correct the job's queue, or add the queue to DCRON_QUEUES.",
            id="django_dcron.W012",
        )
    if job.alerts is not None:
        try:
            read_rules(job.alerts, settings.ALERT_CHANNELS, of_job=True)
        except InvalidRule as error:
            yield Warning(
                f"Job {job} has invalid alert rules, so the rules in DCRON_ALERTS apply to "
                f"it: {error}",
                hint="Correct the job's alerts, or define the channel in DCRON_ALERT_CHANNELS.",
                id="django_dcron.W009",
            )
