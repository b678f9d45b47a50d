"""Change the state of a run after its insert, each time by one guarded UPDATE.

Invariants:

- A transition names the states it may leave (``lifecycle.TRANSITIONS``) and, for a running run,
  the attempt.
- A transition returns whether it won. Zero changed rows is a normal result: another process was
  first.
- An execution is declared lost only if it has sent no heartbeat since the one that was judged.
- The transaction that ends a run also frees its slot and counts it in the job's statistics. It
  wakes the run that waits for the slot and creates the runs that follow (``chains``).
- It never waits for locked statistics (``models.statistics``).
- The slot passes directly from the ended run to the run that has waited longest. No newcomer gets
  in between.
- All times are the database's.
- Rows are locked in this order: the run that ends, the run that is woken, the jobs that follow,
  statistics, attempt or incident. So ending a waiting run and waking it compete for that run, not
  for the statistics.
- A run is locked by its primary key, never by its slot.
- The start and the end of an attempt wait ``LOCK_TIMEOUT`` for a locked row, then fail as
  contention.
- The transaction that ends an attempt also frees the run's place in a limit, last of all. While it
  holds the limit's lock, it waits for no other lock (``limits``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache, partial
from typing import Any
from uuid import UUID

from django.db import IntegrityError, transaction
from django.db.models import Exists, F, OuterRef

from django_dcron.conf import settings
from django_dcron.db.change_sequence import ChangeSequence
from django_dcron.db.now import UtcNow, database_now
from django_dcron.db.routing import alias_for
from django_dcron.db.session_limits import brief_transaction
from django_dcron.db.statements import Given, Insert, Select, Update
from django_dcron.models import Attempt, Freeze, Run, Statistics
from django_dcron.models.run import REASON_LIMIT, RunQuerySet
from django_dcron.models.statistics import count, counting
from django_dcron.policies.chains import conditions_met_by
from django_dcron.policies.lifecycle import State, Trigger, states_before
from django_dcron.policies.overlap import OverlapPolicy
from django_dcron.policies.slots import NO_SLOT, Slot, backfill_number
from django_dcron.runs import chains, incidents, limits
from django_dcron.utils.sync_points import reach_sync_point

NOBODY = ""
LOCK_TIMEOUT = timedelta(milliseconds=300)
"""How long the start or the end of an attempt waits for locked rows before it fails as contention.

It is short, because a worker has other runs to execute. MariaDB rounds it up to a second.
"""

QUEUEING_POLICIES = frozenset(
    {OverlapPolicy.QUEUE_ONE, OverlapPolicy.QUEUE_ALL, OverlapPolicy.CANCEL_RUNNING}
)
"""The overlap policies under which runs wait for the slot."""


def runs() -> RunQuerySet:
    """Return the runs, read from the database that they are written to."""
    return Run.objects.using(alias_for(Run))


def _run_that_may_become(
    target: State, run_id: UUID | Given, attempt: int | Given | None = None
) -> RunQuerySet:
    """Return the run if it may change to ``target`` and, if given, is at ``attempt``."""
    guarded = runs().filter(pk=run_id, state__in=states_before(target))
    return guarded if attempt is None else guarded.filter(attempt=attempt)


# --- start ----------------------------------------------------------------------------------------


def start_columns(slot: Any) -> dict[str, Any]:
    """Return the columns of an UPDATE that starts a run."""
    now = UtcNow()
    times = {"started_at": now, "heartbeat_at": now}
    return {"state": State.RUNNING, "reason": "", "slot": slot, "slot_number": 0, **times}


_OF_ATTEMPT = (
    *("run_id", "number", "token", "worker", "definition_id", "release"),
    *("due_at", "queued_at", "started_at"),
)
_START = ChangeSequence(
    Update(
        Run,
        lambda: _run_that_may_become(
            State.RUNNING, Given(Run, "id"), Given(Run, "attempt")
        ).not_frozen(Given(Freeze, "namespace")),
        **start_columns(Given(Run, "slot")),
    ),
    Insert(
        Attempt,
        lambda: Attempt(**{name: Given(Attempt, name) for name in _OF_ATTEMPT}),
    ),
    lock_timeout=LOCK_TIMEOUT,
)


def mark_running(
    run: Run,
    attempt: int,
    *,
    slot: Slot | None,
    token: UUID,
    worker: str,
    started_at: datetime,
    definition_id: UUID | None = None,
    release: str = "",
) -> int | None:
    """Pending or queued -> running, unless a freeze forbids it, and insert the attempt's row.

    The attempt's row keeps the due time and the dispatch time of ``run`` as it was read.
    Returns the key of that row, or None if another process was first.
    Raises ``IntegrityError`` if another run has ``slot``.
    """
    namespace = run.job.namespace
    run_values = {"id": run.pk, "attempt": attempt, "slot": slot, "namespace": namespace}
    attempt_values = {"run_id": run.pk, "number": attempt, "token": token, "worker": worker}
    recorded = {"definition_id": definition_id, "release": release}
    times = {"due_at": run.due_at, "queued_at": run.dispatched_at, "started_at": started_at}
    return _START.insert(**run_values, **attempt_values, **recorded, **times)


def mark_waiting(run: Run, *, slot: Slot | None, reason: str) -> bool:
    """Pending or queued -> waiting.

    Raises ``IntegrityError`` if another run has ``slot``, the place in the queue.
    """
    return bool(
        _run_that_may_become(State.WAITING, run.pk, run.attempt).update(
            state=State.WAITING, slot=slot, slot_number=0, reason=reason[:REASON_LIMIT]
        )
    )


def mark_waiting_in_backfill(run: Run, *, reason: str) -> bool:
    """Pending or queued -> waiting for a backfilled run that found the slot taken.

    The run returns to its place among the other backfilled runs.
    """
    return bool(
        _run_that_may_become(State.WAITING, run.pk, run.attempt).update(
            state=State.WAITING,
            slot=Slot.BACKFILL,
            slot_number=backfill_number(run.scheduled_at),
            due_at=F("scheduled_at"),
            reason=reason[:REASON_LIMIT],
        )
    )


def release_backfilled(run_id: UUID, due_at: datetime) -> bool:
    """Waiting -> pending for a backfilled run whose turn has come. It is on no node's agenda."""
    backfilled = runs().waiting().filter(pk=run_id, trigger=Trigger.BACKFILL)
    return bool(
        backfilled.update(
            state=State.PENDING, due_at=due_at, node=NOBODY, deliveries=0, reason="", **NO_SLOT
        )
    )


_RENEW_HEARTBEAT = Update(
    Run,
    lambda: runs().running().filter(pk=Given(Run, "id"), attempt=Given(Run, "attempt")),
    heartbeat_at=UtcNow(),
)


def renew_heartbeat(run_id: UUID, attempt: int) -> bool:
    """Renew the heartbeat of the attempt. Returns False if the attempt is no longer running."""
    return bool(_RENEW_HEARTBEAT.execute(id=run_id, attempt=attempt))


# --- the end of a run -----------------------------------------------------------------------------


def end_unstarted(run: Run, state: State, reason: str, *, attempt: int | None = None) -> bool:
    """Pending, queued or waiting -> skipped, missed, cancelled or failed."""
    unstarted = _run_that_may_become(state, run.pk, attempt).exclude(state=State.RUNNING)
    if state is not State.FAILED:
        return _end(run, unstarted, state, reason) is not None
    with brief_transaction(alias_for(Run), settings.RUN_LEASE, savepoint=False):
        if _end(run, unstarted, state, reason) is None:
            return False
        incidents.record_unstarted_failure(run.job_id, run.pk, reason, database_now(runs().db))
    return True


@dataclass(frozen=True, slots=True)
class LastHeartbeat:
    """The last heartbeat of an execution, as read by the process that may declare it lost."""

    heartbeat_at: datetime | None
    token: UUID | None
    """Token of the attempt; None if the attempt has no row."""


def finish(
    run: Run,
    attempt: int,
    state: State,
    reason: str,
    closing: dict[str, Any],
    token: UUID | None,
    dispatch_now: Callable[[Run], None] | None = None,
    last_heartbeat: LastHeartbeat | None = None,
) -> bool:
    """Running -> succeeded, failed or cancelled.

    ``closing``: Columns to write to the attempt's row.
    ``dispatch_now``: Called after the commit with the run that is woken and each run that follows.
    Without it, nodes dispatch these runs.
    ``last_heartbeat``: Returns False if the execution has sent a newer heartbeat.
    """
    if token is not None and not run.limited and not _others_may_wait(run):
        run_values = {
            "id": run.pk,
            "attempt": attempt,
            "reason": reason[:REASON_LIMIT],
            "job_id": run.job_id,
        }
        attempt_values = {"run_id": run.pk, "number": attempt, "token": token, **closing}
        if _finish(state, tuple(closing)).execute(**run_values, **attempt_values):
            return True
    with brief_transaction(alias_for(Run), settings.RUN_LEASE, lock=LOCK_TIMEOUT):
        next_runs = _end(run, _executing(run.pk, attempt, last_heartbeat), state, reason)
        if next_runs is None:
            return False
        reach_sync_point("finish.ended")
        _close_attempt(run, attempt, closing, token)
        _dispatch_after_commit(next_runs, dispatch_now)
    return True


@cache
def _finish(state: State, columns: tuple[str, ...]) -> ChangeSequence:
    """Return the statements for the usual case.

    No run waits for the slot, none follows, the run has no place in a limit, the execution itself
    reports its end, and the job has a row of statistics.
    """
    unfollowed = Exists(Statistics.objects.filter(pk=OuterRef("job_id"), followed=False))
    return ChangeSequence(
        Update(
            Run,
            lambda: _executing(Given(Run, "id"), Given(Run, "attempt")).filter(
                unfollowed, limited=False
            ),
            **final_columns(state, Given(Run, "reason")),
        ),
        counting(state, Given(Run, "job_id")),
        _closing(("run_id", "number", "token"), columns),
        lock_timeout=LOCK_TIMEOUT,
    )


def retry(
    run: Run,
    attempt: int,
    due_at: datetime,
    reason: str,
    closing: dict[str, Any],
    token: UUID | None,
    dispatch_now: Callable[[Run], None] | None = None,
    last_heartbeat: LastHeartbeat | None = None,
) -> bool:
    """Running -> pending for the next attempt, unless the run was asked to stop.

    An unfinished run keeps its slot, but frees its place in a limit. A backfilled run passes the
    slot on, so that no other run waits for its backoff. ``dispatch_now`` and ``last_heartbeat``:
    see ``finish``.
    """
    backfilled = run.trigger == Trigger.BACKFILL
    executing = _executing(run.pk, attempt, last_heartbeat).filter(cancel_requested_at=None)
    with brief_transaction(alias_for(Run), settings.RUN_LEASE, lock=LOCK_TIMEOUT):
        limited = limits.update_and_unmark(
            run,
            executing,
            state=State.PENDING,
            attempt=attempt + 1,
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
            wake_next(run.job_id)
        reach_sync_point("retry.written")
        _close_attempt(run, attempt, closing, token)
        _dispatch_after_commit(limits.free_places([run.pk]) if limited else (), dispatch_now)
    return True


def mark_cancel_requested(run_id: UUID, reason: str) -> bool:
    """Ask a running run to stop. Its worker reads the request at the next heartbeat."""
    running = runs().running().filter(pk=run_id, cancel_requested_at=None)
    return bool(running.update(cancel_requested_at=UtcNow(), reason=reason[:REASON_LIMIT]))


_ANY_IN_LINE = Select(
    Run,
    lambda: (
        runs()
        .waiting_for_slot()
        .filter(job=Given(Run, "job_id"))
        .order_by("due_at", "pk")
        .values_list("pk")[:1]
    ),
)
"""Building the full query takes longer than this check. Usually, no run waits."""


def wake_next(job_id: int) -> Run | None:
    """Waiting -> pending for the run that has waited longest. It gets the slot.

    Returns that run, with its job. Returns None if no run waits or the slot is taken. Backfilled
    runs don't take part (``release_backfilled``).
    """
    if not _ANY_IN_LINE.rows(job_id=job_id):
        return None
    line = runs().waiting_for_slot().filter(job=job_id)
    longest = line.order_by("due_at", "pk").select_related("job").first()
    if longest is None:
        return None
    change = {
        "state": State.PENDING,
        "slot": Slot.RUNNING,
        "slot_number": 0,
        "node": NOBODY,
        "reason": "",
    }
    try:
        with transaction.atomic(using=alias_for(Run)):
            if not runs().waiting().filter(pk=longest.pk).update(**change):
                return None
    except IntegrityError:
        return None  # a newcomer has the slot and wakes the next run when it ends
    for name, value in change.items():
        setattr(longest, name, value)
    return longest


def _executing(
    run_id: UUID | Given, attempt: int | Given, last_heartbeat: LastHeartbeat | None = None
) -> RunQuerySet:
    executing = runs().running().filter(pk=run_id, attempt=attempt)
    if last_heartbeat is None:
        return executing
    # The UPDATE may have waited for the same lock that delayed the worker's heartbeat.
    executing = executing.filter(heartbeat_at=last_heartbeat.heartbeat_at)
    if last_heartbeat.token is None:
        return executing
    return executing.filter(
        Exists(Attempt.objects.filter(run=OuterRef("pk"), token=last_heartbeat.token))
    )


def final_columns(state: State, reason: str | Given) -> dict[str, Any]:
    return {"state": state, "reason": reason, "finished_at": UtcNow(), **NO_SLOT}


def _others_may_wait(run: Run) -> bool:
    """Return whether runs may wait for this one. For a backfilled run, they do under any policy."""
    return run.job.overlap in QUEUEING_POLICIES or run.trigger == Trigger.BACKFILL


def _end(run: Run, guarded: RunQuerySet, state: State, reason: str) -> list[Run] | None:
    """End the run. Return the runs to dispatch now, or None if another process was first.

    These are the runs that have waited for the slot or the place in a limit, and the runs that
    follow this one.
    """
    # No savepoint is needed, because nothing within catches an error.
    with brief_transaction(alias_for(Run), settings.RUN_LEASE, savepoint=False):
        limited = limits.update_and_unmark(
            run, guarded, **final_columns(state, reason[:REASON_LIMIT])
        )
        if limited is None:
            return None
        woken = None
        has_line, followed = _others_may_wait(run), bool(conditions_met_by(state, started=True))
        if has_line or followed:
            taken, followed = chains.slot_and_followers(run.job_id, state)
            if has_line and not taken:
                woken = wake_next(run.job_id)
        followers = chains.create_followers(run, state) if followed else []
        count([run.job_id], state)
        placed = limits.free_places([run.pk]) if limited else []
    return [*([] if woken is None else [woken]), *followers, *placed]


def _dispatch_after_commit(
    next_runs: Iterable[Run], dispatch_now: Callable[[Run], None] | None
) -> None:
    if dispatch_now is not None:
        for next_run in next_runs:
            transaction.on_commit(partial(dispatch_now, next_run), using=alias_for(Run))


def _close_attempt(run: Run, attempt: int, closing: dict[str, Any], token: UUID | None) -> None:
    """Close the attempt's row. ``token`` is None if another process closes it."""
    own = {"run_id": run.pk, "number": attempt}
    if token is not None:
        own["token"] = token
    _closing(tuple(own), tuple(closing)).execute(**own, **closing)


@cache
def _closing(own: tuple[str, ...], columns: tuple[str, ...]) -> Update:
    """Return the update that closes an attempt, identified by the columns ``own``."""
    attempt = {name: Given(Attempt, name) for name in own}
    return Update(
        Attempt,
        lambda: Attempt.objects.filter(**attempt, outcome=""),
        finished_at=UtcNow(),
        **{name: Given(Attempt, name) for name in columns},
    )
