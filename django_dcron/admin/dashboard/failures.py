"""The latest failures on the dashboard: one row per group of similar failures.

Each row has the first line of the latest message. The failures of jobs that have succeeded since
come last.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django_dcron.admin.dashboard.viewer import Viewer
from django_dcron.admin.display import change_url, link, list_url
from django_dcron.db.routing import alias_for
from django_dcron.diagnosis.failures import (
    FailedRun,
    FailureGroup,
    group_failures,
    latest_failures,
)
from django_dcron.diagnosis.figures import window_start
from django_dcron.models import Attempt, Incident, Job, Run, Statistics
from django_dcron.models.incident import NOT_GROUPED
from django_dcron.policies.lifecycle import State

FAILURES_READ = 300
GROUPS_SHOWN = 10


@dataclass(frozen=True, slots=True)
class FailureRow:
    group: FailureGroup
    url: str
    job: str
    runs_url: str
    """The failed runs of the job."""
    of_job: int
    """The number of these runs, among the failures that were read."""
    incident_url: str
    """Empty if the viewer may not see the incident, or if no node has grouped the failures yet."""
    succeeded_at: datetime | None
    """When the job's last run succeeded, if that was after the failures; otherwise None."""

    @property
    def failure(self) -> FailedRun:
        return self.group.latest

    @property
    def exception(self) -> str:
        """The name of the exception without its module."""
        return self.failure.exception_class.rpartition(".")[2]


def context(viewer: Viewer) -> dict[str, Any]:
    site, since = viewer.site, window_start(viewer.now)
    failures = latest_failures(since, FAILURES_READ, viewer.scope)
    if not viewer.may_view(Attempt):  # show the shorter reason of the run instead
        failures = [
            FailedRun(failure.run, message=failure.run.reason, incident=failure.incident)
            for failure in failures
        ]
    groups = group_failures(failures)
    of_jobs = Counter(failure.run.job_id for failure in failures)
    successes = _later_successes(viewer, groups)
    groups = sorted(groups, key=lambda group: group.latest in successes)[:GROUPS_SHOWN]
    incidents = _visible_incidents(viewer, {group.incident for group in groups} - {NOT_GROUPED})
    sees_jobs = viewer.may_view(Job)

    def row(group: FailureGroup) -> FailureRow:
        run = group.latest.run
        failed = {"state__exact": "failed", "due_at__gte": since.isoformat()}
        incident = Incident(pk=group.incident) if group.incident in incidents else None
        return FailureRow(
            group=group,
            url=change_url(run, site),
            job=link(run.job, site) if sees_jobs else str(run.job),
            runs_url=list_url(Run, site, job__id__exact=str(run.job_id), **failed),
            of_job=of_jobs[run.job_id],
            incident_url=change_url(incident, site) if incident else "",
            succeeded_at=successes.get(group.latest),
        )

    return {
        "now": viewer.now,
        "rows": [row(group) for group in groups],
        "counted_runs": FAILURES_READ if len(failures) == FAILURES_READ else 0,
        "all_url": list_url(Run, site, state__exact="failed", due_at__gte=since.isoformat()),
    }


def _later_successes(viewer: Viewer, groups: Sequence[FailureGroup]) -> dict[FailedRun, datetime]:
    """Return when the job's last run succeeded, for each failure that this run came after.

    The run of a shadow isn't a success.
    """
    rows = Statistics.objects.using(alias_for(Statistics))
    last_runs = viewer.scope.of_jobs(rows, "job").filter(
        job__in={group.latest.run.job_id for group in groups},
        last_state=State.SUCCEEDED,
        last_was_shadow=False,
    )
    succeeded_at = dict(last_runs.values_list("job_id", "last_finished_at"))
    return {
        group.latest: at
        for group in groups
        if (at := succeeded_at.get(group.latest.run.job_id))
        and (ended_at := group.latest.run.finished_at)
        and at > ended_at
    }


def _visible_incidents(viewer: Viewer, keys: set[int]) -> set[int]:
    """Return the keys of the incidents that the viewer may see.

    It needs a query only if the incidents of the viewer are narrowed.
    """
    if not keys or not viewer.may_view(Incident):
        return set()
    if not viewer.scope.narrows(Incident):
        return keys
    return set(viewer.scope.rows(Incident).filter(pk__in=keys).values_list("pk", flat=True))
