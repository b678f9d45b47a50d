"""Named points that a run passes, where a test may stop, kill or let go of whoever passes them.

Each lies between two steps that a crash may part; those marked * within a transaction, where whoever stops keeps what it has
locked. In production nobody listens, and passing one costs a comparison.

claim.locked    * cursors are read and locked, nothing is written yet
claim.written   * runs and cursors are written, not committed
claim.committed   they are; the runs are on no agenda yet
publish.begun     a batch is taken off the agenda
publish.done      the broker has it; nobody has noted that yet
mark.begun        about to mark as queued what was handed over
mark.done         it is marked
release.locked  * the cursor of a job that has a backfill is locked, none of its runs is released yet
prune.locked    * a batch of runs that are kept no longer is locked, none is deleted yet
rescue.begun      about to look for what vanished holders left
start.held      * a worker has locked the run that keeps the one it is to start from starting
start.done        a worker has started an attempt; the target is not called yet
work.done         the target has ended; its outcome is not recorded yet
finish.ended    * a run has its final state, its attempt is not closed yet, nothing is committed
follow.made     * a run has its final state, and those that follow it are made; nothing is committed
retry.written   * a run is pending for its next attempt, its attempt is not closed yet, nothing is committed
record.done       the outcome is recorded; the message is not acknowledged yet
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

Point = Literal[
    "claim.locked",
    "claim.written",
    "claim.committed",
    "publish.begun",
    "publish.done",
    "mark.begun",
    "mark.done",
    "release.locked",
    "prune.locked",
    "rescue.begun",
    "start.held",
    "start.done",
    "work.done",
    "finish.ended",
    "follow.made",
    "retry.written",
    "record.done",
]

listener: Callable[[Point], None] | None = None
"""Called, in the thread that passes it, with the name of each point."""


def reach(point: Point) -> None:
    if listener is not None:
        listener(point)
