"""The public functions for changing jobs and runs, for the admin, the command line and projects.

Each function either completes in one transaction, or raises an error that gives the reason and
changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

from django.db import IntegrityError, transaction
from django.db.models import prefetch_related_objects

from django_dcron import targets
from django_dcron.conf import settings
from django_dcron.db.contention import despite_contention
from django_dcron.db.now import database_now
from django_dcron.db.routing import alias_for
from django_dcron.db.session_limits import brief_transaction
from django_dcron.exceptions import InvalidArguments, InvalidValue, NotPossible, UnknownTarget
from django_dcron.jobs.audit.actor import acting_as
from django_dcron.jobs.audit.recording import Change, record, record_new_runs
from django_dcron.jobs.backfill import backfill
from django_dcron.jobs.batching import OnProgress, change_in_batches
from django_dcron.jobs.calendars import delete_calendar, save_calendar
from django_dcron.jobs.deletion import delete_job as delete
from django_dcron.jobs.freezing import freeze, unfreeze
from django_dcron.jobs.incident_retry import failures_until, retry_failures
from django_dcron.jobs.incidents import set_incident_state
from django_dcron.jobs.pausing import pause, pause_many, resume, resume_many
from django_dcron.jobs.preview import preview
from django_dcron.jobs.saving import save, save_many
from django_dcron.models import AuditAction, Job, Run
from django_dcron.policies.lifecycle import FINAL, State, Trigger
from django_dcron.runs import cancellation
from django_dcron.runs.bulk_cancellation import CancelledBatch, cancel_batch
from django_dcron.runs.chains import FOLLOWER_KEY_PREFIX, avoid_whole_second
from django_dcron.runs.immediate_dispatch import dispatch_all_now, dispatch_now
from django_dcron.schedules.timetable import MICROSECOND
from django_dcron.utils.json_values import check_storable
from django_dcron.utils.messages import TranslatableText
from django_dcron.utils.messages import gettext_noop as _

__all__ = [
    "acting_as",
    "backfill",
    "cancel",
    "cancel_many",
    "delete",
    "delete_calendar",
    "failures_until",
    "freeze",
    "pause",
    "pause_many",
    "preview",
    "rerun",
    "resume",
    "resume_many",
    "retry_failures",
    "save",
    "save_calendar",
    "save_many",
    "set_incident_state",
    "trigger",
    "trigger_many",
    "unfreeze",
]

CREATED_AT_ONCE = 500
CANCELLED_AT_ONCE = 500
LONGEST_KEY = 120
MAX_TRIES = 20
"""The maximum number of tries of a function that loses a race."""

STATE_NAMES = {
    State.PENDING: _("pending"),
    State.QUEUED: _("queued"),
    State.RUNNING: _("running"),
    State.WAITING: _("waiting"),
    State.SUCCEEDED: _("succeeded"),
    State.FAILED: _("failed"),
    State.SKIPPED: _("skipped"),
    State.MISSED: _("missed"),
    State.CANCELLED: _("cancelled"),
}
"""The names of states as used within a sentence. Labels begin with a capital letter."""


def trigger(
    job: Job,
    *,
    args: list[Any] | None = None,
    kwargs: dict[str, Any] | None = None,
    idempotency_key: str | None = None,
) -> Run:
    """Create a run of ``job`` that is due now, even if the job is paused, and return it.

    ``args`` and ``kwargs`` replace the job's arguments. The run is dispatched after the commit of
    the surrounding transaction. If the job already has a run with this ``idempotency_key``, that
    run is returned and none is created.

    Raises:

    - ``UnknownTarget``
    - ``InvalidArguments`` if the target doesn't accept the arguments, or they can't be stored.
    - ``InvalidValue`` if the key can't be stored or has the form of a chain's key.
    """
    if idempotency_key is not None:
        _check_key(idempotency_key)
    _check_storable("args", args)
    _check_storable("kwargs", kwargs)
    targets.check_arguments(
        job.target, job.args if args is None else args, job.kwargs if kwargs is None else kwargs
    )
    return _make_run(job, Trigger.MANUAL, args=args, kwargs=kwargs, idempotency_key=idempotency_key)


def trigger_many(
    jobs: Iterable[Job],
    *,
    args: list[Any] | None = None,
    kwargs: dict[str, Any] | None = None,
) -> list[Run | Exception]:
    """Create a run of each job, with the same results as ``trigger``, in few statements per 500
    jobs.

    Each batch of jobs is a transaction. Returns for each job its run, or the error with which
    ``trigger`` refuses it. Raises ``InvalidArguments`` if the arguments can't be stored.
    """
    _check_storable("args", args)
    _check_storable("kwargs", kwargs)
    using, jobs = alias_for(Run), list(jobs)
    results: dict[int, Run | Exception] = {}
    accepted: list[int] = []
    for position, job in enumerate(jobs):
        try:
            targets.check_arguments(
                job.target,
                job.args if args is None else args,
                job.kwargs if kwargs is None else kwargs,
            )
        except (UnknownTarget, InvalidArguments) as error:
            results[position] = error
        else:
            accepted.append(position)

    def create(batch: Sequence[int]) -> tuple[int, dict[int, Exception]]:
        if len(batch) == 1:
            results[batch[0]] = _make_run(jobs[batch[0]], Trigger.MANUAL, args=args, kwargs=kwargs)
            return 1, {}
        made = despite_contention(
            lambda: _make_runs([jobs[position] for position in batch], using, args, kwargs), using
        )
        results.update(zip(batch, made, strict=True))
        return len(batch), {}

    refused = change_in_batches(accepted, create, using, lambda done: None, CREATED_AT_ONCE)
    results |= {accepted[number]: error for number, error in refused.items()}
    return [results[position] for position in range(len(jobs))]


def _make_runs(
    jobs: Sequence[Job], using: str, args: list[Any] | None, kwargs: dict[str, Any] | None
) -> list[Run]:
    """Insert a manual run of each job. Raises ``IntegrityError`` if one can't be inserted."""
    with transaction.atomic(using=using):
        now = database_now(using)
        columns = {"due_at": now, "claimed_at": now, "trigger": Trigger.MANUAL}
        arguments = {"args": args, "kwargs": kwargs}
        made = Run.objects.using(using).bulk_create(
            Run(job=job, scheduled_at=avoid_whole_second(now), **columns, **arguments)
            for job in jobs
        )
        record_new_runs(made, using)
        transaction.on_commit(partial(dispatch_all_now, made), using=using)
    return made


def _check_key(key: str) -> None:
    if not 0 < len(key) <= LONGEST_KEY:
        raise InvalidValue(
            "idempotency_key",
            _("%(key)s has an invalid length (allowed: 1 to %(most)d characters)"),
            key=repr(key),
            most=LONGEST_KEY,
            code="invalid_length",
        )
    if key.casefold().startswith(
        FOLLOWER_KEY_PREFIX
    ):  # Some databases compare keys without regard to case.
        raise InvalidValue(
            "idempotency_key",
            _(
                "%(key)s is reserved for runs of chains. Use a key that doesn't begin with "
                "%(prefix)s."
            ),
            key=repr(key),
            prefix=repr(FOLLOWER_KEY_PREFIX),
            code="reserved",
        )


def _check_storable(field: str, value: Any) -> None:
    try:
        check_storable(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidArguments(
            _("The value can't be stored: %(problem)s."),
            field,
            problem=str(error),
            code="not_storable",
        ) from None


def rerun(run: Run) -> Run:
    """Create a run that repeats a finished run for the same occurrence, and return it.

    The new run has the arguments that were passed to the finished run. If none were passed, it has
    the job's present arguments. Raises ``NotPossible`` if the run isn't finished.
    """
    if not run.is_final:
        raise NotPossible(
            _("%(run)s is %(state)s. Only finished runs can be run again."),
            run=str(run),
            state=TranslatableText(STATE_NAMES[State(run.state)]),
            code="not_finished",
        )
    return _make_run(
        run.job,
        Trigger.RERUN,
        args=run.args,
        kwargs=run.kwargs,
        rerun_of_id=run.rerun_of_id or run.pk,
    )


def cancel(run: Run, reason: str = "cancelled manually") -> Run:
    """Cancel a run and return it, reloaded.

    A run that hasn't started ends at once. A running run gets a cancel request, and its worker
    is notified. Raises ``NotPossible`` if the run is finished.
    """
    using = alias_for(Run)
    try:
        for _try in range(MAX_TRIES):
            if despite_contention(lambda: _cancel_once(run, reason), using):
                break
        else:
            raise NotPossible(
                _("%(run)s couldn't be cancelled, because its state keeps changing. Try again."),
                run=str(run),
                code="busy",
            )
        run.refresh_from_db(using=using)
    except Run.DoesNotExist:
        raise _deleted() from None
    return run


def cancel_many(
    runs: Iterable[Run],
    reason: str = "cancelled manually",
    *,
    on_progress: OnProgress | None = None,
) -> dict[int, Exception]:
    """Cancel runs with the same results as ``cancel`` of each, in a few statements per 500 runs.

    Each batch of runs is a transaction. Returns the errors of the refused runs by their position in
    ``runs``; the others are cancelled or asked to stop. ``on_progress`` is called after each batch
    with the number of runs that are done.
    """
    using = alias_for(Run)

    def change(batch: Sequence[Run]) -> tuple[int, dict[int, Exception]]:
        result = despite_contention(lambda: _cancel_batch(batch, reason, using), using)
        refused: dict[int, Exception] = {}
        for position, run in enumerate(batch):
            if run.pk in result.deleted:
                refused[position] = _deleted()
            elif run.pk in result.finished:
                refused[position] = _finished(run, result.finished[run.pk])
            elif run.pk in result.deferred:
                try:
                    cancel(run, reason)
                except NotPossible as error:
                    refused[position] = error
        _reload(batch, using)
        return len(batch), refused

    return change_in_batches(
        list(runs), change, using, on_progress or (lambda done: None), CANCELLED_AT_ONCE
    )


def _cancel_batch(batch: Sequence[Run], reason: str, using: str) -> CancelledBatch:
    with brief_transaction(using, settings.RUN_LEASE):
        result = cancel_batch({run.pk for run in batch}, reason)
        cancelled = {run.pk: run for run in batch if run.pk in result.changed}.values()
        prefetch_related_objects([*cancelled], "job")  # for the labels
        record([Change(AuditAction.CANCEL, run, reason=reason) for run in cancelled], using)
    return result


def _reload(runs: Sequence[Run], using: str) -> None:
    rows = Run.objects.using(using).in_bulk([run.pk for run in runs])
    for run in runs:
        if (row := rows.get(run.pk)) is not None:
            for field in Run._meta.concrete_fields:
                setattr(run, field.attname, getattr(row, field.attname))


def _finished(run: Run, state: State) -> NotPossible:
    return NotPossible(
        _("%(run)s is %(state)s. Only unfinished runs can be cancelled."),
        run=str(run),
        state=TranslatableText(STATE_NAMES[state]),
        code="finished",
    )


def _deleted() -> NotPossible:
    return NotPossible(
        _("The run can't be cancelled, because it has been deleted."), code="deleted"
    )


def _cancel_once(run: Run, reason: str) -> bool:
    """Cancel the run in its current state. Return False if the state has since changed."""
    run.refresh_from_db(using=alias_for(Run))
    state = State(run.state)
    if state in FINAL:
        raise _finished(run, state)
    if state is State.RUNNING and run.cancel_requested_at is not None:
        return True
    using = alias_for(Run)
    with brief_transaction(using, settings.RUN_LEASE):
        if state is State.RUNNING:
            cancelled = cancellation.request_cancel(run.pk, reason)
        else:
            cancelled = cancellation.cancel_unstarted(run, reason)
        if cancelled:
            record([Change(AuditAction.CANCEL, run, reason=reason)], using)
    return cancelled


def _make_run(
    job: Job, kind: Trigger, *, idempotency_key: str | None = None, **columns: Any
) -> Run:
    """Insert a run that is due now, and dispatch it after the commit.

    Its ``scheduled_at`` is an instant that no other run of the job has.
    """
    using = alias_for(Run)
    now = database_now(using)
    for _try in range(MAX_TRIES):
        if idempotency_key is not None:
            existing = (
                Run.objects.using(using).filter(job=job, idempotency_key=idempotency_key).first()
            )
            if existing is not None:
                return existing
        try:
            with transaction.atomic(using=using):
                run = Run.objects.using(using).create(
                    job=job,
                    scheduled_at=avoid_whole_second(now),
                    due_at=now,
                    claimed_at=now,
                    trigger=kind,
                    idempotency_key=idempotency_key,
                    **columns,
                )
                record_new_runs([run], using)
        except IntegrityError:
            if not Job.objects.using(using).filter(pk=job.pk).exists():
                raise NotPossible(
                    _("%(job)s can't be run, because it has been deleted."),
                    job=str(job),
                    code="deleted",
                ) from None
            original = columns.get("rerun_of_id")
            if original and not Run.objects.using(using).filter(pk=original).exists():
                raise NotPossible(
                    _("The run can't be run again, because it has been pruned."), code="pruned"
                ) from None
            now += MICROSECOND  # Another run exists for this instant or with this key.
            continue
        transaction.on_commit(partial(dispatch_now, run), using=using)
        return run
    raise NotPossible(
        _(
            "%(job)s couldn't be run, because too many runs were created at the same time. "
            "Try again."
        ),
        job=str(job),
        code="busy",
    )
