"""End attempts and runs: finish a run, retry it, or end it before its start.

Invariants, besides those of ``transitions``:

- An execution is declared lost only if its heartbeat hasn't changed since the node read it.
- The transaction that ends a run also frees its slot and counts it in the job's statistics. It
  wakes the run that waits for the slot and creates the runs that follow (``chains``).
- This transaction never waits for locked statistics (``models.statistics``).
- Rows are locked in this order: the run that ends, the run that is woken, the jobs that follow,
  statistics, attempt or incident. So ending a waiting run and waking it compete for that run, not
  for the statistics.
- The transaction that ends an attempt also frees the run's place in a limit, last of all. While it
  has the limit locked, it waits for no other lock (``limits``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache, partial
from typing import Any
from uuid import UUID

from django.db import transaction
from django.db.models import Exists, OuterRef, Q

from django_dcron.conf import settings
from django_dcron.db.change_sequence import ChangeSequence
from django_dcron.db.now import UtcNow, database_now
from django_dcron.db.routing import alias_for
from django_dcron.db.session_limits import brief_transaction
from django_dcron.db.statements import Placeholder, Update
from django_dcron.models import Attempt, Run, Statistics
from django_dcron.models.run import REASON_LIMIT, RunQuerySet
from django_dcron.models.statistics import count_ended_runs, count_shadow_run, prepared_count
from django_dcron.policies.chains import conditions_met_by
from django_dcron.policies.lifecycle import State, Trigger
from django_dcron.policies.overlap import OverlapPolicy
from django_dcron.policies.slots import NO_SLOT
from django_dcron.runs import chains, incidents, limits, slot_queue, transitions
from django_dcron.runs.immediate_dispatch import dispatch_now
from django_dcron.runs.transitions import LOCK_TIMEOUT, NOBODY
from django_dcron.targets.shadow import NOT_EXECUTED
from django_dcron.utils.sync_points import reach_sync_point

QUEUEING_POLICIES = frozenset(
    {OverlapPolicy.QUEUE_ONE, OverlapPolicy.QUEUE_ALL, OverlapPolicy.CANCEL_RUNNING}
)
"""Overlap policies under which a run waits until the job's slot is free. Under ``skip``, a run
waits only for a backfilled run, for one whose worker is silent, or in the backlog of ``run_all``.
"""


def end_unstarted(run: Run, state: State, reason: str, *, attempt: int | None = None) -> bool:
    """End a run that hasn't started. Returns False if it no longer may end in this way.

    Pending, queued or waiting -> skipped, missed or cancelled; pending -> failed.
    ``attempt``: if the run is at another attempt, nothing changes.
    """
    unstarted = transitions.run_that_may_become(state, run.pk, attempt).exclude(state=State.RUNNING)
    if state is not State.FAILED:
        return _end(run, unstarted, state, reason) is not None
    with brief_transaction(alias_for(Run), settings.RUN_LEASE, savepoint=False):
        if _end(run, unstarted, state, reason) is None:
            return False
        now = database_now(alias_for(Run))
        incidents.record_unstarted_failure(run.job_id, run.pk, reason, now)
    return True


@dataclass(frozen=True, slots=True)
class LastHeartbeat:
    """The last heartbeat of an execution, as read by the process that may declare it lost."""

    heartbeat_at: datetime | None
    token: UUID | None
    """Token of the attempt; None if the attempt has no row."""


@dataclass(frozen=True, slots=True)
class AttemptEnd:
    """Which attempt ends, who ends it, and what is written to its row."""

    number: int
    columns: Mapping[str, Any]
    """The columns to write to the attempt's row."""
    token: UUID | None = None
    """The token of the attempt if the execution itself reports its end.

    The execution also dispatches the runs that waited for this one or follow it. None: a node or
    the main process of a worker ends the attempt, and nodes dispatch these runs.
    """
    last_heartbeat: LastHeartbeat | None = None
    """If the execution has sent a newer heartbeat, the attempt doesn't end."""


def finish(run: Run, end: AttemptEnd, state: State, reason: str) -> bool:
    """Running -> succeeded, failed or cancelled. Returns whether this call ended the run."""
    is_ordinary = not (run.limited or reason == NOT_EXECUTED or _others_may_wait(run))
    if end.token is not None and is_ordinary:
        run_values = {
            "id": run.pk,
            "attempt": end.number,
            "reason": reason[:REASON_LIMIT],
            "job_id": run.job_id,
        }
        attempt_values = {
            "run_id": run.pk,
            "number": end.number,
            "token": end.token,
            **end.columns,
        }
        if _finish_statements(state, tuple(end.columns), settings.RUN_LEASE).execute(
            **run_values, **attempt_values
        ):
            return True
    with brief_transaction(alias_for(Run), settings.RUN_LEASE, lock=LOCK_TIMEOUT):
        next_runs = _end(run, _executing(run.pk, end.number, end.last_heartbeat), state, reason)
        if next_runs is None:
            return False
        reach_sync_point("finish.ended")
        _close_attempt(run, end)
        _dispatch_after_commit(end, next_runs)
    return True


@cache
def _finish_statements(state: State, columns: tuple[str, ...], lease: timedelta) -> ChangeSequence:
    """Return the statements for the usual end of a run. They change nothing in other cases.

    In the usual case, no run waits for the slot, none follows, and the run has no place in a limit.
    The execution itself reports its end, and the job has a row of statistics. An attempt that
    started within ``lease`` has never been silent, so no run waits for it under ``skip``.
    """
    unfollowed = Exists(Statistics.objects.filter(pk=OuterRef("job_id"), followed=False))
    never_silent = Q(started_at__gt=UtcNow() - lease)
    return ChangeSequence(
        Update(
            Run,
            lambda: _executing(Placeholder(Run, "id"), Placeholder(Run, "attempt")).filter(
                unfollowed, never_silent, limited=False
            ),
            **final_columns(state, Placeholder(Run, "reason")),
        ),
        prepared_count(state, Placeholder(Run, "job_id")),
        _close_attempt_statement(("run_id", "number", "token"), columns),
        lock_timeout=LOCK_TIMEOUT,
    )


def retry(run: Run, end: AttemptEnd, due_at: datetime, reason: str) -> bool:
    """Running -> pending for the next attempt, unless the run was asked to stop.

    During the backoff, the run keeps its slot, but not its place in a limit. A backfilled run also
    frees its slot, so that no other run waits for its backoff. Returns whether this call ended the
    attempt.
    """
    backfilled = run.trigger == Trigger.BACKFILL
    executing = _executing(run.pk, end.number, end.last_heartbeat)
    with brief_transaction(alias_for(Run), settings.RUN_LEASE, lock=LOCK_TIMEOUT):
        limited = limits.update_and_unmark(
            run,
            executing.filter(cancel_requested_at=None),
            state=State.PENDING,
            attempt=end.number + 1,
            due_at=due_at,
            reason=reason[:REASON_LIMIT],
            deliveries=0,
            node=NOBODY,
            heartbeat_at=None,
            **(NO_SLOT if backfilled else {}),
        )
        if limited is None:
            return False
        if backfilled:
            slot_queue.wake_next(run.job_id)
        reach_sync_point("retry.written")
        _close_attempt(run, end)
        _dispatch_after_commit(end, limits.free_places([run.pk]) if limited else ())
    return True


def _executing(
    run_id: UUID | Placeholder,
    attempt: int | Placeholder,
    last_heartbeat: LastHeartbeat | None = None,
) -> RunQuerySet:
    executing = transitions.runs().running().filter(pk=run_id, attempt=attempt)
    if last_heartbeat is None:
        return executing
    # The UPDATE may have waited for the same lock that delayed the worker's heartbeat.
    executing = executing.filter(heartbeat_at=last_heartbeat.heartbeat_at)
    if last_heartbeat.token is None:
        return executing
    return executing.filter(
        Exists(Attempt.objects.filter(run=OuterRef("pk"), token=last_heartbeat.token))
    )


def final_columns(state: State, reason: str | Placeholder) -> dict[str, Any]:
    """Return the columns of an UPDATE that ends a run."""
    return {"state": state, "reason": reason, "finished_at": UtcNow(), **NO_SLOT}


def _others_may_wait(run: Run) -> bool:
    """Return whether runs may wait for this one.

    Under ``skip``, a run may have waited since an earlier attempt. A run may also wait because this
    one was silent: callers check that themselves.
    """
    return (
        run.job.overlap in QUEUEING_POLICIES
        or run.job.is_queueing
        or run.trigger == Trigger.BACKFILL
        or (run.job.overlap is OverlapPolicy.SKIP and run.attempt > 1)
    )


def _end(run: Run, guarded: RunQuerySet, state: State, reason: str) -> list[Run] | None:
    """End the run. Return the runs to dispatch now, or None if another process was first.

    The runs to dispatch are those that waited for the slot or the place in a limit, and those that
    follow this run.
    """
    # No savepoint is needed, because nothing within catches an error.
    with brief_transaction(alias_for(Run), settings.RUN_LEASE, savepoint=False):
        limited = limits.update_and_unmark(
            run, guarded, **final_columns(state, reason[:REASON_LIMIT])
        )
        if limited is None:
            return None
        woken: Run | None = None
        followers: list[Run] = []
        others_may_wait = _others_may_wait(run)
        if others_may_wait or conditions_met_by(state, started=True):
            facts = chains.slot_and_followers(run.job_id, state)
            if (others_may_wait or facts.next_in_line) and not facts.slot_taken:
                woken = slot_queue.wake_next(run.job_id)
            if facts.followed:
                followers = chains.create_followers(run, state)
        if reason == NOT_EXECUTED:
            count_shadow_run(run.job_id)
        else:
            count_ended_runs([run.job_id], state)
        placed = limits.free_places([run.pk]) if limited else []
    return [*([] if woken is None else [woken]), *followers, *placed]


def _dispatch_after_commit(end: AttemptEnd, next_runs: Iterable[Run]) -> None:
    if end.token is not None:
        for next_run in next_runs:
            transaction.on_commit(partial(dispatch_now, next_run), using=alias_for(Run))


def close_own_attempt(run: Run, end: AttemptEnd) -> None:
    """Close the attempt of an execution that doesn't end its run, if the attempt is still open.

    That happens only after the database has lost committed transactions, for example in a failover
    to an asynchronous replica: the run started twice with the same number, and the other execution
    has ended it.
    """
    if end.token is not None:
        with brief_transaction(alias_for(Run), settings.RUN_LEASE, lock=LOCK_TIMEOUT):
            _close_attempt(run, end)


def _close_attempt(run: Run, end: AttemptEnd) -> None:
    """Write the end to the attempt's row, unless it has an outcome."""
    key: dict[str, Any] = {"run_id": run.pk, "number": end.number}
    if end.token is not None:
        key["token"] = end.token
    _close_attempt_statement(tuple(key), tuple(end.columns)).execute(**key, **end.columns)


@cache
def _close_attempt_statement(key: tuple[str, ...], columns: tuple[str, ...]) -> Update:
    """Return the statement that writes ``columns`` to the attempt with these ``key`` columns."""
    attempt = {name: Placeholder(Attempt, name) for name in key}
    return Update(
        Attempt,
        lambda: Attempt.objects.filter(**attempt, outcome=""),
        finished_at=UtcNow(),
        **{name: Placeholder(Attempt, name) for name in columns},
    )
