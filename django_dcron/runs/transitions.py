"""Change the state of a run after its insert, each time by one guarded UPDATE.

``endings`` has the transitions that end an attempt or a run, ``deliveries`` those on the way from a
node to a worker.

Invariants:

- A transition names the states it may leave (``lifecycle.TRANSITIONS``) and, for a running run,
  the attempt.
- A transition returns whether it won. Zero changed rows is a normal result: another process was
  first.
- The slot passes directly from the ended run to the run that has waited longest, never to a
  newcomer.
- All times are the database's.
- A run is locked by its primary key, never by its slot.
- The start and the end of an attempt wait ``LOCK_TIMEOUT`` for a locked row, then fail as
  contention.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.db.models import F

from django_dcron.db.change_sequence import ChangeSequence
from django_dcron.db.now import UtcNow
from django_dcron.db.routing import alias_for
from django_dcron.db.statements import Insert, Placeholder, Update
from django_dcron.models import Attempt, Freeze, Run
from django_dcron.models.run import REASON_LIMIT, RunQuerySet
from django_dcron.policies.lifecycle import State, Trigger, states_before
from django_dcron.policies.slots import NO_SLOT, Slot, backfill_number

NOBODY = ""
LOCK_TIMEOUT = timedelta(milliseconds=300)
"""How long the start or the end of an attempt waits for locked rows before it fails as contention.

It is short, because a worker has other runs to execute. MariaDB rounds it up to a second.
"""


def runs() -> RunQuerySet:
    """Return the runs, read from the database that they are written to."""
    return Run.objects.using(alias_for(Run))


def run_that_may_become(
    target: State, run_id: UUID | Placeholder, attempt: int | Placeholder | None = None
) -> RunQuerySet:
    """Return the run if it may change to ``target`` and, if given, is at ``attempt``."""
    guarded = runs().filter(pk=run_id, state__in=states_before(target))
    return guarded if attempt is None else guarded.filter(attempt=attempt)


def start_columns(slot: Any) -> dict[str, Any]:
    """Return the columns of an UPDATE that starts a run."""
    now = UtcNow()
    times = {"started_at": now, "heartbeat_at": now}
    return {"state": State.RUNNING, "reason": "", "slot": slot, "slot_number": 0, **times}


_ATTEMPT_COLUMNS = (
    "run_id",
    "number",
    "token",
    "worker",
    "definition_id",
    "release",
    "due_at",
    "queued_at",
    "started_at",
)
_START = ChangeSequence(
    Update(
        Run,
        lambda: run_that_may_become(
            State.RUNNING, Placeholder(Run, "id"), Placeholder(Run, "attempt")
        ).not_frozen(Placeholder(Freeze, "namespace")),
        **start_columns(Placeholder(Run, "slot")),
    ),
    Insert(
        Attempt,
        lambda: Attempt(**{name: Placeholder(Attempt, name) for name in _ATTEMPT_COLUMNS}),
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

    Raises ``IntegrityError`` if another run has ``slot``.
    """
    return bool(
        run_that_may_become(State.WAITING, run.pk, run.attempt).update(
            state=State.WAITING, slot=slot, slot_number=0, reason=reason[:REASON_LIMIT]
        )
    )


def mark_waiting_in_backfill(run: Run, *, reason: str) -> bool:
    """Pending or queued -> waiting, for a backfilled run that found the slot taken.

    The run returns to its place among the other backfilled runs.
    """
    return bool(
        run_that_may_become(State.WAITING, run.pk, run.attempt).update(
            state=State.WAITING,
            slot=Slot.BACKFILL,
            slot_number=backfill_number(run.scheduled_at),
            due_at=F("scheduled_at"),
            reason=reason[:REASON_LIMIT],
        )
    )


def release_backfilled(run_id: UUID, due_at: datetime) -> bool:
    """Waiting -> pending, for a backfilled run whose turn has come. It is on no node's agenda."""
    backfilled = runs().waiting().filter(pk=run_id, trigger=Trigger.BACKFILL)
    return bool(
        backfilled.update(
            state=State.PENDING,
            due_at=due_at,
            node=NOBODY,
            queued_at=None,
            deliveries=0,
            reason="",
            **NO_SLOT,
        )
    )


_RENEW_HEARTBEAT = Update(
    Run,
    lambda: runs().running().filter(pk=Placeholder(Run, "id"), attempt=Placeholder(Run, "attempt")),
    heartbeat_at=UtcNow(),
)


def renew_heartbeat(run_id: UUID, attempt: int) -> bool:
    """Renew the heartbeat of the attempt. Returns False if the attempt is no longer running."""
    return bool(_RENEW_HEARTBEAT.execute(id=run_id, attempt=attempt))


def mark_cancel_requested(run_id: UUID, reason: str) -> bool:
    """Ask a running run to stop. Its worker reads the request at the next heartbeat."""
    running = runs().running().filter(pk=run_id, cancel_requested_at=None)
    return bool(running.update(cancel_requested_at=UtcNow(), reason=reason[:REASON_LIMIT]))
