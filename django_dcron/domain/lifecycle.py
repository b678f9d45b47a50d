"""The states of a run and of an attempt, and the table of legal transitions.

Invariants:

- A run leaves a final state never. What runs again is another run.
- Every change of state goes along an arrow of ``TRANSITIONS``; ``transitions.py`` builds its guards from it.
- ``pending -> pending`` does not exist: a retry is ``running -> pending``, a redelivery ``queued -> pending``.
"""

from __future__ import annotations

from enum import StrEnum


class State(StrEnum):
    PENDING = "pending"
    """Claimed; waits for ``due_at``. A run that waits for its next attempt is pending again."""
    QUEUED = "queued"
    """Handed over to a worker's queue."""
    RUNNING = "running"
    WAITING = "waiting"
    """Held back by the overlap policy until the run before it has ended; or backfilled, and its turn has not come."""
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    SKIPPED = "skipped"
    """Not started, because an earlier run of the job was unfinished."""
    MISSED = "missed"
    """Not started in time."""
    CANCELLED = "cancelled"


class Outcome(StrEnum):
    """How an attempt ended."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    LOST = "lost"
    """Its worker vanished: the heartbeat stopped."""
    CANCELLED = "cancelled"


class Trigger(StrEnum):
    """What made a run."""

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


def sources(target: State) -> frozenset[State]:
    """The states from which ``target`` may be reached."""
    return frozenset(source for source, targets in TRANSITIONS.items() if target in targets)
