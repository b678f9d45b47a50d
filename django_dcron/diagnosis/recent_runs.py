"""Load the latest runs of many jobs with two queries.

Invariants:

- Each job costs two short index scans, regardless of the length of its history.
- At most ``LATEST`` + 1 runs are read per job, without their arguments.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import reduce
from operator import or_
from uuid import UUID

from django.db.models import OuterRef, Q, Subquery

from django_dcron.diagnosis.figures import SuccessRate, percentile, success_rate_of
from django_dcron.diagnosis.scope import Scope
from django_dcron.models import Job
from django_dcron.policies.lifecycle import FINAL, State
from django_dcron.targets.shadow import NOT_EXECUTED

LATEST = 30
COLUMNS = ("job", "pk", "scheduled_at", "state", "started_at", "finished_at", "reason")


@dataclass(frozen=True, slots=True)
class RecentRun:
    run_id: UUID
    scheduled_at: datetime
    state: str
    started_at: datetime | None
    finished_at: datetime | None
    reason: str = ""

    @property
    def has_executed(self) -> bool:
        """Whether the run isn't that of a shadow, which executes nothing."""
        return self.reason != NOT_EXECUTED


@dataclass(frozen=True, slots=True)
class RecentRuns:
    """The latest runs of a job, oldest first."""

    runs: tuple[RecentRun, ...]

    @property
    def success_rate(self) -> SuccessRate:
        return success_rate_of((run.state, run.reason) for run in self.runs)

    def duration(self, percent: int) -> timedelta | None:
        """Return a percentile of the durations of the runs that succeeded."""
        return percentile(
            sorted(
                run.finished_at - run.started_at
                for run in self.runs
                if run.state == State.SUCCEEDED
                and run.has_executed
                and run.started_at
                and run.finished_at
            ),
            percent,
        )

    @property
    def last_finished(self) -> RecentRun | None:
        finished = [run for run in self.runs if run.state in FINAL and run.finished_at]
        return max(finished, key=lambda run: run.finished_at or run.scheduled_at, default=None)


def recent_runs(jobs: Sequence[Job], scope: Scope) -> dict[int, RecentRuns]:
    """Return the latest runs by job. Deleted jobs have none."""
    latest = scope.runs.filter(job=OuterRef("pk")).order_by("-scheduled_at")
    firsts = list(
        Job.objects.using(scope.jobs.db)
        .filter(pk__in=[job.pk for job in jobs])
        .order_by()
        .values_list("pk", Subquery(latest.values("scheduled_at")[LATEST - 1 : LATEST]))
    )
    if not firsts:
        return {}
    rows = scope.runs.filter(reduce(or_, map(_since, firsts))).order_by("job_id", "scheduled_at")
    found: defaultdict[int, list[RecentRun]] = defaultdict(list)
    for job_id, *columns in rows.values_list(*COLUMNS):
        found[job_id].append(RecentRun(*columns))
    return {job_id: RecentRuns(tuple(runs[-LATEST:])) for job_id, runs in found.items()}


def _since(first: Iterable[object]) -> Q:
    job_id, scheduled_at = first
    since = {} if scheduled_at is None else {"scheduled_at__gte": scheduled_at}
    return Q(job=job_id, **since)
