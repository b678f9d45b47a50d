"""The overlap policy: what becomes of a run whose job still has an unfinished run.

A job holds at most one *slot*; the run in it is the one that executes. At most one run may stand next in line under
``queue_one`` and ``cancel_running``. Both are values of one unique column (``Run.slot``), so that two workers cannot
both win; this module only says what a run that found the slot taken has to do.

Backfilled runs stand behind all others: one that finds the slot taken goes back to wait for its turn, whatever the
policy; and one that has the slot makes nobody skip, nor is it cancelled: others wait for that one run.
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum


class OverlapPolicy(StrEnum):
    ALLOW = "allow"
    SKIP = "skip"
    QUEUE_ONE = "queue_one"
    QUEUE_ALL = "queue_all"
    CANCEL_RUNNING = "cancel_running"

    @property
    def exclusive(self) -> bool:
        """Whether a run needs the job's slot to start."""
        return self is not OverlapPolicy.ALLOW


def read_policy(stored: str) -> OverlapPolicy:
    """The policy of a job's row. One that this release does not know, written past all checks or by a later release, is as
    strict as can be: one run at a time, and none waits."""
    try:
        return OverlapPolicy(stored)
    except ValueError:
        return OverlapPolicy.SKIP


class Held(StrEnum):
    """What a run does that found the slot taken."""

    SKIP = "skip"
    WAIT = "wait"
    WAIT_NEXT = "wait_next"
    """Wait as the only one in line; skip when the place is taken."""
    REPLACE = "replace"
    """Have the holder cancelled and take the place in line from whoever has it."""
    REPLACE_NEXT = "replace_next"
    """Take the place in line from whoever has it."""


def when_held(policy: OverlapPolicy, *, by_backfill: bool = False) -> Held:
    match policy:
        case OverlapPolicy.SKIP if by_backfill:
            return Held.WAIT_NEXT
        case OverlapPolicy.SKIP:
            return Held.SKIP
        case OverlapPolicy.QUEUE_ONE:
            return Held.WAIT_NEXT
        case OverlapPolicy.QUEUE_ALL:
            return Held.WAIT
        case OverlapPolicy.CANCEL_RUNNING:
            return Held.REPLACE_NEXT if by_backfill else Held.REPLACE
        case OverlapPolicy.ALLOW:
            raise ValueError("a run of a job that allows overlap never meets a taken slot")


def slot_of(job_id: int) -> int:
    """The slot value of the run that executes."""
    return job_id


def next_slot_of(job_id: int) -> int:
    """The slot value of the run that stands next in line."""
    return -job_id


FIRST_TURN = 2**62
TURNS = 2**33
"""Of one job: a second each, from 1970 to 2242."""


def turn_of(job_id: int, scheduled_at: datetime) -> int:
    """The slot value of a backfilled run that waits: in the order of jobs, and within a job in that of its occurrences."""
    return first_turn_of(job_id) + int(scheduled_at.timestamp())


def first_turn_of(job_id: int) -> int:
    """Not more than that of any backfilled run of the job."""
    return FIRST_TURN + job_id * TURNS
