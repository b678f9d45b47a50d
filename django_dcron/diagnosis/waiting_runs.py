"""Count the runs that wait for earlier runs of their job, by job."""

from __future__ import annotations

from collections import defaultdict
from datetime import datetime

from django_dcron.db.routing import alias_for
from django_dcron.diagnosis.bounded_count import MAX_COUNTED
from django_dcron.models import Job, Run
from django_dcron.models.run import RunQuerySet
from django_dcron.policies.health.facts import NAMES_LISTED, WaitingRuns
from django_dcron.policies.health.outcomes import BACKLOG_AFTER


def waiting_for_long(runs: RunQuerySet, now: datetime) -> RunQuerySet:
    """Return the runs that wait for the slot of their job and have been due for a while."""
    return runs.waiting_for_slot().due(now - BACKLOG_AFTER)


def waiting_runs_of(job: Job, now: datetime) -> tuple[int, datetime | None]:
    """Return how many due runs of the job wait for its earlier runs, and when the oldest was due.

    The number is at most ``MAX_COUNTED``.
    """
    waiting = Run.objects.using(alias_for(Run)).waiting_for_slot().due(now).filter(job=job.pk)
    found = list(waiting.order_by("due_at").values_list("due_at", flat=True)[:MAX_COUNTED])
    return len(found), found[0] if found else None


def find_waiting_runs(runs: RunQuerySet, now: datetime) -> tuple[WaitingRuns, ...]:
    """Return the jobs with the most waiting runs, among the ``MAX_COUNTED`` that were due first.

    All waiting runs of these jobs count, also those that have been due for a short time.
    """
    due_by_job: defaultdict[int, list[datetime]] = defaultdict(list)
    waiting = runs.waiting_for_slot().due(now).order_by("due_at")
    for job_id, due_at in waiting.values_list("job", "due_at")[:MAX_COUNTED]:
        due_by_job[job_id].append(due_at)
    most = sorted(due_by_job, key=lambda job_id: -len(due_by_job[job_id]))[: NAMES_LISTED + 1]
    rows = Job.objects.using(alias_for(Job)).only("namespace", "name", "misfire_grace")
    jobs = rows.in_bulk(most)
    return tuple(
        WaitingRuns(str(jobs[job_id]), len(due), due[0], jobs[job_id].misfire_grace)
        for job_id in most
        if job_id in jobs
        for due in [due_by_job[job_id]]
    )
