"""Create runs on request: of one job, of many jobs, or as the repetition of a finished run.

Each function either completes in one transaction, or raises an error that gives the reason and
changes nothing. ``trigger_many`` has one transaction for each batch.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any
from uuid import UUID

from django.db import IntegrityError, transaction

from django_dcron import targets
from django_dcron.db.contention import despite_contention
from django_dcron.db.now import database_now
from django_dcron.db.routing import alias_for
from django_dcron.exceptions import (
    IdempotencyKeyReused,
    InvalidArguments,
    InvalidValue,
    NotPossible,
    UnknownTarget,
)
from django_dcron.jobs.action_texts import STATE_NAMES
from django_dcron.jobs.audit.recording import record_new_runs
from django_dcron.jobs.batching import BatchResult, change_in_batches
from django_dcron.jobs.pausing import require_text
from django_dcron.jobs.row_arguments import require_row, require_rows
from django_dcron.models import Job, Run
from django_dcron.policies.lifecycle import State, Trigger
from django_dcron.runs.chains import FOLLOWER_KEY_PREFIX, avoid_whole_second
from django_dcron.runs.immediate_dispatch import dispatch_all_now, dispatch_now
from django_dcron.schedules.timetable import MICROSECOND
from django_dcron.utils.json_values import check_storable, same_json
from django_dcron.utils.messages import TranslatableText
from django_dcron.utils.messages import gettext_noop as _

CREATED_AT_ONCE = 500
LONGEST_KEY = 120
MAX_TRIES = 20
"""Maximum number of instants to try for a run. Another run of the job may have the same instant."""


def trigger(
    job: Job,
    *,
    args: list[Any] | None = None,
    kwargs: dict[str, Any] | None = None,
    idempotency_key: str | None = None,
) -> Run:
    """Create a run of ``job`` that is due now, even if the job is paused, and return it.

    ``args`` and ``kwargs`` replace the job's arguments. The run is dispatched after the commit of
    the surrounding transaction. If the job already has a run with this ``idempotency_key`` and
    these arguments, that run is returned and none is created.

    Raises:

    - ``UnknownTarget``
    - ``InvalidArguments`` if the target doesn't accept the arguments, or they can't be stored.
    - ``InvalidValue`` if the key can't be stored, or begins with ``after run ``, which chains use.
    - ``IdempotencyKeyReused`` if the run with the key has other arguments.
    - ``NotPossible`` if the job has been deleted, or too many runs are created at the same time.
    """
    require_row(job, Job)
    if idempotency_key is not None:
        _check_key(idempotency_key)
    _check_storable("args", args)
    _check_storable("kwargs", kwargs)
    columns: dict[str, Any] = {"args": args, "kwargs": kwargs, "idempotency_key": idempotency_key}
    try:
        _check_arguments(job, args, kwargs)
    except (UnknownTarget, InvalidArguments):
        # A repeated request returns its run, even if the target no longer accepts the arguments.
        if run := _run_with_key(job, columns, alias_for(Run)):
            return run
        raise
    return _make_run(job, Trigger.MANUAL, **columns)


def trigger_many(
    jobs: Iterable[Job],
    *,
    args: list[Any] | None = None,
    kwargs: dict[str, Any] | None = None,
    idempotency_key: str | None = None,
) -> list[Run | Exception]:
    """Create a run of each job. The results are those of calling ``trigger`` for each job.

    Each batch of 500 jobs is a transaction of a few statements. Returns for each job its run, or
    the error with which ``trigger`` refuses it. Each job may have its own run with
    ``idempotency_key``.

    Raises:

    - ``InvalidArguments`` if the arguments can't be stored.
    - ``InvalidValue`` if the key can't be stored, or begins with ``after run ``, which chains use.
    """
    if idempotency_key is not None:
        _check_key(idempotency_key)
    _check_storable("args", args)
    _check_storable("kwargs", kwargs)
    using, jobs = alias_for(Run), require_rows(jobs, Job)
    columns: dict[str, Any] = {"args": args, "kwargs": kwargs, "idempotency_key": idempotency_key}
    results: dict[int, Run | Exception] = {}
    accepted: list[int] = []
    for position, job in enumerate(jobs):
        try:
            _check_arguments(job, args, kwargs)
        except (UnknownTarget, InvalidArguments) as error:
            results[position] = error
        else:
            accepted.append(position)
    existing = _runs_with_key([jobs[position] for position in results], columns, using)
    results |= {
        position: existing[jobs[position].pk]
        for position in results
        if jobs[position].pk in existing
    }

    def create(batch: Sequence[int]) -> BatchResult:
        if len(batch) == 1:
            results[batch[0]] = _make_run(jobs[batch[0]], Trigger.MANUAL, **columns)
            return BatchResult(1, {})
        runs = despite_contention(
            lambda: _make_runs([jobs[position] for position in batch], using, columns), using
        )
        results.update(zip(batch, runs, strict=True))
        return BatchResult(len(batch), {})

    refused = change_in_batches(accepted, create, using, lambda done: None, CREATED_AT_ONCE)
    results |= {accepted[number]: error for number, error in refused.items()}
    return [results[position] for position in range(len(jobs))]


def _make_runs(
    jobs: Sequence[Job], using: str, columns: Mapping[str, Any]
) -> list[Run | IdempotencyKeyReused]:
    """Return a manual run of each job: the one that has the idempotency key, or a new one.

    Raises ``IntegrityError`` if a run can't be inserted.
    """
    with transaction.atomic(using=using):
        existing = _runs_with_key(jobs, columns, using)
        now = database_now(using)
        times = {"due_at": now, "claimed_at": now, "trigger": Trigger.MANUAL}
        created = Run.objects.using(using).bulk_create(
            Run(job=job, scheduled_at=avoid_whole_second(now), **times, **columns)
            for job in jobs
            if job.pk not in existing
        )
        present = Job.objects.using(using).filter(pk__in=[run.job_id for run in created])
        if present.count() < len(created):
            raise IntegrityError("a job has been deleted")
        record_new_runs(created, using)
        transaction.on_commit(partial(dispatch_all_now, created), using=using)
    new = iter(created)
    return [existing.get(job.pk) or next(new) for job in jobs]


def _check_arguments(job: Job, args: list[Any] | None, kwargs: dict[str, Any] | None) -> None:
    """Check the arguments of a run: those given, otherwise the job's."""
    targets.check_arguments(
        job.target, job.args if args is None else args, job.kwargs if kwargs is None else kwargs
    )


def _check_key(key: str) -> None:
    if not 0 < len(key) <= LONGEST_KEY:
        raise InvalidValue(
            "idempotency_key",
            _("%(key)s has an invalid length (allowed: 1 to %(most)d characters)"),
            key=repr(key),
            most=LONGEST_KEY,
            code="invalid_length",
        )
    require_text("idempotency_key", key, LONGEST_KEY)
    if key.startswith(FOLLOWER_KEY_PREFIX):
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
    the job's current arguments. Raises ``NotPossible`` if the run isn't finished, if the run or its
    job has been deleted, or if too many runs are created at the same time.
    """
    require_row(run, Run)
    if not run.is_final:
        raise NotPossible(
            _("%(run)s is %(state)s. Only finished runs can be run again."),
            run=run.label,
            state=TranslatableText(STATE_NAMES[State(run.state)]),
            code="not_finished",
        )
    try:
        job = run.job
    except Job.DoesNotExist:
        raise _pruned() from None
    return _make_run(
        job,
        Trigger.RERUN,
        args=run.args,
        kwargs=run.kwargs,
        rerun_of_id=run.rerun_of_id or run.pk,
    )


def _make_run(
    job: Job, kind: Trigger, *, idempotency_key: str | None = None, **columns: Any
) -> Run:
    """Insert a run that is due now, and dispatch it after the commit.

    Its ``scheduled_at`` is an instant that no other run of the job has.
    """
    using = alias_for(Run)
    now = database_now(using)
    for _try in range(MAX_TRIES):
        requested = columns | {"idempotency_key": idempotency_key}
        if existing := _run_with_key(job, requested, using):
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
                # The inserted row keeps the job from being deleted before this transaction ends.
                _require_job(job, using)
                record_new_runs([run], using)
        except IntegrityError:
            _require_existing(job, columns.get("rerun_of_id"), using)
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


def _run_with_key(job: Job, requested: Mapping[str, Any], using: str) -> Run | None:
    """Return the job's run with the requested idempotency key, or None.

    Raises ``IdempotencyKeyReused`` if the run has other arguments.
    """
    found = _runs_with_key([job], requested, using).get(job.pk)
    if isinstance(found, IdempotencyKeyReused):
        raise found
    return found


def _runs_with_key(
    jobs: Sequence[Job], requested: Mapping[str, Any], using: str
) -> dict[int, Run | IdempotencyKeyReused]:
    """Return the run with the requested idempotency key by job, or its error.

    Without a key, no job has such a run.
    """
    key = requested["idempotency_key"]
    if key is None:
        return {}
    runs = Run.objects.using(using).filter(job__in=jobs, idempotency_key=key)
    return {run.job_id: _key_error(run, requested) or run for run in runs}


def _key_error(run: Run, requested: Mapping[str, Any]) -> IdempotencyKeyReused | None:
    """Return the error if ``run`` has the requested idempotency key, but other arguments."""
    # Stored values are JSON, in which a tuple is a list and each key is text.
    args, kwargs = (json.loads(json.dumps(requested[name])) for name in ("args", "kwargs"))
    if same_json(run.args, args) and same_json(run.kwargs, kwargs):
        return None
    return IdempotencyKeyReused(
        _(
            "The key %(key)s was used for run %(run)s with other arguments. Nothing was done. Use "
            "a new key."
        ),
        key=run.idempotency_key,
        run=run.pk,
        code="key_reused",
    )


def _require_job(job: Job, using: str) -> None:
    """Raise ``NotPossible`` if the job has been deleted."""
    if not Job.objects.using(using).filter(pk=job.pk).exists():
        raise NotPossible(
            _("%(job)s can't be run, because it has been deleted."), job=str(job), code="deleted"
        ) from None


def _require_existing(job: Job, original: UUID | None, using: str) -> None:
    """Raise ``NotPossible`` if the job, or the run to repeat, has been deleted."""
    _require_job(job, using)
    if original is not None and not Run.objects.using(using).filter(pk=original).exists():
        raise _pruned() from None


def _pruned() -> NotPossible:
    return NotPossible(_("The run can't be run again, because it has been pruned."), code="pruned")
