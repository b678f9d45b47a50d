"""How a job stands: paused by whom, what is running, how its latest runs went.

No query depends on the length of the history: the latest runs come by the index (job, scheduled_at), the running ones by
(state, due_at).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from django.db.models import F

from django_dcron.definition import EXHAUSTED
from django_dcron.domain.lifecycle import State
from django_dcron.models import Job, Run, Statistics
from django_dcron.observability.changes import changes_of
from django_dcron.observability.figures import SuccessRate
from django_dcron.observability.scope import EVERYTHING, Scope

LATEST = 100
"""How many finished runs the success rate and the history chart are about."""
RUNNING_NAMED = 5


@dataclass(frozen=True, slots=True)
class Author:
    """Of a pause, as the admin's log has it."""

    by: str = ""
    """Empty: nobody is on record."""
    at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Pause:
    reason: str
    by: str = ""
    """Empty: nobody is on record."""
    since: datetime | None = None
    until: datetime | None = None


def paused_by(job: Job) -> Author | None:
    """None if it is not paused. It reads the job's entries in the admin's log, and no index leads to these: it is asked once
    of each version of the job."""
    if job.enabled:
        return None
    switches = [change for change in changes_of(job) if change.switched is not None]
    last = switches[-1] if switches else None
    reason = last.of("pause_reason") if last else None
    if last and last.switched is False and (reason is None or reason.new == job.pause_reason):
        return Author(last.by, last.at)
    return Author()


def pause_of(job: Job, author: Author | None) -> Pause | None:
    """None if it is not paused; a job whose schedule has come to its end is, by itself."""
    if job.enabled:
        return None
    if author and author.by:
        return Pause(job.pause_reason, author.by, author.at, job.paused_until)
    cursor = getattr(job, "cursor", None)
    since = cursor.placed_at if cursor and not cursor.enabled and job.pause_reason != EXHAUSTED else None
    return Pause(job.pause_reason, "", since, job.paused_until)


def latest_finished(job: Job, scope: Scope = EVERYTHING) -> list[Run]:
    """Newest first, with the columns that say how they went."""
    runs = scope.runs.finished().filter(job=job.pk).order_by("-scheduled_at")
    return list(runs.defer("args", "kwargs", "idempotency_key")[:LATEST])


def running(job: Job, scope: Scope = EVERYTHING) -> list[Run]:
    """At most one more than are named, in no order."""
    # The job is compared as an expression: a database must not read all runs of the job for the few that are running.
    runs = scope.runs.running().alias(of_job=F("job_id") + 0).filter(of_job=job.pk)
    return list(runs.order_by().defer("args", "kwargs", "idempotency_key")[: RUNNING_NAMED + 1])


def rate_of(runs: Sequence[Run]) -> SuccessRate:
    states = [run.state for run in runs]
    return SuccessRate(states.count(State.SUCCEEDED), states.count(State.FAILED), sampled=True)


def rate_of_all(statistics: Statistics | None) -> SuccessRate:
    counted = statistics or Statistics()
    return SuccessRate(counted.succeeded, counted.failed, sampled=False)
