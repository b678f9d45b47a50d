"""Jobs as a list shows them: which are chosen, when each runs next, how each stands.

No query looks at runs but that for the running ones, of which there are few; what a row needs comes with its job: cursor and
statistics.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from django.db.models import Q

from django_dcron import definition
from django_dcron.domain import clock
from django_dcron.exceptions import InvalidSchedule
from django_dcron.models import Cursor, Job, Run, Statistics
from django_dcron.models.database import alias_for
from django_dcron.models.job import JobQuerySet
from django_dcron.observability.tags import tagged


class Standing(StrEnum):
    """For programs; a value is never renamed."""

    ENABLED = "enabled"
    PAUSED = "paused"
    PROBLEM = "problem"
    """Enabled, but taken out of scheduling: its schedule cannot be read."""


class Choice(StrEnum):
    """What jobs can be chosen by, besides their names."""

    ENABLED = "enabled"
    PAUSED = "paused"
    PROBLEM = "problem"
    RUNNING = "running"
    FAILING = "failing"
    """Its latest run that succeeded or failed has failed."""


@dataclass(frozen=True, slots=True)
class JobFilter:
    """Empty fields choose nothing away."""

    namespace: str = ""
    tags: tuple[str, ...] = ()
    """All of them."""
    text: str = ""
    """A part of the name, target or description, in whatever case."""
    choice: Choice | None = None


def jobs(chosen: JobFilter) -> JobQuerySet:
    """In the order of their names, with cursor and statistics."""
    found: JobQuerySet = Job.objects.using(alias_for(Job)).select_related("cursor", "statistics", "calendar")
    if chosen.namespace:
        found = found.filter(namespace=chosen.namespace)
    if chosen.text:
        fields = ("name", "target", "description")
        part = Q()
        for field in fields:
            part |= Q(**{f"{field}__icontains": chosen.text})
        found = found.filter(part)
    for tag in chosen.tags:
        found = tagged(found, tag)  # type: ignore[assignment]  # it filters, and keeps the class
    return _chosen(found, chosen.choice).order_by("namespace", "name")


def _chosen(found: JobQuerySet, choice: Choice | None) -> JobQuerySet:
    match choice:
        case Choice.ENABLED:
            # Not by exclude(): a job without a cursor is a new one, and in order.
            return found.filter(Q(cursor=None) | Q(cursor__problem=""), enabled=True)
        case Choice.PAUSED:
            return found.filter(enabled=False)
        case Choice.PROBLEM:
            return found.filter(enabled=True, cursor__problem__gt="")
        case Choice.RUNNING:
            return found.filter(pk__in=Run.objects.running().order_by().values("job"))
        case Choice.FAILING:
            return found.filter(statistics__failures_in_a_row__gt=0)
        case None:
            return found


def cursor_of(job: Job) -> Cursor | None:
    """None until the scheduler has seen a job that was written past ``control``."""
    return getattr(job, "cursor", None)


def statistics_of(job: Job) -> Statistics | None:
    return getattr(job, "statistics", None)


def problem_of(job: Job) -> str:
    cursor = cursor_of(job)
    return cursor.problem if cursor else ""


def standing_of(job: Job) -> Standing:
    if not job.enabled:
        return Standing.PAUSED
    return Standing.PROBLEM if problem_of(job) else Standing.ENABLED


def next_run_of(job: Job, now: datetime | None = None) -> datetime | None:
    """The next occurrence, also one that is claimed already: the cursor is ahead of those."""
    cursor = cursor_of(job)
    if cursor is None or cursor.next_at is None or cursor.problem or not job.enabled:
        return None
    try:
        coming = definition.timetable_of(job).first_after(now or clock.now(), cursor.next_at)
    except InvalidSchedule:
        coming = None
    return min(coming, cursor.next_at) if coming else cursor.next_at


def zone_of(job: Job) -> str:
    """The zone its schedule is read in; as it is written if that cannot be told."""
    try:
        return job.parsed_schedule.timezone
    except InvalidSchedule:
        return job.timezone
