"""Rerun all failed runs of an incident, or selected runs of jobs, in batches that queue.

The new runs queue like a backfill: oldest first, a few at a time, after due runs of the schedule.

Invariants:

- A failed run is rerun once, however often its batch is repeated: the incident's row is locked,
  and a run with a later rerun is left out.
- A selected run is rerun once, too: the rows of the jobs are locked, and a run with a later rerun
  is left out.
- A batch is one transaction with a bounded number of rows.
- Failures after the first batch, such as those of the new runs, aren't rerun: ``until`` is the
  last failure.
- A new run has the same arguments, and the code sees the same occurrence (``rerun_of``). Its
  ``scheduled_at`` lies just after that occurrence, in a separate second (``backfill_number``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import groupby
from operator import itemgetter
from typing import TypeVar
from uuid import UUID

from django.db import IntegrityError, transaction
from django.db.models import QuerySet

from django_dcron.db.contention import despite_contention
from django_dcron.db.now import database_now
from django_dcron.db.routing import alias_for
from django_dcron.exceptions import NotPossible
from django_dcron.jobs import locking
from django_dcron.jobs.audit.recording import AuditedChange, record_changes
from django_dcron.models import Attempt, AuditAction, Incident, Run
from django_dcron.policies.incidents import fingerprint
from django_dcron.policies.lifecycle import State
from django_dcron.policies.slots import Slot, backfill_number
from django_dcron.runs.chains import avoid_whole_second
from django_dcron.runs.creation import backfill_run
from django_dcron.runs.incidents import exception_and_message
from django_dcron.schedules.timetable import MICROSECOND
from django_dcron.utils.messages import gettext_noop as _

Result = TypeVar("Result")

RERUN_AT_ONCE = 500
SECOND = timedelta(seconds=1)
MARGIN = timedelta(minutes=1)
"""More than the time between the end of a run and the record of its failure."""


@dataclass(frozen=True, slots=True)
class RerunBatch:
    """The result of ``rerun_failures``."""

    created: int
    """The number of created runs."""
    next: int | None
    """The ``after`` of the next batch, or None if this was the last one."""


def latest_failed_attempt_id(incident: Incident) -> int:
    """Return the key of the incident's latest failed attempt, or 0 if there is none.

    Pass it to ``rerun_failures`` as ``until``.
    """
    attempts = Attempt.objects.using(alias_for(Attempt)).filter(incident=incident.pk)
    return attempts.order_by("-pk").values_list("pk", flat=True).first() or 0


def rerun_failures(
    incident: Incident,
    *,
    after: int = 0,
    until: int,
    runs: QuerySet[Run],
    may_rerun: Callable[[Run], bool] = lambda run: True,
) -> RerunBatch:
    """Create runs that repeat a batch of the incident's failed runs.

    The batch contains the runs whose last attempt belongs to the incident and has a key above
    ``after`` and up to ``until``. Runs outside ``runs`` are left out, and so are those for which
    ``may_rerun`` returns False. Get ``until`` once, before the first batch, from
    ``latest_failed_attempt_id``. If the latest failure has no attempt, one batch contains the
    latest runs that failed without one.

    Raises ``NotPossible`` if the incident or its job has been deleted, or if the job is being
    changed.
    """
    using = alias_for(Run)
    return _unless_busy(lambda: _rerun(incident, after, until, runs, may_rerun, using), using)


def rerun_selected(runs: Sequence[Run]) -> dict[UUID, Run | NotPossible]:
    """Create runs that repeat finished runs. Return them by the run that they repeat.

    There are at most ``RERUN_AT_ONCE`` runs. Those of one job are ordered by ``scheduled_at``. Runs
    with a later rerun are left out. A run of a deleted job has an error instead. Raises
    ``NotPossible`` if a job is being changed.
    """
    using = alias_for(Run)
    return _unless_busy(lambda: _rerun_selected(runs, using), using)


def _unless_busy(rerun: Callable[[], Result], using: str) -> Result:
    try:
        return despite_contention(rerun, using)
    except IntegrityError:
        raise NotPossible(
            _("The runs couldn't be rerun, because their job is being changed. Try again."),
            code="busy",
        ) from None


def _rerun_selected(runs: Sequence[Run], using: str) -> dict[UUID, Run | NotPossible]:
    job_ids = {run.job_id for run in runs}
    with transaction.atomic(using=using):
        locking.lock_cursors(job_ids, using)
        jobs = locking.lock_jobs(job_ids, using)
        created = _create_reruns([run for run in runs if run.job_id in jobs], using)
        numbers = Counter(run.job_id for run in created.values())
        record_changes(
            [
                AuditedChange(AuditAction.RERUN, jobs[job_id], after={"runs": number})
                for job_id, number in numbers.items()
            ],
            using,
        )
    deleted = {
        run.pk: NotPossible(
            _("%(job)s can't be run, because it has been deleted."),
            job=str(run.job),
            code="deleted",
        )
        for run in runs
        if run.job_id not in jobs
    }
    return created | deleted


def _rerun(
    incident: Incident,
    after: int,
    until: int,
    runs: QuerySet[Run],
    may_rerun: Callable[[Run], bool],
    using: str,
) -> RerunBatch:
    with transaction.atomic(using=using):
        locked = Incident.objects.using(using).select_for_update().filter(pk=incident.pk).first()
        if locked is None:
            raise NotPossible(_("The incident has been deleted."), code="deleted")
        if locked.last_attempt is None:
            candidates, next_after = failed_without_attempt(locked, runs), None
        else:
            candidates, next_after = _failed_runs(locked, after, until, runs, using)
        created = _create_reruns(list(filter(may_rerun, candidates)), using)
        if created:
            number = {"runs": len(created)}
            record_changes([AuditedChange(AuditAction.RERUN, locked, after=number)], using)
    return RerunBatch(len(created), next_after)


def _create_reruns(runs: Sequence[Run], using: str) -> dict[UUID, Run]:
    """Create the reruns of ``runs`` without a later rerun, by the run that they repeat."""
    latest = without_later_rerun(runs, using)
    created = _reruns(latest, using)
    Run.objects.using(using).bulk_create(created)
    return {run.pk: rerun for run, rerun in zip(latest, created, strict=True)}


def _failed_runs(
    incident: Incident, after: int, until: int, runs: QuerySet[Run], using: str
) -> tuple[list[Run], int | None]:
    """Return the runs of a batch by time, and the ``after`` of the next batch, if any."""
    attempts = Attempt.objects.using(using).filter(
        incident=incident.pk, pk__gt=after, pk__lte=until
    )
    page = list(attempts.order_by("pk").values_list("pk", "run_id", "number")[:RERUN_AT_ONCE])
    numbers = {run_id: number for _key, run_id, number in page}
    failed = runs.using(using).filter(pk__in=numbers, state=State.FAILED).select_related("job")
    last_failures = [
        run for run in failed.order_by("scheduled_at") if run.attempt == numbers[run.pk]
    ]
    return last_failures, page[-1][0] if len(page) == RERUN_AT_ONCE else None


def failed_without_attempt(incident: Incident, runs: QuerySet[Run]) -> list[Run]:
    """Return the latest runs of the incident that failed without an attempt, by time."""
    failed = runs.filter(
        job=incident.job_id, state=State.FAILED, finished_at__gte=incident.first_seen_at - MARGIN
    )
    latest = failed.filter(attempts=None).select_related("job").order_by("-scheduled_at")
    alike = (
        run
        for run in latest[:RERUN_AT_ONCE]
        if fingerprint(*exception_and_message(run.reason)) == incident.fingerprint
    )
    return sorted(alike, key=lambda run: run.scheduled_at)


def without_later_rerun(failed: Sequence[Run], using: str) -> list[Run]:
    """Return the runs that no later rerun repeats: of an original and its reruns, only the latest.

    The order is that of the database's clock. Keys depend on the clocks of the machines that
    created them.
    """
    originals = {_original(run) for run in failed}
    reruns = Run.objects.using(using).filter(rerun_of__in=originals).order_by("claimed_at", "pk")
    latest: dict[UUID | None, UUID] = dict(reruns.values_list("rerun_of", "pk"))
    return [run for run in failed if latest.get(_original(run), run.pk) == run.pk]


def _original(run: Run) -> UUID:
    return run.rerun_of_id or run.pk


def _reruns(failed: Sequence[Run], using: str) -> list[Run]:
    if not failed:
        return []
    now = database_now(using)
    times = _free_times([(run.job_id, run.scheduled_at) for run in failed], using)
    return [
        backfill_run(
            run.job_id,
            at,
            now=now,
            args=run.args,
            kwargs=run.kwargs,
            rerun_of_id=_original(run),
        )
        for run, at in zip(failed, times, strict=True)
    ]


def _free_times(wanted: Sequence[tuple[int, datetime]], using: str) -> list[datetime]:
    """Return a ``scheduled_at`` for each wanted time of a job, in the same order for each job.

    The wanted times of a job ascend. The returned time lies after the wanted one, in a second that
    no other waiting run of the job has.
    """
    runs = Run.objects.using(using).filter(job__in={job_id for job_id, _at in wanted})
    seconds: set[tuple[int, int]] = set()

    def in_free_second(job_id: int, at: datetime) -> tuple[int, datetime]:
        while (job_id, backfill_number(at)) in seconds:
            at = avoid_whole_second(at + SECOND)
        seconds.add((job_id, backfill_number(at)))
        return job_id, at

    times = [in_free_second(job_id, avoid_whole_second(at + MICROSECOND)) for job_id, at in wanted]
    unchecked = list(range(len(times)))
    while unchecked:
        unchecked_times = {times[position][1] for position in unchecked}
        waiting = runs.filter(
            slot=Slot.BACKFILL, slot_number__in={backfill_number(at) for at in unchecked_times}
        )
        used_seconds = set(waiting.values_list("job_id", "slot_number"))
        used_times = set(
            runs.filter(scheduled_at__in=unchecked_times).values_list("job_id", "scheduled_at")
        )
        collided = []
        for position in unchecked:
            job_id, at = times[position]
            if (job_id, backfill_number(at)) in used_seconds:
                times[position] = in_free_second(job_id, at)
            elif (job_id, at) in used_times:
                times[position] = job_id, avoid_whole_second(at + MICROSECOND)
            else:
                continue
            collided.append(position)
        unchecked = collided
    ascending: dict[int, Iterator[datetime]] = {
        job_id: iter([at for _job_id, at in of_job])
        for job_id, of_job in groupby(sorted(times), key=itemgetter(0))
    }
    return [next(ascending[job_id]) for job_id, _at in wanted]
