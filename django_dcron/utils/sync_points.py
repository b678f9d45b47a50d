"""Named points in the life of a run where a test can stop or kill the process.

Each point lies between two steps that a crash can separate. Points marked * lie within a
transaction, so a process that stops there keeps its locks. In production, no listener is set and a
point costs one comparison. The points::

    claim.locked    * cursors are read and locked, nothing is written yet
    claim.written   * runs and cursors are written, not committed
    claim.committed   runs and cursors are committed, the runs are on no agenda yet
    publish.begun     a batch is taken off the agenda
    publish.done      the broker has the batch, the node hasn't recorded that yet
    mark.begun        about to mark dispatched runs as queued
    mark.done         the dispatched runs are marked
    release.locked  * the cursor of a job with a backfill is locked, no run is released yet
    prune.locked    * a batch of runs to prune is locked, none is deleted yet
    incidents.grouped * a batch of failures is grouped, not committed
    rescue.begun      the search for runs of vanished processes is about to begin
    rescue.silent     a heartbeat is too old, its attempt isn't declared lost yet
    start.held      * a worker has locked the run that blocks the start of its own run
    limit.joined    * a starting run is in the line of its limit, it has no place yet
    limit.freed     * a place in a limit is free, no run has it yet
    start.done        a worker has started an attempt, the target isn't called yet
    work.done         the target has ended, its outcome isn't recorded yet
    finish.ended    * a run has its final state, its attempt isn't closed, nothing is committed
    follow.made     * a run has its final state, its followers are created, nothing is committed
    retry.written   * a run is pending again, its attempt isn't closed, nothing is committed
    record.done       the outcome is recorded, the message isn't acknowledged yet
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
    "incidents.grouped",
    "rescue.begun",
    "rescue.silent",
    "start.held",
    "limit.joined",
    "limit.freed",
    "start.done",
    "work.done",
    "finish.ended",
    "follow.made",
    "retry.written",
    "record.done",
]

listener: Callable[[Point], None] | None = None
"""Called with the name of each point, in the thread that reaches it."""


def reach_sync_point(point: Point) -> None:
    if listener is not None:
        listener(point)
