"""The period that the doctor examines, and helpers that its checks share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from django_dcron.db.routing import alias_for
from django_dcron.diagnosis.doctor.findings import Subject
from django_dcron.models import Job, Run
from django_dcron.models.run import RunQuerySet
from django_dcron.utils.time_format import format_site_time

JOBS_AT_ONCE = 500
NAMED_TIMES = 5
"""The maximum number of times in a sentence."""


@dataclass(frozen=True, slots=True)
class Window:
    since: datetime
    """Exclusive."""
    until: datetime
    """Inclusive; not after ``now``."""
    now: datetime
    """By the database's clock, read before all other data."""
    namespace: str = ""
    """Empty for all namespaces."""
    occurrences_per_job: int | None = 1000
    """The maximum number of a job's latest occurrences to account for, or None for all."""
    runs: int | None = 20_000
    """The maximum number of the window's latest runs to check individually, or None for all."""
    steady: bool = False
    """Whether no job was changed and nothing was pruned in the window. Only tests set this."""


def batches_of_jobs(window: Window) -> Iterator[list[Job]]:
    """Yield batches of jobs with their cursors. Each batch takes one query and bounded memory."""
    jobs = Job.objects.using(alias_for(Job)).select_related("cursor", "calendar").order_by("pk")
    if window.namespace:
        jobs = jobs.filter(namespace=window.namespace)
    last = 0
    while batch := list(jobs.filter(pk__gt=last)[:JOBS_AT_ONCE]):
        yield batch
        last = batch[-1].pk


def runs_in_namespace(window: Window) -> RunQuerySet:
    runs = Run.objects.using(alias_for(Run))
    return runs.filter(job__namespace=window.namespace) if window.namespace else runs


def job_subject(job: Job) -> Subject:
    return Subject("job", str(job.pk), str(job))


def format_moment(instant: datetime | None) -> str:
    """Format a time in the site's time zone, or ``never``."""
    return "never" if instant is None else format_site_time(instant)


def format_times(instants: Sequence[datetime]) -> str:
    """Format at most ``NAMED_TIMES`` times for a sentence, in the site's time zone."""
    shown = ", ".join(map(format_site_time, instants[:NAMED_TIMES]))
    return shown + (", ..." if len(instants) > NAMED_TIMES else "")
