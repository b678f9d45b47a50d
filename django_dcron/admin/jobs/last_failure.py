"""The last failure of a job, with a link to its incident, for the status of the job's page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from django.contrib import admin
from django.http import HttpRequest

from django_dcron.admin.display import change_url, may_view
from django_dcron.admin.incident_badge import incident_badge
from django_dcron.admin.visibility import admin_scope
from django_dcron.models import Incident, Job, Run
from django_dcron.policies.lifecycle import State
from django_dcron.utils.bounded_text import with_ellipsis

LONGEST_TEXT = 300
"""The maximum number of characters of the error or the reason."""


@dataclass(frozen=True, slots=True)
class LastFailure:
    at: datetime
    text: str
    run_url: str
    incident_url: str
    """Empty if the user may not see the incident, or if no node has grouped the failure yet."""
    state: str = ""
    """The badge of the incident's state."""
    count: int = 0
    """The number of failures of the incident."""


def last_failure(
    job: Job, latest: Sequence[Run], request: HttpRequest, site: admin.AdminSite
) -> LastFailure | None:
    """Return the last failure that the user may see, or None.

    ``latest`` are the finished runs that the user may see, newest first.
    """
    failed = [run for run in latest if run.state == State.FAILED]
    run = max(failed, key=_ended_at, default=None)
    incident = _latest_incident(job, request, site)
    if incident is not None and (run is None or incident.last_seen_at >= _ended_at(run)):
        shown_run = next((each for each in failed if each.pk == incident.last_run), None)
        return LastFailure(
            incident.last_seen_at,
            with_ellipsis(incident.title, LONGEST_TEXT),
            change_url(shown_run, site) if shown_run else "",
            change_url(incident, site),
            incident_badge(incident.state),
            incident.count,
        )
    if run is None:
        return None
    return LastFailure(
        _ended_at(run), with_ellipsis(run.reason, LONGEST_TEXT), change_url(run, site), ""
    )


def _ended_at(run: Run) -> datetime:
    return run.finished_at or run.scheduled_at


def _latest_incident(job: Job, request: HttpRequest, site: admin.AdminSite) -> Incident | None:
    if not may_view(request, Incident, site):
        return None
    incidents = admin_scope(request, site).rows(Incident)
    return incidents.filter(job=job.pk).order_by("-last_seen_at", "-pk").first()
