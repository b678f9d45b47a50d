"""List the runs of a job or of all jobs, newest first, and the attempts of a run.

The cost of a query doesn't depend on the length of the history. The indexes (job, scheduled_at) and
(scheduled_at, id) provide the order. A filter by state searches only the latest ``READ_LIMIT``
runs. Nodes claim occurrences ahead of time, so the newest runs of a job may be upcoming.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from django.db.models import Prefetch, Q, prefetch_related_objects
from django.utils.translation import gettext_lazy

from django_dcron.db.routing import alias_for
from django_dcron.diagnosis.scope import EVERYTHING
from django_dcron.models import Attempt, Job, Run
from django_dcron.models.run import RunQuerySet
from django_dcron.policies.lifecycle import Outcome, State, Trigger
from django_dcron.policies.misfire import REPLACED_BY_NEWER_RUN

READ_LIMIT = 10_000
EMPTY_LOG = gettext_lazy(
    "The log is empty. A log contains printed text and the log records that reach the root logger, "
    "by default only warnings and errors."
)
"""The text in place of a log without text (``has_empty_log``)."""


@dataclass(frozen=True, slots=True)
class RunHistory:
    runs: list[Run]
    more: bool
    """Whether there are, or may be, older runs."""
    searched: tuple[datetime, datetime] | None = None
    """The scheduled times of the newest and oldest run examined.

    None unless a search by state ended at ``READ_LIMIT`` and found at most ``limit`` runs.
    """


def read_run_history(
    job: Job | None,
    limit: int,
    *,
    since: datetime | None = None,
    until: datetime | None = None,
    states: Collection[str] = (),
    hide_upcoming_at: datetime | None = None,
) -> RunHistory:
    """Return the job's runs scheduled in ``[since, until)``, optionally only in ``states``.

    Without a job, return the runs of all jobs. ``hide_upcoming_at``: the current time, if upcoming
    runs are to be omitted. This takes at most two queries for a job, and three for all jobs.
    """
    runs = _runs_of(job).order_by("-scheduled_at", *(() if job else ("-id",)))
    if since is not None:
        runs = runs.filter(scheduled_at__gte=since)
    if until is not None:
        runs = runs.filter(scheduled_at__lt=until)
    if hide_upcoming_at is not None:
        runs = runs.exclude(_upcoming(hide_upcoming_at))
    if not states:
        found = list(runs[: limit + 1])
        return RunHistory(_with_jobs(found[:limit], job), len(found) > limit)
    examined = list(runs.values_list("pk", "state", "scheduled_at")[:READ_LIMIT])
    matching = [run_id for run_id, state, _at in examined if state in states]
    found = _with_jobs(list(runs.filter(pk__in=matching[:limit])), job)
    if len(matching) > limit or len(examined) < READ_LIMIT:
        return RunHistory(found, len(matching) > limit)
    return RunHistory(found, True, (examined[0][2], examined[-1][2]))


def has_upcoming_run(job: Job | None, now: datetime) -> bool:
    """Return whether a node has claimed an occurrence that isn't due yet.

    Without a job, the occurrences of all jobs count.
    """
    return _runs_of(job).filter(_upcoming(now)).exists()


def _runs_of(job: Job | None) -> RunQuerySet:
    runs: RunQuerySet = Run.objects.using(alias_for(Run))
    return runs if job is None else runs.filter(job=job.pk)


def _with_jobs(runs: list[Run], job: Job | None) -> list[Run]:
    """Set the job of each run, with at most one query, so that its name needs none."""
    if job is None:
        prefetch_related_objects(
            runs, Prefetch("job", EVERYTHING.rows(Job).only("namespace", "name"))
        )
    else:
        for run in runs:
            run.job = job
    return runs


def _upcoming(now: datetime) -> Q:
    """Match runs claimed ahead of time. A run that waits for its next attempt isn't upcoming."""
    return Q(state=State.PENDING, attempt=1, due_at__gt=now)


def first_attempts(runs: Sequence[Run]) -> dict[UUID, Attempt]:
    """Return the first attempts of the runs that had more than one, without their logs."""
    retried = [run.pk for run in runs if run.attempt > 1]
    if not retried:
        return {}
    rows = Attempt.objects.using(alias_for(Attempt)).filter(run__in=retried, number=1)
    return {
        row.run_id: row
        for row in rows.only("run", "due_at", "queued_at", "started_at", "finished_at")
    }


def attempts_of(run: Run) -> list[Attempt]:
    """Return the run's attempts in order, with their logs and definitions."""
    attempts = Attempt.objects.using(alias_for(Attempt)).filter(run=run.pk).order_by("number")
    found = list(attempts.select_related("definition"))
    for attempt in found:
        attempt.run = run
    return found


def has_empty_log(attempt: Attempt) -> bool:
    """Return whether the attempt's code has ended without printing or logging anything."""
    return attempt.outcome in (Outcome.SUCCEEDED, Outcome.FAILED) and not attempt.log


def replacing_run(run: Run) -> Run | None:
    """Return the newer run that replaces a missed one, by the recorded reason of the missed run."""
    if run.state != State.MISSED or REPLACED_BY_NEWER_RUN not in run.reason:
        return None
    newer = Run.objects.using(alias_for(Run)).filter(
        job=run.job_id, trigger=Trigger.SCHEDULE, scheduled_at__gt=run.scheduled_at
    )
    others = (State.MISSED, State.SKIPPED, State.CANCELLED)
    return newer.exclude(state__in=others).order_by("scheduled_at").first()
