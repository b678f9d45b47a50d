"""Start an attempt: one transaction decides, and at most one execution wins.

``start_facts`` loads the facts, ``policies.start_decision`` decides on them, ``_apply`` acts.

Invariants:

- One guarded UPDATE on (run, attempt, pending or queued) starts the attempt. The same transaction
  inserts the attempt's row, UNIQUE (run, number).
- If the UPDATE changes no row, another execution was first or the run was withdrawn. The delivery
  is dropped without an error.
- A run that isn't in this database raises ``UnknownRun``: the database may be the wrong one.
- A start is idempotent. If the answer to its commit was lost, the repeated start finds its own
  token on the attempt's row, renews the heartbeat and continues.
- With ``punctual``, no run starts before ``due_at`` by the database's clock.
- No automatic run starts during a freeze. The UPDATE checks that, too: a freeze may begin after the
  read. The run returns to the nodes.
- A start waits ``runs.transitions.LOCK_TIMEOUT`` for a locked row, then fails as contention.
- The job's running slot, which is unique, decides between two concurrent starts.
- An ordinary start costs one statement on PostgreSQL (``ordinary_start``). Elsewhere, it costs one
  query that reads and one statement that writes. Other runs are read only if the run is late or the
  slot is taken. The holder of the slot and the run that is next in line stay locked until the
  action has been applied.
- Rows are locked in this order: the holder of the slot, the run, the run that is next in line, the
  job's limit.
- If the job has a limit, the run takes its slot, and then a place in the limit (``limits``). If no
  place is free, it waits and keeps its slot.
"""

from __future__ import annotations

import logging
from contextlib import AbstractContextManager, ExitStack
from datetime import datetime, timedelta
from typing import NamedTuple
from uuid import UUID

from django.db import IntegrityError

from django_dcron.conf import settings
from django_dcron.db.routing import alias_for, database_name
from django_dcron.db.session_limits import brief_transaction
from django_dcron.exceptions import UnknownRun
from django_dcron.models import Attempt, Run
from django_dcron.policies.lifecycle import State
from django_dcron.policies.slots import Slot
from django_dcron.policies.start_decision import (
    End,
    EndHolder,
    Hold,
    LoadFact,
    Postpone,
    Reason,
    ReplaceNextInLine,
    Resume,
    Start,
    StartAction,
    StartInLimit,
    StopHolder,
    Wait,
    WaitInBackfill,
    YieldSlot,
    decide_start,
)
from django_dcron.runs import cancellation, deliveries, endings, limits, slot_queue, transitions
from django_dcron.runs.ordinary_start import read_or_start
from django_dcron.runs.release import current_release
from django_dcron.runs.start_facts import Delivery, read_run, run_label

logger = logging.getLogger("django_dcron.runs")

MAX_TRIES = 10
"""Maximum number of tries to start a run. A try fails if another run takes the slot first, or if
the slot's holder had to be ended. In both cases, another run has made progress.
"""


class NotDueYet(Exception):
    """The run isn't due yet by the database's clock."""

    def __init__(self, ahead: timedelta) -> None:
        self.ahead = ahead
        """Time until the run is due."""


class Started(NamedTuple):
    """A run whose attempt has started."""

    run: Run
    """The run with its job."""
    at: datetime
    """When the attempt started, by the database's clock."""
    fence: int
    """See ``CurrentRun.fence``."""
    definition: UUID | None = None
    """The definition that the attempt's row references (``jobs.definitions``)."""


def start_attempt(
    run_id: UUID, attempt: int, *, token: UUID, worker: str, punctual: bool = False
) -> Started | None:
    """Start ``attempt`` of the run if it is the current one and the policies allow it.

    The call is safe to repeat with the same ``token``.

    Returns None if the attempt must not be executed.

    Raises:
        IntegrityError: Other runs won the slot on each try. The delivery is repeated later.
        UnknownRun: This database doesn't have the run.
        NotDueYet: ``punctual`` is set and the run isn't due yet. Nothing has changed.
    """
    try:
        read, fence = read_or_start(run_id, attempt, token=token, worker=worker)
    except IntegrityError:  # another run was faster to take the slot
        read, fence = read_run(run_id), None
    if read is None:
        raise UnknownRun(f"run {run_id} doesn't exist in {database_name(alias_for(Run))}")
    if fence is not None:
        return Started(read.run, read.at, fence, read.definition)
    delivery = Delivery(read, attempt, token=token, worker=worker, punctual=punctual)
    for tries in range(1, MAX_TRIES + 1):
        try:
            with ExitStack() as transactions:
                action = _decide(delivery, transactions)
                started = _apply(action, delivery)
        except IntegrityError:  # another run was faster to take the slot, or the place in line
            if tries == MAX_TRIES:
                raise
        else:
            if not isinstance(action, EndHolder | YieldSlot):
                return started
        delivery.forget_other_runs()
    return None  # one holder after another was replaced or gone; the delivery is repeated later


def _decide(delivery: Delivery, transactions: ExitStack) -> StartAction:
    """Return the action, and load the facts that it depends on.

    If this locks other runs, the transaction stays open, so that the action is applied in it.
    """
    while isinstance(action := decide_start(delivery.facts), LoadFact):
        if action is LoadFact.HOLDER:
            transactions.enter_context(_transaction())
        delivery.load(action)
    return action


def _apply(action: StartAction, delivery: Delivery) -> Started | None:
    """Apply the action, in the transaction in which other runs were locked, if any."""
    run = delivery.run
    match action:
        case Start(takes_slot=takes_slot):
            return _start(delivery, Slot.RUNNING if takes_slot else None)
        case StartInLimit(takes_slot=takes_slot):
            return _start_in_limit(delivery, Slot.RUNNING if takes_slot else None)
        case Resume():
            return _resume(run, delivery.token)
        case Hold():
            deliveries.hold(run)
        case Postpone(due_in=due_in):
            raise NotDueYet(due_in)
        case End(state=state, reason=reason):
            _end(run, state, delivery.text_of(reason))
        case Wait(next_in_line=next_in_line):
            _wait(delivery, Slot.NEXT_IN_LINE if next_in_line else None)
        case WaitInBackfill():
            why = delivery.text_of(Reason.HOLDER_UNFINISHED)
            if transitions.mark_waiting_in_backfill(run, reason=why):
                limits.leave_line(run)
        case ReplaceNextInLine():
            _skip_next_in_line(delivery)
            _wait(delivery, Slot.NEXT_IN_LINE)
        case StopHolder():
            _skip_next_in_line(delivery)
            cancellation.request_cancel(delivery.holder.pk, _replaced_by(run))
            _wait(delivery, Slot.NEXT_IN_LINE)
        case YieldSlot():
            with _transaction():
                slot_queue.give_slot(delivery.older)
        case EndHolder():
            _skip_next_in_line(delivery)
            _end(delivery.holder, State.CANCELLED, _replaced_by(run))
    return None


def _start_in_limit(delivery: Delivery, slot: Slot | None) -> Started | None:
    run = delivery.run
    try:
        with _transaction():
            if not limits.take_slot(run, slot):
                return None
            if reason := limits.take_place(run):
                transitions.mark_waiting(run, slot=slot, reason=reason)
                return None
            return _start(delivery, slot)
    except limits.LimitDeleted:  # The job has another limit by now, or none.
        deliveries.return_to_nodes(run.pk, run.attempt)
        return None


def _start(delivery: Delivery, slot: Slot | None) -> Started | None:
    run = delivery.run
    fence = transitions.mark_running(
        run,
        run.attempt,
        slot=slot,
        token=delivery.token,
        worker=delivery.worker,
        definition_id=delivery.definition,
        release=current_release(),
        started_at=delivery.read_at,
    )
    if fence is None:
        deliveries.hold_if_frozen(run)  # a freeze may have begun since the read
        return None
    return Started(run, delivery.read_at, fence, delivery.definition)


def _resume(run: Run, token: UUID) -> Started | None:
    """Return the result of an earlier call of this execution whose answer was lost, or None."""
    attempt = Attempt.objects.using(alias_for(Attempt)).filter(run=run, token=token).first()
    if attempt is None:
        return None
    if not transitions.renew_heartbeat(run.pk, run.attempt):
        return None  # the attempt was declared lost in the meantime
    return Started(run, attempt.started_at, attempt.pk, attempt.definition_id)


def _wait(delivery: Delivery, slot: Slot | None) -> None:
    reason = delivery.text_of(Reason.HOLDER_UNFINISHED)
    if transitions.mark_waiting(delivery.run, slot=slot, reason=reason):
        # It may have got a place before its job's overlap policy changed.
        limits.leave_line(delivery.run)


def _skip_next_in_line(delivery: Delivery) -> None:
    if delivery.facts.next_in_line is not None:
        _end(delivery.next_in_line, State.SKIPPED, _replaced_by(delivery.run))


def _replaced_by(run: Run) -> str:
    return f"replaced by {run_label(run)}"


def _end(run: Run, state: State, reason: str) -> None:
    with _transaction(savepoint=False):
        ended = endings.end_unstarted(run, state, reason, attempt=run.attempt)
    if ended:
        logger.info(
            "run %s: job=%s run=%s attempt=%d reason=%s",
            state,
            run.job,
            run.pk,
            run.attempt,
            reason,
            extra={
                "event": "not_started",
                "job": str(run.job),
                "run": str(run.pk),
                "attempt": run.attempt,
                "outcome": state.value,
            },
        )


def _transaction(*, savepoint: bool = True) -> AbstractContextManager[None]:
    return brief_transaction(
        alias_for(Run),
        settings.RUN_LEASE,
        savepoint=savepoint,
        lock=transitions.LOCK_TIMEOUT,
    )
