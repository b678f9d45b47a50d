"""Decide what happens to a run when a worker receives it.

``runs.start`` loads the facts, calls ``decide_start``, and applies the action.

Invariants:

- The decision asks for a fact (``LoadFact``) only if its result depends on the fact. An ordinary
  start therefore needs only the query that reads the run.
- Loading a fact that the decision didn't ask for never changes the decision.
- Only the current attempt of a pending or queued run starts. A running run is only resumed.
- Under an exclusive overlap policy, a run starts only if no other run has the job's running slot.
- A run takes its slot before it asks for a place in a limit. So it never has a place while it waits
  for a slot, and no two runs wait for each other.
- No run of a deleted job starts.
- An automatic run doesn't start during a freeze. After the freeze, the misfire policy decides about
  it.
- A backfilled run never replaces, skips or overtakes another run: if the slot is taken, it waits
  for its turn again.
- A backfilled run that has the slot isn't cancelled. Under ``skip``, one run waits for it instead
  of being skipped.
- Under ``skip``, no run is skipped because of a holder whose worker is silent, unless another run
  already waits. The run waits until the holder ends or is declared lost.
- Under ``cancel_running``, the newest run wins, as deliveries may overtake one another.
- Under ``queue_all``, and in the backlog of ``run_all``, runs of the schedule start in the order
  of their due times. A run that could take the free slot leaves it to an older one that a worker
  hasn't received yet.
- Under ``run_all``, no run is skipped because of a holder that started after the run was due: the
  two overlap only because both are late. The run waits.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum, auto
from typing import Literal

from django_dcron.policies.lifecycle import STARTABLE, State
from django_dcron.policies.overlap import OverlapPolicy


class Unknown(Enum):
    UNKNOWN = auto()
    """The fact hasn't been loaded."""


UNKNOWN: Literal[Unknown.UNKNOWN] = Unknown.UNKNOWN


@dataclass(frozen=True, slots=True)
class OtherRun:
    """Another unfinished run of the same job."""

    is_running: bool
    """Whether a worker executes it. If not, it waits for its next attempt or for delivery."""
    scheduled_at: datetime
    is_backfilled: bool
    is_silent: bool = False
    """Whether its last heartbeat is older than ``DCRON_RUN_LEASE``."""
    executing_since: datetime | None = None
    """When its first attempt started. None: it hasn't started. Only used for ``in_queue``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartFacts:
    """The facts that the decision depends on."""

    state: State
    is_current_attempt: bool
    """Whether the delivery is of the run's current attempt."""
    cancel_requested: bool
    is_frozen: bool
    """Whether a freeze holds back the run (``policies.freezing``)."""
    due_in: timedelta
    """Time until the run may start. Zero or less: now."""
    too_late: bool | Unknown = UNKNOWN
    """Whether the start deadline or the misfire policy forbids the start."""
    overlap: OverlapPolicy
    scheduled_at: datetime
    due_at: datetime
    is_backfilled: bool
    in_queue: bool
    """Whether the run starts after older runs of the schedule (``overlap.is_queueing``). A run that
    has been given the running slot doesn't.
    """
    slot_taken: bool
    """Whether another run had the running slot when the run was read. If the value is outdated, the
    unique constraint or the locked read of ``holder`` detects that.
    """
    holder: OtherRun | Unknown | None = UNKNOWN
    """The other run that has the running slot, locked."""
    next_in_line: OtherRun | Unknown | None = UNKNOWN
    """The run that is next in line for the slot, locked."""
    older_is_due: bool | Unknown = UNKNOWN
    """Whether an older run of the schedule is due, but hasn't begun to wait for the slot."""
    job_deleted: bool = False
    """Whether the job was deleted after another process had begun to create the run."""
    is_limited: bool = False
    """Whether the job has a limit, or the run has a place in one or waits for one."""


class LoadFact(Enum):
    """Load a fact, then decide again."""

    START_DEADLINE = auto()
    HOLDER = auto()
    """Lock the holder of the running slot. If there is one, also lock the delivered run, and read
    the delivered run's state again.
    """
    NEXT_IN_LINE = auto()
    OLDER = auto()
    """Find an older run of the schedule that is due. It isn't locked."""


class Reason(Enum):
    """Why a run ends without a start, or why it waits."""

    CANCEL_REQUESTED = auto()
    JOB_DELETED = auto()
    TOO_LATE = auto()
    HOLDER_UNFINISHED = auto()
    LINE_TAKEN = auto()
    """The holder is unfinished, and another run is next in line."""
    NEWER_IN_LINE = auto()
    """The run that is next in line is newer."""


@dataclass(frozen=True, slots=True)
class Start:
    takes_slot: bool


@dataclass(frozen=True, slots=True)
class StartInLimit:
    """Start if the job's limit has a free place. If not, wait for a place and keep the slot."""

    takes_slot: bool


@dataclass(frozen=True, slots=True)
class Resume:
    """Continue if this execution itself started the attempt, and drop the delivery otherwise."""


@dataclass(frozen=True, slots=True)
class Drop:
    """Drop the delivery, because the run has changed since."""


@dataclass(frozen=True, slots=True)
class Hold:
    """Return the run to the nodes. They deliver it again after the freeze."""


@dataclass(frozen=True, slots=True)
class Postpone:
    """Deliver the run again once it is due."""

    due_in: timedelta


@dataclass(frozen=True, slots=True)
class End:
    """End the run without a start."""

    state: State
    reason: Reason


@dataclass(frozen=True, slots=True)
class Wait:
    """Wait for the slot."""

    next_in_line: bool
    """Whether the run becomes the one that is next in line."""


@dataclass(frozen=True, slots=True)
class WaitInBackfill:
    """Return to the place among the job's backfilled runs."""


@dataclass(frozen=True, slots=True)
class ReplaceNextInLine:
    """Skip the run that is next in line, if any, and wait in its place."""


@dataclass(frozen=True, slots=True)
class StopHolder:
    """Ask the running holder to stop, and replace the run that is next in line."""


@dataclass(frozen=True, slots=True)
class EndHolder:
    """Cancel the holder, which isn't running. Skip the run that is next in line. Decide again."""


@dataclass(frozen=True, slots=True)
class YieldSlot:
    """Give the free slot to the older run that is due. Decide again."""


StartAction = (
    LoadFact
    | Start
    | StartInLimit
    | Resume
    | Drop
    | Hold
    | Postpone
    | End
    | Wait
    | WaitInBackfill
    | ReplaceNextInLine
    | StopHolder
    | EndHolder
    | YieldSlot
)


def decide_start(facts: StartFacts) -> StartAction:
    """Return what to do with the delivery of a run."""
    if not facts.is_current_attempt:
        return Drop()
    if facts.state not in STARTABLE:
        return Resume() if facts.state is State.RUNNING else Drop()
    if facts.cancel_requested:
        return End(State.CANCELLED, Reason.CANCEL_REQUESTED)
    if facts.job_deleted:
        return End(State.CANCELLED, Reason.JOB_DELETED)
    if facts.is_frozen:
        return Hold()
    if facts.due_in > timedelta(0):
        return Postpone(facts.due_in)
    if facts.too_late is UNKNOWN:
        return LoadFact.START_DEADLINE
    if facts.too_late:
        return End(State.MISSED, Reason.TOO_LATE)
    start = StartInLimit if facts.is_limited else Start
    if not facts.overlap.exclusive:
        return start(takes_slot=False)
    if facts.holder is UNKNOWN and facts.slot_taken:
        return LoadFact.HOLDER
    if isinstance(facts.holder, OtherRun):
        return _decide_overlap(facts, facts.holder)
    if facts.in_queue:
        if facts.older_is_due is UNKNOWN:
            return LoadFact.OLDER
        if facts.older_is_due:
            return YieldSlot()
    return start(takes_slot=True)


def _decide_overlap(facts: StartFacts, holder: OtherRun) -> StartAction:
    """Return what the run does because ``holder`` has the slot."""
    if facts.is_backfilled:
        return WaitInBackfill()
    if facts.overlap is OverlapPolicy.QUEUE_ALL:
        return Wait(next_in_line=False)
    since = holder.executing_since
    if facts.in_queue and (since is None or since > facts.due_at):
        return Wait(next_in_line=False)
    waits_under_skip = holder.is_backfilled or (holder.is_running and holder.is_silent)
    if facts.overlap is OverlapPolicy.SKIP and not waits_under_skip:
        return End(State.SKIPPED, Reason.HOLDER_UNFINISHED)
    if facts.overlap is OverlapPolicy.CANCEL_RUNNING and holder.scheduled_at > facts.scheduled_at:
        return End(State.SKIPPED, Reason.HOLDER_UNFINISHED)
    if facts.next_in_line is UNKNOWN:
        return LoadFact.NEXT_IN_LINE
    if facts.overlap is OverlapPolicy.CANCEL_RUNNING:
        return _decide_replacement(facts, holder, facts.next_in_line)
    if facts.next_in_line is not None:
        return End(State.SKIPPED, Reason.LINE_TAKEN)
    return Wait(next_in_line=True)


def _decide_replacement(
    facts: StartFacts, holder: OtherRun, next_in_line: OtherRun | None
) -> StartAction:
    """Return what the run does under ``cancel_running``, because the holder isn't newer."""
    if next_in_line is not None and next_in_line.scheduled_at > facts.scheduled_at:
        return End(State.SKIPPED, Reason.NEWER_IN_LINE)
    if holder.is_backfilled:
        return ReplaceNextInLine()
    return StopHolder() if holder.is_running else EndHolder()
