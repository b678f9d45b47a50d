"""What one examination looks at, and the small things its parts share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from django_dcron.models import Cursor, Job, Run
from django_dcron.models.database import alias_for
from django_dcron.models.run import RunQuerySet
from django_dcron.observability.doctor.findings import Subject

JOBS_AT_ONCE = 500
NAMED_TIMES = 5


@dataclass(frozen=True, slots=True)
class Window:
    since: datetime
    """Not included."""
    until: datetime
    """Included; not after ``now``."""
    now: datetime
    """By the database's clock, read before anything else."""
    namespace: str = ""
    """Empty: all."""
    runs_per_job: int | None = 1000
    """At most so many of a job's latest occurrences in the window are accounted for. None: all."""
    runs: int | None = 20_000
    """At most so many of the latest runs in the window are looked at one by one. None: all."""
    steady: bool = False
    """The caller knows that no job was changed in the window and nothing pruned: a test."""


def jobs_of(window: Window) -> Iterator[list[Job]]:
    """The jobs with their cursors, a query for each batch; the memory is bounded."""
    jobs = Job.objects.using(alias_for(Job)).select_related("cursor", "calendar").order_by("pk")
    if window.namespace:
        jobs = jobs.filter(namespace=window.namespace)
    last = 0
    while batch := list(jobs.filter(pk__gt=last)[:JOBS_AT_ONCE]):
        yield batch
        last = batch[-1].pk


def runs_of(window: Window) -> RunQuerySet:
    runs = Run.objects.using(alias_for(Run))
    return runs.filter(job__namespace=window.namespace) if window.namespace else runs


def cursor_of(job: Job) -> Cursor | None:
    return getattr(job, "cursor", None)


def about_job(job: Job) -> Subject:
    return Subject("job", str(job.pk), str(job))


def at(instant: datetime | None) -> str:
    return "never" if instant is None else f"{instant.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def listed(instants: Sequence[datetime]) -> str:
    """The first few, for people."""
    shown = ", ".join(f"{instant.astimezone(UTC):%m-%d %H:%M:%S}" for instant in instants[:NAMED_TIMES])
    return shown + (", ..." if len(instants) > NAMED_TIMES else "")
