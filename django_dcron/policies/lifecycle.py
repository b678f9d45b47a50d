"""The states of runs and attempts, and the legal transitions.

Invariants:

- A run never leaves a final state. A rerun is a new run.
- Each change of state is listed in ``TRANSITIONS``. ``runs/transitions.py`` and
  ``runs/endings.py`` derive WHERE clauses from the table.
- ``pending -> pending`` doesn't exist: a retry is ``running -> pending``, a redelivery is
  ``queued -> pending``.
"""

from __future__ import annotations

from enum import StrEnum


class State(StrEnum):
    PENDING = "pending"
    """Claimed, waiting for ``due_at``. A run that waits for its next attempt is pending again."""
    QUEUED = "queued"
    """Published to a worker's queue."""
    RUNNING = "running"
    WAITING = "waiting"
    """Waits for another run to end (overlap policy), for a place in a limit, or for its turn in a
    backfill.
    """
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    SKIPPED = "skipped"
    """Not started because another run of the job was unfinished (overlap policy)."""
    MISSED = "missed"
    """Not started in time."""
    CANCELLED = "cancelled"


class Outcome(StrEnum):
    """How an attempt ended."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    LOST = "lost"
    """The worker vanished: its heartbeat stopped."""
    CANCELLED = "cancelled"


class Trigger(StrEnum):
    """What created a run."""

    SCHEDULE = "schedule"
    MANUAL = "manual"
    RERUN = "rerun"
    BACKFILL = "backfill"
    CHAIN = "chain"
    """The end of another job's run."""


FINAL = frozenset({State.SUCCEEDED, State.FAILED, State.SKIPPED, State.MISSED, State.CANCELLED})
UNFINISHED = frozenset(State) - FINAL
STARTABLE = frozenset({State.PENDING, State.QUEUED})

TRANSITIONS: dict[State, frozenset[State]] = {
    State.PENDING: frozenset(
        {
            State.QUEUED,
            State.RUNNING,
            State.WAITING,
            State.SKIPPED,
            State.MISSED,
            State.CANCELLED,
            State.FAILED,
        }
    ),
    State.QUEUED: frozenset(
        {State.PENDING, State.RUNNING, State.WAITING, State.SKIPPED, State.MISSED, State.CANCELLED}
    ),
    State.RUNNING: frozenset({State.PENDING, State.SUCCEEDED, State.FAILED, State.CANCELLED}),
    State.WAITING: frozenset({State.PENDING, State.SKIPPED, State.MISSED, State.CANCELLED}),
    **{state: frozenset() for state in FINAL},
}


def states_before(target: State) -> frozenset[State]:
    """Return the states from which ``target`` can be reached."""
    return frozenset(source for source, targets in TRANSITIONS.items() if target in targets)
