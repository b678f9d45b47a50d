"""Check the stored jobs and calendars, for ``check --database``."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from typing import Any

from django.apps import AppConfig
from django.core.checks import CheckMessage, Info, Tags, Warning, register

from django_dcron.checks.alert_channels import are_channels_valid
from django_dcron.checks.database import has_current_tables
from django_dcron.checks.reporting import is_check_command, with_docs_link, without_secrets
from django_dcron.conf import settings
from django_dcron.policies.alerting import InvalidRule, read_rules

PROBLEMS_LISTED = 20
"""The check stops reading jobs after this many problems."""


@register(Tags.database)
def check_jobs(
    app_configs: Sequence[AppConfig] | None, databases: Sequence[str] | None = None, **options: Any
) -> list[CheckMessage]:
    """Check the stored jobs.

    Runs only if ``check --database`` or ``migrate`` names the database of the jobs, because it
    reads them.
    """
    from django_dcron.db.routing import alias_for
    from django_dcron.models import Calendar, Job

    using = alias_for(Job)
    if using not in (databases or ()):
        return []
    if not has_current_tables(using):
        return [*map(with_docs_link, _not_migrated())]
    calendars = Calendar.objects.using(using).order_by("pk")
    problems = [problem for calendar in calendars for problem in _calendar_problems(calendar)]
    for job in Job.objects.using(using).enabled().select_related("calendar").iterator():
        problems += _job_problems(job)
        if len(problems) >= PROBLEMS_LISTED:
            break
    return [*map(with_docs_link, map(without_secrets, problems))]


def _not_migrated() -> Iterator[CheckMessage]:
    if is_check_command():  # ``migrate`` runs the checks before it changes the tables
        yield Info(
            "The jobs in the database weren't checked, because migrations of django_dcron aren't "
            "applied.",
            hint="Run migrate, then this command again.",
            id="django_dcron.I001",
        )


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
    yield from _target_problems(job)
    yield from _schedule_problems(job)
    yield from _queue_problems(job)
    yield from _alert_problems(job)


def _target_problems(job: Any) -> Iterator[CheckMessage]:
    from django_dcron import targets
    from django_dcron.diagnosis.job_arguments import advice_on_arguments
    from django_dcron.exceptions import InvalidArguments, UnknownTarget

    try:
        targets.check_arguments(job.target, job.args, job.kwargs)
    except UnknownTarget as error:
        yield Warning(
            f"Job {job} would fail: {error}",
            hint="Correct the job, or register its target and import its module in cron.py of an "
            "installed app, which every process imports. If this release renames or removes the "
            f"target, pause the job first (manage.py dcron pause {shlex.quote(str(job))}).",
            id="django_dcron.W003",
        )
    except InvalidArguments as error:
        yield Warning(
            f"Job {job} would fail: {error}",
            hint=advice_on_arguments(job),
            id="django_dcron.W003",
        )


def _schedule_problems(job: Any) -> Iterator[CheckMessage]:
    from django_dcron.exceptions import InvalidSchedule

    try:
        job.parsed_schedule  # noqa: B018 (reading it parses it)
    except InvalidSchedule as error:
        yield Warning(
            f"Job {job} is quarantined: {error}",
            hint="Correct the job's schedule or calendar.",
            id="django_dcron.W004",
        )


def _queue_problems(job: Any) -> Iterator[CheckMessage]:
    from django_dcron import targets
    from django_dcron.exceptions import InvalidValue

    try:
        targets.check_queue(job.queue)
    except InvalidValue as error:
        yield Warning(
            f"Job {job} can't be saved: {error}",
            hint="Correct the job's queue, or the setting that the message names.",
            id="django_dcron.W012",
        )


def _alert_problems(job: Any) -> Iterator[CheckMessage]:
    if job.alerts is None or not are_channels_valid():
        return
    try:
        read_rules(job.alerts, settings.ALERT_CHANNELS, of_job=True)
    except InvalidRule as error:
        yield Warning(
            f"Job {job} has invalid alert rules: {error}",
            hint="Correct the job's alerts, or define the channel in DCRON_ALERT_CHANNELS. Until "
            "then, rules in DCRON_ALERTS may apply to the job.",
            id="django_dcron.W009",
        )
