"""Determine a job's status: who paused it, what is running, and how its latest runs ended.

The cost of a query doesn't depend on the length of the history. The index (job, scheduled_at) finds
the latest runs, and (state, due_at) the running ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from django.db.models import F

from django_dcron.diagnosis.figures import SuccessRate, success_rate_of
from django_dcron.diagnosis.scope import EVERYTHING, Scope
from django_dcron.jobs.action_texts import unsigned_reason
from django_dcron.jobs.audit.entries import LoggedChange, logged_changes_of
from django_dcron.models import Job, Run, Statistics
from django_dcron.models.run import RunQuerySet
from django_dcron.policies.lifecycle import State

LATEST = 100
"""The number of finished runs in the success rate and the history chart."""
RUNNING_NAMED = 5


@dataclass(frozen=True, slots=True)
class PauseAuthor:
    """Who paused a job, according to the audit log."""

    by: str = ""
    """Empty if nobody is recorded."""
    at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Pause:
    reason: str
    by: str = ""
    """Empty if nobody is recorded."""
    since: datetime | None = None
    until: datetime | None = None


def paused_by(job: Job) -> PauseAuthor | None:
    """Return who paused the job, or None if it isn't paused.

    This reads the job's audit log. Callers keep the result until the job changes.
    """
    return author_of_pause(job, logged_changes_of(job)) if job.is_paused else None


def author_of_pause(job: Job, changes: Iterable[LoggedChange]) -> PauseAuthor:
    """Return who paused the job according to ``changes``, the job's logged changes in order."""
    switches = [change for change in changes if change.switched is not None]
    last = switches[-1] if switches else None
    reason = last.of("pause_reason") if last else None
    if last and last.switched is False and (reason is None or reason.new == job.pause_reason):
        return PauseAuthor(last.by, last.at)
    return PauseAuthor()


def pause_of(job: Job, author: PauseAuthor | None) -> Pause | None:
    """Return the job's pause, or None if it isn't paused."""
    if not job.is_paused:
        return None
    if author and author.by:
        reason = unsigned_reason(job.pause_reason, author.by)
        return Pause(reason, author.by, author.at, job.paused_until)
    cursor = getattr(job, "cursor", None)
    since = cursor.placed_at if cursor and not cursor.enabled else None
    return Pause(job.pause_reason, "", since, job.paused_until)


def latest_finished(job: Job, scope: Scope = EVERYTHING) -> list[Run]:
    """Return the latest finished runs, newest first, with the columns that describe the outcome."""
    runs = scope.runs.finished().filter(job=job.pk).order_by("-scheduled_at")
    return list(runs.defer("args", "kwargs", "idempotency_key")[:LATEST])


def running_of_job(runs: RunQuerySet, job: Job) -> RunQuerySet:
    """Return those of ``runs`` that are running and belong to the job."""
    # The job is compared as an expression, so that the database doesn't read all of the job's runs
    # to find the few running ones.
    return runs.running().alias(of_job=F("job_id") + 0).filter(of_job=job.pk)


def running_runs(job: Job, scope: Scope = EVERYTHING) -> list[Run]:
    """Return at most ``RUNNING_NAMED + 1`` running runs, unordered."""
    runs = running_of_job(scope.runs, job)
    return list(runs.order_by().defer("args", "kwargs", "idempotency_key")[: RUNNING_NAMED + 1])


def success_rate_of_runs(runs: Sequence[Run]) -> SuccessRate:
    return success_rate_of((run.state, run.reason) for run in runs)


def success_rate_of_statistics(statistics: Statistics | None) -> SuccessRate:
    counted = statistics or Statistics()
    return SuccessRate(counted.shown_count(State.SUCCEEDED), counted.failed, sampled=False)
