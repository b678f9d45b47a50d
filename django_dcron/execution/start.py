"""The start of an attempt: decided in one transaction, by at most one execution.

Invariants:

- One guarded UPDATE on (run, attempt, pending or queued) makes the start, and the same transaction makes the attempt's
  row, UNIQUE (run, number). Zero rows: somebody else has it, or it was withdrawn; the delivery is dropped quietly.
- A run that isn't in this database is another matter: ``UnknownRun``. The database may be the wrong one.
- Repeating a start whose commit went through unheard finds its own token on the attempt's row and goes on.
- A run is not started before ``due_at`` by the database's clock, where the caller wants it ``punctual``.
- A run that comes too late asks the misfire policy; one whose job still has an unfinished run, the overlap policy. The
  job's slot, a unique column, decides between two that ask at once.
"""

from __future__ import annotations

import logging
from datetime import datetime, timedelta
from typing import NamedTuple
from uuid import UUID

from django.db import IntegrityError, OperationalError, ProgrammingError
from django.db.models import Exists, OuterRef

from django_dcron import revocation, transitions
from django_dcron.conf import settings
from django_dcron.domain import clock
from django_dcron.domain.lifecycle import STARTABLE, State, Trigger
from django_dcron.domain.overlap import Held, next_slot_of, slot_of, when_held
from django_dcron.exceptions import UnknownRun
from django_dcron.lateness import too_late
from django_dcron.models import Attempt, Job, Run
from django_dcron.models.database import UtcNow, alias_for, brief_transaction, database_name, lacks_table
from django_dcron.models.statement import Given, Select
from django_dcron.sync_points import reach

logger = logging.getLogger("django_dcron.runs")

LOOKS = 10
"""How often a start looks again after losing a race for the slot. Each loss means that another run has moved on."""


class NotDueYet(Exception):
    def __init__(self, ahead: timedelta) -> None:
        self.ahead = ahead
        """How long it is until then."""


def start(
    run_id: UUID, attempt: int, *, token: UUID, worker: str, punctual: bool = False
) -> tuple[Run, datetime] | None:
    """Start ``attempt`` of the run, if it is its turn and the policies let it. Safe to repeat with the same ``token``.

    Returns the run, with its job, and when the attempt started by the database's clock; None: not to be executed.
    Raises ``IntegrityError`` if the slot went to others each time it looked; the delivery is repeated later. Raises
    ``UnknownRun`` if this database doesn't have the run. If ``punctual``, raises ``NotDueYet``, with nothing changed, before the
    run is due.
    """
    read = _read(run_id)
    if read is None:
        raise UnknownRun(f"run {run_id} doesn't exist in {database_name(alias_for(Run))}")
    if read.run.attempt != attempt:
        return None
    run, now = read.run, read.at
    if State(run.state) not in STARTABLE:
        return _started_before(run, token)
    if run.cancel_requested_at is not None:
        _end(run, State.CANCELLED, run.reason, attempt=attempt)
        return None
    if (
        punctual and now < run.due_at and clock.stands_at is None
    ):  # a time that stands would be waited for in vain
        raise NotDueYet(run.due_at - now)
    if reason := too_late(run, now):
        _end(run, State.MISSED, reason, attempt=attempt)
        return None
    return (run, now) if _take_turn(run, token, worker, now, slot_taken=read.slot_taken) else None


class _Read(NamedTuple):
    run: Run
    """With its job."""
    at: datetime
    """By the database's clock."""
    slot_taken: bool
    """Whether another run had the job's slot then."""


_RUN = [field.attname for field in Run._meta.concrete_fields]
_JOB = [field.attname for field in Job._meta.concrete_fields]
_READ = Select(
    Run,
    lambda: (
        transitions.runs()
        .filter(pk=Given(Run, "id"))
        .order_by()
        .annotate(read_at=UtcNow(), slot_taken=Exists(transitions.runs().filter(slot=OuterRef("job_id"))))
        .values_list(*_RUN, *(f"job__{name}" for name in _JOB), "read_at", "slot_taken")
    ),
)


def _read(run_id: UUID) -> _Read | None:
    using = alias_for(Run)
    try:
        row = _READ.first(id=run_id)
    except (ProgrammingError, OperationalError) as error:
        if lacks_table(Run, using):  # another project's database, or a new one
            raise UnknownRun(f"{database_name(using)} has no table of runs") from error
        raise
    if row is None:
        return None
    *columns, read_at, slot_taken = row
    run = Run.from_db(using, _RUN, columns[: len(_RUN)])
    run.job = Job.from_db(using, _JOB, columns[len(_RUN) :])
    return _Read(run, read_at, bool(slot_taken) and run.slot != slot_of(run.job_id))


def _end(run: Run, state: State, reason: str, *, attempt: int | None = None) -> bool:
    ended = transitions.end_unstarted(run, state, reason, attempt=attempt)
    if ended:
        logger.info(
            "%s %s: %s",
            run,
            state,
            reason,
            extra={
                "event": "not_started",
                "job": str(run.job),
                "run": str(run.pk),
                "attempt": run.attempt,
                "outcome": state.value,
            },
        )
    return ended


def _started_before(run: Run, token: UUID) -> tuple[Run, datetime] | None:
    """If an earlier call of this very execution started it, and only the answer was lost: that answer."""
    ours = Attempt.objects.using(alias_for(Attempt)).filter(run=run, number=run.attempt, token=token)
    attempt = ours.first()
    if attempt is None or State(run.state) is not State.RUNNING:
        return None
    return run, attempt.started_at


def _take_turn(run: Run, token: UUID, worker: str, now: datetime, *, slot_taken: bool) -> bool:
    """``slot_taken``: as it was read. If that has changed since, the unique column says so, or a look under its lock."""
    for look in range(LOOKS):
        try:
            if not slot_taken and not look:
                return _take(run, token, worker, now)
            with brief_transaction(alias_for(Run), settings.RUN_LEASE):
                holder = _holder(run)
                if holder is None:
                    return _take(run, token, worker, now)
                reach("start.held")
                held = _give_way(run, holder)
        except IntegrityError:
            if look == LOOKS - 1:
                raise
        else:
            if held:
                return False
    return False  # it replaced one holder after another; the delivery is repeated later


def _holder(run: Run) -> Run | None:
    """The run that keeps this one from starting, locked."""
    if not run.job.overlap.exclusive:
        return None
    return transitions.runs().exclude(pk=run.pk).lock_holder(slot_of(run.job_id))


def _next_in_line(job_id: int) -> Run | None:
    """The run that has the only place in line, locked."""
    return transitions.runs().lock_holder(next_slot_of(job_id))


def _take(run: Run, token: UUID, worker: str, now: datetime) -> bool:
    slot = slot_of(run.job_id) if run.job.overlap.exclusive else None
    return transitions.start(run, run.attempt, slot=slot, token=token, worker=worker, started_at=now)


def _give_way(run: Run, holder: Run) -> bool:
    """Do as the overlap policy says, now that ``holder``, which is locked, has the job's slot.

    False: it has left the slot, and the run may look again.
    """
    if not _still_startable(run):
        return True
    blocked = _unfinished(holder)
    if run.trigger == Trigger.BACKFILL:
        transitions.send_back(run, run.attempt, reason=blocked)
        return True
    next_slot = next_slot_of(run.job_id)
    match when_held(run.job.overlap, by_backfill=holder.trigger == Trigger.BACKFILL):
        case Held.SKIP:
            _end(run, State.SKIPPED, blocked, attempt=run.attempt)
        case Held.WAIT:
            transitions.hold_back(run.pk, run.attempt, slot=None, reason=blocked)
        case Held.WAIT_NEXT:
            if other := _next_in_line(run.job_id):
                reason = f"{blocked}; {other.pk} waits for it already"
                _end(run, State.SKIPPED, reason, attempt=run.attempt)
            else:
                transitions.hold_back(run.pk, run.attempt, slot=next_slot, reason=blocked)
        case Held.REPLACE | Held.REPLACE_NEXT if newer := _newer(run, holder):
            _end(run, State.SKIPPED, _unfinished(newer), attempt=run.attempt)
        case Held.REPLACE_NEXT:
            _replace_next(run)
            transitions.hold_back(run.pk, run.attempt, slot=next_slot, reason=blocked)
        case Held.REPLACE:
            if not _replace(run, holder):
                return False
            transitions.hold_back(run.pk, run.attempt, slot=next_slot, reason=blocked)
    return True


def _unfinished(other: Run) -> str:
    return f"the run of {other.scheduled_at:%Y-%m-%d %H:%M:%S} UTC ({other.pk}) was unfinished: {other.state}"


def _newer(run: Run, holder: Run) -> Run | None:
    """The holder, or who waits for it, if that is newer: deliveries may overtake one another, and the newest is to run."""
    others = (holder, _next_in_line(run.job_id))
    return next((other for other in others if other and other.scheduled_at > run.scheduled_at), None)


def _still_startable(run: Run) -> bool:
    """Whether it has not been withdrawn meanwhile, nor held back through another delivery of it; locked if so."""
    startable = transitions.runs().startable().filter(pk=run.pk, attempt=run.attempt)
    return startable.select_for_update().first() is not None


def _replace(run: Run, holder: Run) -> bool:
    """End whoever waits for the holder, and have the holder stop. False: it had not started, and has ended already."""
    reason = _replace_next(run)
    if State(holder.state) is not State.RUNNING:  # it waits for its next attempt, or to be delivered
        _end(holder, State.CANCELLED, reason)
        return False
    revocation.request_cancel(holder.pk, reason)
    return True


def _replace_next(run: Run) -> str:
    """End whoever has the place in line; returns the reason."""
    reason = f"replaced by the run of {run.scheduled_at:%Y-%m-%d %H:%M:%S} UTC ({run.pk})"
    if other := _next_in_line(run.job_id):
        _end(other, State.SKIPPED, reason)
    return reason
