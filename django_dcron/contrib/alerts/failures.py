"""Find the failed runs behind a change of a job's counters, with their incidents."""

from __future__ import annotations

from dataclasses import dataclass

from django.db.models import F

from django_dcron.db.routing import alias_for
from django_dcron.models import Attempt, Incident, Job, Run
from django_dcron.policies.incidents import IncidentState
from django_dcron.policies.lifecycle import State
from django_dcron.runs.incidents import group_failed_attempts

LATEST = 50
"""The number of a job's latest runs that are searched for failed ones."""


@dataclass(frozen=True, slots=True)
class ReportedFailures:
    """The latest failed runs of a job. Runs that aren't found count as not muted."""

    muted: int = 0
    """The number of these runs that belong to muted incidents."""
    run: Run | None = None
    """The latest run that doesn't belong to a muted incident."""
    incident: Incident | None = None
    """The incident of ``run``."""


def read_failures(job: Job, number: int) -> ReportedFailures:
    """Find the ``number`` latest failed runs of the job among its ``LATEST`` latest runs."""
    using = alias_for(Run)
    group_failed_attempts(job_id=job.pk)  # the node may not have grouped them yet
    latest = Run.objects.using(using).filter(job=job.pk).order_by("-scheduled_at")[:LATEST]
    failed = [run for run in latest if run.state == State.FAILED]
    failed.sort(key=lambda run: (run.finished_at or run.due_at, run.pk), reverse=True)
    failed = failed[:number]
    keys = dict(
        Attempt.objects.using(using)
        .filter(run__in=failed, number=F("run__attempt"))
        .values_list("run", "incident")
    )
    incidents = {
        each.pk: each for each in Incident.objects.using(using).filter(pk__in=set(keys.values()))
    }
    without_attempt = Incident.objects.using(using).filter(
        job=job.pk, last_run__in=[run.pk for run in failed if run.pk not in keys]
    )
    by_run = {each.last_run: each for each in without_attempt}
    incident_of = {
        run.pk: incidents.get(keys.get(run.pk) or 0) or by_run.get(run.pk) for run in failed
    }
    reported = [run for run in failed if not _is_muted(incident_of[run.pk])]
    muted = len(failed) - len(reported)
    if not reported:
        return ReportedFailures(muted)
    return ReportedFailures(muted, reported[0], incident_of[reported[0].pk])


def _is_muted(incident: Incident | None) -> bool:
    return incident is not None and incident.state == IncidentState.MUTED
