"""Start an attempt: one transaction decides, and at most one execution wins.

``start_attempt`` reads the run, ``policies.start_decision`` decides on plain facts, ``_apply``
acts.

Invariants:

- One guarded UPDATE on (run, attempt, pending or queued) starts the attempt. The same transaction
  inserts the attempt's row, UNIQUE (run, number).
- If the UPDATE changes no row, another execution was first or the run was withdrawn. The delivery
  is dropped silently.
- A run that isn't in this database raises ``UnknownRun``: the database may be the wrong one.
- A start is idempotent. If the answer to its commit was lost, the repeated start finds its own
  token on the attempt's row, renews the heartbeat and continues.
- With ``punctual``, no run starts before ``due_at`` by the database's clock.
- A jump of the database's clock ends no run as missed. For ten seconds a start also uses the time
  without the jump, by which nodes dispatched the run.
- No automatic run starts during a freeze. The UPDATE checks that, too: a freeze may begin after the
  read. The run returns to the nodes.
- A start waits ``runs.transitions.START_LOCK_TIMEOUT`` for a locked row, then fails as contention.
- The job's running slot, which is unique, decides between two concurrent starts.
- An ordinary start costs one query that reads and one statement that writes. Other runs are read
  only if the slot is taken, and are then locked until the action has been applied.
- Rows are locked in this order: the holder of the slot, the run, the run that is next in line.
"""

from __future__ import annotations

import logging
import threading
import time
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from datetime import datetime, timedelta
from typing import NamedTuple
from uuid import UUID

from django.db import IntegrityError, OperationalError, ProgrammingError
from django.db.models import Exists, OuterRef

from django_dcron.conf import settings
from django_dcron.db import clock
from django_dcron.db.now import UtcNow
from django_dcron.db.routing import alias_for, database_name, lacks_table
from django_dcron.db.session_limits import brief_transaction
from django_dcron.db.statements import Given, Select
from django_dcron.exceptions import UnknownRun
from django_dcron.models import Attempt, Job, Run
from django_dcron.models.freeze import frozen_job
from django_dcron.policies.freezing import AUTOMATIC
from django_dcron.policies.lifecycle import State, Trigger
from django_dcron.policies.slots import Slot
from django_dcron.policies.start_decision import (
    UNKNOWN,
    End,
    EndHolder,
    Hold,
    LoadFact,
    OtherRun,
    Postpone,
    Reason,
    ReplaceNextInLine,
    Resume,
    Start,
    StartAction,
    StartFacts,
    StopHolder,
    Wait,
    WaitInBackfill,
    decide_start,
)
from django_dcron.runs import cancellation, transitions
from django_dcron.runs.start_deadline import too_late
from django_dcron.utils.sync_points import reach_sync_point

logger = logging.getLogger("django_dcron.runs")

MAX_TRIES = 10
"""How often a start retries after it lost a race for the slot. After each loss, another run has
made progress."""


_clock = clock.ClusterClock()
"""Notices that the database's clock has jumped between two starts of this process."""
_clock_lock = threading.Lock()


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
    read = _read(run_id)
    if read is None:
        raise UnknownRun(f"run {run_id} doesn't exist in {database_name(alias_for(Run))}")
    delivery = _Delivery(read, attempt, token=token, worker=worker, punctual=punctual)
    for look in range(MAX_TRIES):
        try:
            with ExitStack() as transactions:
                action = _decide(delivery, transactions)
                started = _apply(action, delivery)
        except IntegrityError:  # another run was faster to take the slot, or the place in line
            if look == MAX_TRIES - 1:
                raise
        else:
            if not isinstance(action, EndHolder):
                return started
        delivery.forget_other_runs()
    return None  # the run replaced one holder after another; the delivery is repeated later


class _Read(NamedTuple):
    run: Run
    """The run with its job."""
    at: datetime
    """Time of the read, by the database's clock."""
    at_without_jump: datetime
    """The same time without a jump that the database's clock has just made."""
    slot_taken: bool
    """Whether another run had the job's slot at that time."""
    is_frozen: bool
    """Whether a freeze held back the run at that time."""


_RUN = [field.attname for field in Run._meta.concrete_fields]
_JOB = [field.attname for field in Job._meta.concrete_fields]
_READ = Select(
    Run,
    lambda: (
        transitions.runs()
        .filter(pk=Given(Run, "id"))
        .order_by()
        .annotate(
            read_at=UtcNow(),
            slot_taken=Exists(transitions.runs().in_slot(Slot.RUNNING, OuterRef("job_id"))),
            is_frozen=frozen_job("job_id", "job__namespace"),
        )
        .values_list(
            *_RUN, *(f"job__{name}" for name in _JOB), "is_frozen", "read_at", "slot_taken"
        )
    ),
)


def _read(run_id: UUID) -> _Read | None:
    using = alias_for(Run)
    queried_at = time.monotonic()
    try:
        row = _READ.first(id=run_id)
    except (ProgrammingError, OperationalError) as error:
        if lacks_table(Run, using):  # another project's database, or one without migrations
            raise UnknownRun(f"{database_name(using)} has no table of runs") from error
        raise
    if row is None:
        return None
    *columns, is_frozen, read_at, slot_taken = row
    run = Run.from_db(using, _RUN, columns[: len(_RUN)])
    run.job = Job.from_db(using, _JOB, columns[len(_RUN) :])
    at_without_jump = _without_jump(read_at, queried_at, time.monotonic())
    slot_taken = bool(slot_taken) and run.slot != Slot.RUNNING
    is_frozen = bool(is_frozen) and run.trigger in AUTOMATIC
    return _Read(run, read_at, at_without_jump, slot_taken, is_frozen)


def _without_jump(read_at: datetime, queried_at: float, answered_at: float) -> datetime:
    """Return the database's time without a recent jump, by earlier starts of this process."""
    if clock.fixed_at is not None:
        return read_at
    with _clock_lock:
        _clock.add(read_at, queried_at, answered_at)
        return read_at - _clock.doubt


class _Delivery:
    """A run that a worker has received, and the facts that have been loaded about it."""

    holder: Run
    """The run that has the slot. Set if it has been looked for and exists."""
    next_in_line: Run
    """The run that is next in line. Set if it has been looked for and exists."""
    missed_because: str
    """Why the run is too late, or empty. Set once the start deadline has been checked."""

    def __init__(
        self, read: _Read, attempt: int, *, token: UUID, worker: str, punctual: bool = False
    ) -> None:
        run = self.run = read.run
        self.token = token
        self.worker = worker
        self.read_at = read.at
        earliest, latest = sorted((read.at, read.at_without_jump))
        self._attempt = attempt
        self._earliest = earliest
        # Nobody can wait for a clock that stands still (``clock.fixed_at``).
        waits = punctual and clock.fixed_at is None
        self.facts = StartFacts(
            state=State(run.state),
            is_current_attempt=run.attempt == attempt,
            cancel_requested=run.cancel_requested_at is not None,
            is_frozen=read.is_frozen,
            due_in=run.due_at - latest if waits else timedelta(0),
            overlap=run.job.overlap,
            scheduled_at=run.scheduled_at,
            is_backfilled=run.trigger == Trigger.BACKFILL,
            slot_taken=read.slot_taken,
        )

    def load(self, look: LoadFact) -> None:
        """Load the facts that ``look`` asks for. Locks the holder, the run, the next in line."""
        match look:
            case LoadFact.START_DEADLINE:
                self.missed_because = too_late(self.run, self._earliest)
                self.facts = replace(self.facts, too_late=bool(self.missed_because))
            case LoadFact.HOLDER:
                holder = _lock_holder(self.run)
                self.facts = replace(self.facts, holder=_as_fact(holder))
                if holder is not None:
                    self.holder = holder
                    reach_sync_point("start.held")
                    self._lock_run()
            case LoadFact.NEXT_IN_LINE:
                other = transitions.runs().lock_holder(Slot.NEXT_IN_LINE, self.run.job_id)
                self.facts = replace(self.facts, next_in_line=_as_fact(other))
                if other is not None:
                    self.next_in_line = other

    def _lock_run(self) -> None:
        """Lock the run and read its state again.

        Another process may have withdrawn it, or another delivery may have made it wait.
        """
        row = transitions.runs().select_for_update().filter(pk=self.run.pk)
        state, attempt = row.values_list("state", "attempt").first() or (self.run.state, None)
        self.facts = replace(
            self.facts, state=State(state), is_current_attempt=attempt == self._attempt
        )

    def forget_other_runs(self) -> None:
        """Forget the other runs: the slot has a new holder, which the next try reads and locks."""
        self.facts = replace(self.facts, slot_taken=True, holder=UNKNOWN, next_in_line=UNKNOWN)

    def text_of(self, reason: Reason) -> str:
        """Return the reason as it is stored."""
        match reason:
            case Reason.CANCEL_REQUESTED:
                return self.run.reason
            case Reason.TOO_LATE:
                return self.missed_because
            case Reason.HOLDER_UNFINISHED:
                return _unfinished_reason(self.holder)
            case Reason.LINE_TAKEN:
                holder = _unfinished_reason(self.holder)
                return f"{holder}; {self.next_in_line.pk} waits for it already"
            case Reason.NEWER_IN_LINE:
                return _unfinished_reason(self.next_in_line)


def _lock_holder(run: Run) -> Run | None:
    """Lock and return the other run that has the job's slot, or None."""
    return transitions.runs().exclude(pk=run.pk).lock_holder(Slot.RUNNING, run.job_id)


def _as_fact(run: Run | None) -> OtherRun | None:
    if run is None:
        return None
    is_running = run.state == State.RUNNING
    return OtherRun(is_running, run.scheduled_at, run.trigger == Trigger.BACKFILL)


def _unfinished_reason(other: Run) -> str:
    return f"{_run_label(other)} was unfinished: {other.state}"


def _decide(delivery: _Delivery, transactions: ExitStack) -> StartAction:
    """Return the action, and load the facts that it depends on.

    If other runs are locked, their transaction remains open, so that the action is applied in it.
    """
    while isinstance(action := decide_start(delivery.facts), LoadFact):
        if action is LoadFact.HOLDER:
            transactions.enter_context(_transaction())
        delivery.load(action)
    return action


def _apply(action: StartAction, delivery: _Delivery) -> Started | None:
    """Apply the action, in the transaction in which other runs were locked, if any."""
    run = delivery.run
    match action:
        case Start(takes_slot=takes_slot):
            return _start(delivery, Slot.RUNNING if takes_slot else None)
        case Resume():
            return _resume(run, delivery.token)
        case Hold():
            transitions.hold(run)
        case Postpone(due_in=due_in):
            raise NotDueYet(due_in)
        case End(state=state, reason=reason):
            _end(run, state, delivery.text_of(reason))
        case Wait(next_in_line=next_in_line):
            _wait(delivery, Slot.NEXT_IN_LINE if next_in_line else None)
        case WaitInBackfill():
            transitions.mark_waiting_in_backfill(
                run, reason=delivery.text_of(Reason.HOLDER_UNFINISHED)
            )
        case ReplaceNextInLine():
            _skip_next_in_line(delivery)
            _wait(delivery, Slot.NEXT_IN_LINE)
        case StopHolder():
            _skip_next_in_line(delivery)
            cancellation.request_cancel(delivery.holder.pk, _replaced_by(run))
            _wait(delivery, Slot.NEXT_IN_LINE)
        case EndHolder():
            _skip_next_in_line(delivery)
            _end(delivery.holder, State.CANCELLED, _replaced_by(run))
    return None


def _start(delivery: _Delivery, slot: Slot | None) -> Started | None:
    run = delivery.run
    fence = transitions.mark_running(
        run,
        run.attempt,
        slot=slot,
        token=delivery.token,
        worker=delivery.worker,
        started_at=delivery.read_at,
    )
    if fence is None:
        transitions.hold_if_frozen(run)  # a freeze may have begun since the read
        return None
    return Started(run, delivery.read_at, fence)


def _resume(run: Run, token: UUID) -> Started | None:
    """Return the answer of an earlier call of this execution whose answer was lost, or None."""
    attempt = Attempt.objects.using(alias_for(Attempt)).filter(run=run, token=token).first()
    if attempt is None:
        return None
    if not transitions.renew_heartbeat(
        run.pk, run.attempt
    ):  # the attempt was declared lost in the meantime
        return None
    return Started(run, attempt.started_at, attempt.pk)


def _wait(delivery: _Delivery, slot: Slot | None) -> None:
    reason = delivery.text_of(Reason.HOLDER_UNFINISHED)
    transitions.mark_waiting(delivery.run, slot=slot, reason=reason)


def _skip_next_in_line(delivery: _Delivery) -> None:
    if delivery.facts.next_in_line is not None:
        _end(delivery.next_in_line, State.SKIPPED, _replaced_by(delivery.run))


def _replaced_by(run: Run) -> str:
    return f"replaced by {_run_label(run)}"


def _run_label(run: Run) -> str:
    return f"the run of {run.scheduled_at:%Y-%m-%d %H:%M:%S} UTC ({run.pk})"


def _end(run: Run, state: State, reason: str) -> None:
    with _transaction(savepoint=False):
        ended = transitions.end_unstarted(run, state, reason, attempt=run.attempt)
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
        lock=transitions.START_LOCK_TIMEOUT,
    )
