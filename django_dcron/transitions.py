"""Every change of a run's state after its insert: each one a guarded UPDATE.

Invariants:

- A transition names the states it may leave (``lifecycle.TRANSITIONS``), and for a run under execution the attempt; it
  answers whether it won. Zero rows changed is a normal answer: somebody else was first.
- An execution is declared lost only if it has given no sign of life since the one that this was decided on.
- Whatever gives a run its final state also frees its slot, counts it in the job's statistics, wakes the run that
  waits for the slot and makes the runs that follow it (``following``), in the same transaction.
- A slot passes from the run that ends straight to the one that waited longest: a newcomer cannot slip in between.
- Times are the database's. Rows are locked in the order run that ends, run that is woken, jobs that follow, statistics, attempt: whoever
  ends a waiting run and whoever would wake it meet at that run, not over the statistics. A run is locked by its key, never
  by its slot.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from functools import cache, partial
from typing import Any
from uuid import UUID

from django.db import IntegrityError, transaction
from django.db.models import Exists, F, OuterRef

from django_dcron import following
from django_dcron.conf import settings
from django_dcron.domain.chains import met_by
from django_dcron.domain.lifecycle import Outcome, State, Trigger, sources
from django_dcron.domain.overlap import OverlapPolicy, slot_of, turn_of
from django_dcron.models import Attempt, Job, Run, Statistics
from django_dcron.models.database import UtcNow, alias_for, brief_transaction
from django_dcron.models.run import REASON_LIMIT, RunQuerySet
from django_dcron.models.statement import Chain, Given, Insert, Update
from django_dcron.models.statistics import count, counted
from django_dcron.sync_points import reach

NOBODY = ""
MARKED_AT_ONCE = 1000

WITH_LINE = frozenset({OverlapPolicy.QUEUE_ONE, OverlapPolicy.QUEUE_ALL, OverlapPolicy.CANCEL_RUNNING})
"""The overlap policies under which runs wait for the slot."""


def runs() -> RunQuerySet:
    """The runs, read from the database they are written to."""
    return Run.objects.using(alias_for(Run))


def _leaving_for(target: State, run_id: UUID | Given, attempt: int | Given | None = None) -> RunQuerySet:
    """The run, if it may go to ``target``; and is at ``attempt``, if one is named."""
    guarded = runs().filter(pk=run_id, state__in=sources(target))
    return guarded if attempt is None else guarded.filter(attempt=attempt)


# --- delivery ---------------------------------------------------------------------------------------------------------


def mark_queued(delivered: Iterable[tuple[UUID, int]], at: datetime, **still: Any) -> int:
    """Pending -> queued for all (run, attempt) that were handed over. Those already started are left alone.

    ``still``: columns that must have kept these values. Meanwhile a run may have been held back and woken: it is pending
    again and was *not* handed over; it is nobody's then, and has the slot.
    """
    pending = runs().pending().filter(**still)
    by_attempt: defaultdict[int, list[UUID]] = defaultdict(list)
    for run_id, attempt in delivered:
        by_attempt[attempt].append(run_id)
    return sum(
        pending.filter(pk__in=ids[start : start + MARKED_AT_ONCE], attempt=attempt).update(
            state=State.QUEUED, queued_at=at, deliveries=F("deliveries") + 1
        )
        for attempt, ids in by_attempt.items()
        for start in range(0, len(ids), MARKED_AT_ONCE)
    )


def redeliver(run_id: UUID, attempt: int, queued_at: datetime) -> bool:
    """Queued -> pending, same attempt: no worker has come since ``queued_at``, so it is handed over once more."""
    lost = runs().queued().filter(pk=run_id, attempt=attempt, queued_at=queued_at)
    return bool(lost.update(state=State.PENDING, node=NOBODY))


def redeliver_dropped(run_id: UUID, attempt: int, queued_at: datetime, deliveries: int) -> bool:
    """Queued -> pending, same attempt: a worker of another database has dropped the message that was published at
    ``queued_at``. That delivery doesn't count: none of it is left in the broker."""
    dropped = runs().queued().filter(pk=run_id, attempt=attempt, queued_at=queued_at, deliveries=deliveries)
    return bool(dropped.update(state=State.PENDING, node=NOBODY, deliveries=max(deliveries - 1, 0)))


def take_back(unstarted: Iterable[tuple[UUID, int]]) -> int:
    """Queued -> pending and nobody's, for all (run, attempt) that were handed over but will not be started after all."""
    return sum(
        runs().queued().filter(pk=run_id, attempt=attempt).update(state=State.PENDING, node=NOBODY)
        for run_id, attempt in unstarted
    )


def hand_back(run_id: UUID, attempt: int) -> bool:
    """The delivery came before its time and is used up: the run is pending and nobody's, so a node dispatches it when it is due."""
    # First as pending: once it is nobody's, the node that dispatched it doesn't mark it as queued.
    pending = runs().pending().filter(pk=run_id, attempt=attempt)
    return bool(pending.update(node=NOBODY) or take_back([(run_id, attempt)]))


def withdraw(job_id: int, now: datetime, using: str) -> int:
    """Delete a job's runs that were claimed ahead of ``now``: the definition they came from is gone."""
    ahead = (
        Run.objects.using(using)
        .pending()
        .filter(job=job_id, trigger=Trigger.SCHEDULE, attempt=1, scheduled_at__gt=now)
    )
    # One guarded DELETE. QuerySet.delete() would read the rows first and then delete whatever has become of them;
    # nothing refers to a run that has not started.
    return ahead._raw_delete(using)


# --- start ------------------------------------------------------------------------------------------------------------


_START = Chain(
    Update(
        Run,
        lambda: _leaving_for(State.RUNNING, Given(Run, "id"), Given(Run, "attempt")),
        state=State.RUNNING,
        reason="",
        slot=Given(Run, "slot"),
        started_at=UtcNow(),
        heartbeat_at=UtcNow(),
    ),
    Insert(
        Attempt,
        lambda: Attempt(
            **{
                name: Given(Attempt, name)
                for name in ("run_id", "number", "token", "worker", "due_at", "queued_at", "started_at")
            }
        ),
    ),
)


def start(
    run: Run, attempt: int, *, slot: int | None, token: UUID, worker: str, started_at: datetime
) -> bool:
    """Pending or queued -> running, and the attempt's row, which keeps when it was due and handed over as ``run`` was read.
    Raises ``IntegrityError`` if ``slot`` is another run's."""
    of_run = {"id": run.pk, "attempt": attempt, "slot": slot}
    of_attempt = {"run_id": run.pk, "number": attempt, "token": token, "worker": worker}
    times = {"due_at": run.due_at, "queued_at": run.handed_over_at, "started_at": started_at}
    return _START.execute(**of_run, **of_attempt, **times)


def hold_back(run_id: UUID, attempt: int, *, slot: int | None, reason: str) -> bool:
    """Pending or queued -> waiting. Raises ``IntegrityError`` if ``slot``, the place in line, is another run's."""
    return bool(
        _leaving_for(State.WAITING, run_id, attempt).update(
            state=State.WAITING, slot=slot, reason=reason[:REASON_LIMIT]
        )
    )


def send_back(run: Run, attempt: int, *, reason: str) -> bool:
    """Pending or queued -> waiting for a backfilled run that found the slot taken: again at its place among the others."""
    turn = turn_of(run.job_id, run.scheduled_at)
    return bool(
        _leaving_for(State.WAITING, run.pk, attempt).update(
            state=State.WAITING, slot=turn, due_at=F("scheduled_at"), reason=reason[:REASON_LIMIT]
        )
    )


def release(run_id: UUID, due_at: datetime) -> bool:
    """Waiting -> pending for a backfilled run whose turn has come; it is on nobody's agenda."""
    turn = runs().waiting().filter(pk=run_id, trigger=Trigger.BACKFILL)
    return bool(
        turn.update(state=State.PENDING, slot=None, due_at=due_at, node=NOBODY, deliveries=0, reason="")
    )


def beat(run_id: UUID, attempt: int) -> bool:
    """The attempt is alive. False: it is no longer this attempt's turn."""
    return bool(runs().running().filter(pk=run_id, attempt=attempt).update(heartbeat_at=UtcNow()))


# --- the end of a run -------------------------------------------------------------------------------------------------


def end_unstarted(run: Run, state: State, reason: str, *, attempt: int | None = None) -> bool:
    """Pending, queued or waiting -> skipped, missed or cancelled."""
    unstarted = _leaving_for(state, run.pk, attempt).exclude(state=State.RUNNING)
    return _end(run, unstarted, state, reason) is not None


@dataclass(frozen=True, slots=True)
class LastSign:
    """The last sign of life of an execution, as somebody has read it who is about to declare it lost."""

    heartbeat_at: datetime | None
    token: UUID | None
    """None: its attempt has no row."""


def finish(
    run: Run,
    attempt: int,
    state: State,
    reason: str,
    closing: dict[str, Any],
    token: UUID | None,
    hand_over: Callable[[Run], None] | None = None,
    last_sign: LastSign | None = None,
) -> bool:
    """Running -> succeeded, failed or cancelled. ``closing``: what to write on the attempt's row. ``hand_over``: called after the
    commit with each run that follows; without it, nodes take them up. ``last_sign``: False is returned if there was another
    since."""
    if token is not None and not _has_line(run):
        of_run = {"id": run.pk, "attempt": attempt, "reason": reason[:REASON_LIMIT], "job_id": run.job_id}
        of_attempt = {"run_id": run.pk, "number": attempt, "token": token, **closing}
        if _finish(state, tuple(closing)).execute(**of_run, **of_attempt):
            return True
    with brief_transaction(alias_for(Run), settings.RUN_LEASE):
        followers = _end(run, _executing(run.pk, attempt, last_sign), state, reason)
        if followers is None:
            return False
        reach("finish.ended")
        _close(run, attempt, closing, token)
        if hand_over is not None:
            for follower in followers:
                transaction.on_commit(partial(hand_over, follower), using=alias_for(Run))
    return True


@cache
def _finish(state: State, columns: tuple[str, ...]) -> Chain:
    """The usual case: no run waits and none follows, it is the execution itself that says so, and its job has been counted
    before."""
    unfollowed = Exists(Statistics.objects.filter(pk=OuterRef("job_id"), followed=False))
    own = {name: Given(Attempt, name) for name in ("run_id", "number", "token")}
    return Chain(
        Update(
            Run,
            lambda: _executing(Given(Run, "id"), Given(Run, "attempt")).filter(unfollowed),
            **_final(state, Given(Run, "reason")),
        ),
        Update(Statistics, lambda: Statistics.objects.filter(job=Given(Run, "job_id")), **counted(state)),
        Update(
            Attempt,
            lambda: Attempt.objects.filter(**own, outcome=""),
            finished_at=UtcNow(),
            **{name: Given(Attempt, name) for name in columns},
        ),
    )


def retry(
    run: Run,
    attempt: int,
    due_at: datetime,
    reason: str,
    closing: dict[str, Any],
    token: UUID | None,
    last_sign: LastSign | None = None,
) -> bool:
    """Running -> pending for the next attempt, unless it was asked to stop. The run keeps its slot, as it is unfinished; a
    backfilled one passes it on, so that nobody waits for its backoff. ``last_sign``: as for ``finish``."""
    backfilled = run.trigger == Trigger.BACKFILL
    executing = _executing(run.pk, attempt, last_sign).filter(cancel_requested_at=None)
    with brief_transaction(alias_for(Run), settings.RUN_LEASE):
        if not executing.update(
            state=State.PENDING,
            attempt=attempt + 1,
            due_at=due_at,
            reason=reason[:REASON_LIMIT],
            deliveries=0,
            node=NOBODY,
            heartbeat_at=None,
            **({"slot": None} if backfilled else {}),
        ):
            return False
        if backfilled:
            wake_next(run.job_id)
        reach("retry.written")
        _close(run, attempt, closing, token)
    return True


def request_cancel(run_id: UUID, reason: str) -> bool:
    """Ask a running run to stop; its worker sees it at the next heartbeat."""
    running = runs().running().filter(pk=run_id, cancel_requested_at=None)
    return bool(running.update(cancel_requested_at=UtcNow(), reason=reason[:REASON_LIMIT]))


def wake_next(job_id: int) -> bool:
    """Waiting -> pending for the run that has waited longest; it gets the slot. False: none waits, or it is taken.

    Backfilled runs do not stand in this line (``release``).
    """
    line = runs().waiting().filter(job=job_id).exclude(trigger=Trigger.BACKFILL)
    longest = line.order_by("due_at", "pk").values_list("pk", flat=True).first()
    if longest is None:
        return False
    try:
        with transaction.atomic(using=alias_for(Run)):
            woken = runs().waiting().filter(pk=longest)
            return bool(woken.update(state=State.PENDING, slot=slot_of(job_id), node=NOBODY, reason=""))
    except IntegrityError:
        return False  # a newcomer has the slot; it will wake the next when it ends


def _executing(run_id: UUID | Given, attempt: int | Given, last_sign: LastSign | None = None) -> RunQuerySet:
    executing = runs().running().filter(pk=run_id, attempt=attempt)
    if last_sign is None:
        return executing
    # The UPDATE may have waited for a lock that kept the worker's heartbeat waiting as well.
    executing = executing.filter(heartbeat_at=last_sign.heartbeat_at)
    if last_sign.token is None:
        return executing
    return executing.filter(
        Exists(Attempt.objects.filter(run=OuterRef("pk"), number=attempt, token=last_sign.token))
    )


def _final(state: State, reason: str | Given) -> dict[str, Any]:
    return {"state": state, "reason": reason, "finished_at": UtcNow(), "slot": None}


def _has_line(run: Run) -> bool:
    """Whether runs may wait for it; for a backfilled one, under any policy."""
    return run.job.overlap in WITH_LINE or run.trigger == Trigger.BACKFILL


def _end(run: Run, guarded: RunQuerySet, state: State, reason: str) -> list[Run] | None:
    """The runs that follow it; None: it was not ours to end."""
    # Without a savepoint, as nothing here is caught within.
    with brief_transaction(alias_for(Run), settings.RUN_LEASE, savepoint=False):
        if not guarded.update(**_final(state, reason[:REASON_LIMIT])):
            return None
        has_line, followed = _has_line(run), bool(met_by(state, started=True))
        if has_line or followed:
            taken, followed = _look(run.job_id, state)
            if has_line and not taken:
                wake_next(run.job_id)
        followers = following.make(run, state) if followed else []
        count([run.job_id], state)
    return followers


def _look(job_id: int, state: State) -> tuple[bool, bool]:
    """Whether the job's slot is taken, and whether any job comes after such an end."""
    looks = Exists(runs().filter(slot=slot_of(job_id))), following.any_after(state, job_id)
    row = Job.objects.using(alias_for(Job)).filter(pk=job_id).order_by().values_list(*looks).first()
    return (bool(row[0]), bool(row[1])) if row else (False, False)


def _close(run: Run, attempt: int, closing: dict[str, Any], token: UUID | None) -> None:
    """Close the attempt's row. ``token`` None: whoever closes it is not the execution itself."""
    row = Attempt.objects.using(alias_for(Attempt)).filter(run=run.pk, number=attempt, outcome="")
    if token is not None:
        row = row.filter(token=token)
    row.update(finished_at=UtcNow(), **closing)


def note_late_outcome(run_id: UUID, attempt: int, token: UUID, outcome: Outcome) -> None:
    """The attempt was closed otherwise meanwhile; what its worker says now changes nothing but this note."""
    Attempt.objects.using(alias_for(Attempt)).filter(
        run=run_id, number=attempt, token=token, late_outcome=""
    ).exclude(outcome__in=("", outcome)).update(late_outcome=outcome)
