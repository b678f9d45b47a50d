"""Split a run into phases: what each attempt waited for and when it ran, as far as recorded.

Invariants:

- An attempt's phases are contiguous. They begin at the end of the previous attempt. Those of the
  first attempt begin at the scheduled time, or at the creation of a backfilled run.
- An attempt's phases end at the attempt's end, at the current time, or at its due time.
- Phases use recorded times only. An attempt's row records when it was due and dispatched. For the
  next attempt, the run's row does.
- An attempt has no dispatch time if it started before its delivery was recorded.
- Only the latest dispatch is recorded. After several, the time of the first one is unknown.
- A run is claimed once. The first attempt shows the claim.
- Several processes write the rows, milliseconds apart. A time before its predecessor counts as
  equal to it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import NamedTuple

from django_dcron.models import Attempt, Run
from django_dcron.policies.lifecycle import State, Trigger


class PhaseKind(StrEnum):
    """The kinds of phases; each phase lasts until the next one."""

    EARLY = "early"
    """Not due yet: claimed ahead, or delayed by jitter."""
    UNCLAIMED = "unclaimed"
    """Due, but not claimed by a node yet."""
    EARLIER_RUNS = "earlier_runs"
    """Delayed by the overlap policy, or backfilled and waiting for other runs."""
    BACKOFF = "backoff"
    BACKOFF_OR_LATER = "backoff_or_later"
    """Backoff and everything else until the start; details aren't recorded."""
    DUE = "due"
    """Due, but not dispatched yet."""
    QUEUED = "queued"
    """Dispatched, but not started yet."""
    DUE_OR_QUEUED = "due_or_queued"
    """Due, but not started yet; when it was dispatched first isn't recorded."""
    RUNNING = "running"


@dataclass(frozen=True, slots=True)
class Phase:
    kind: PhaseKind
    since: datetime
    until: datetime

    @property
    def length(self) -> timedelta:
        return self.until - self.since


@dataclass(frozen=True, slots=True)
class AttemptPhases:
    """The phases of one attempt."""

    number: int
    row: Attempt | None
    """None if the attempt hasn't started yet or never did."""
    phases: tuple[Phase, ...]
    claim_delay: timedelta | None = None
    """The time from the first attempt's due time to the claim; negative if claimed ahead.

    None if no node claimed the run, or if the delay is unknown.
    """


def phases_of_attempts(run: Run, attempts: Sequence[Attempt], now: datetime) -> list[AttemptPhases]:
    """Return the phases of each attempt, and of the next attempt if one is expected.

    ``attempts`` are the run's latest attempts in order. Earlier attempts are omitted.
    """
    end = run.finished_at or now
    at = _first_phase_start(run, attempts, end)
    by_attempt = []
    for attempt in attempts:
        ended = attempt.finished_at or max(end, attempt.started_at)
        ends = [*_waits(run, attempt, attempt.started_at), _PhaseEnd(PhaseKind.RUNNING, ended)]
        by_attempt.append(
            AttemptPhases(
                attempt.number, attempt, tuple(_phases(at, ends)), _claim_delay(run, attempt)
            )
        )
        at = max(at, ended)
    if not attempts or attempts[-1].number < run.attempt:
        until = end if run.is_final else max(now, run.due_at)
        phases = _phases(at, _waits(run, None, until))
        by_attempt.append(AttemptPhases(run.attempt, None, tuple(phases), _claim_delay(run, None)))
    return by_attempt


def _first_phase_start(run: Run, attempts: Sequence[Attempt], end: datetime) -> datetime:
    first = attempts[0] if attempts else None
    if first is None or first.number == 1:
        return _start_of_first_wait(run, end)
    return min(first.due_at or first.started_at, first.started_at)


def _claim_delay(run: Run, attempt: Attempt | None) -> timedelta | None:
    number, due_at = (attempt.number, attempt.due_at) if attempt else (run.attempt, run.due_at)
    if number > 1 or due_at is None or run.trigger != Trigger.SCHEDULE:
        return None
    return run.claimed_at - due_at


def _start_of_first_wait(run: Run, end: datetime) -> datetime:
    """Return when the phases of the first attempt begin.

    A backfilled run is created long after its scheduled time. A run claimed ahead may be cancelled
    before its scheduled time.
    """
    before_its_time = run.scheduled_at > end
    return (
        run.claimed_at if run.trigger == Trigger.BACKFILL or before_its_time else run.scheduled_at
    )


class _PhaseEnd(NamedTuple):
    """The kind of a phase, and the time at which the phase ended."""

    kind: PhaseKind
    until: datetime


WAIT_WITHOUT_DUE_TIME = {
    PhaseKind.BACKOFF: PhaseKind.BACKOFF_OR_LATER,
    PhaseKind.EARLIER_RUNS: PhaseKind.EARLIER_RUNS,
    PhaseKind.EARLY: PhaseKind.DUE_OR_QUEUED,
}
"""The kind of a wait, by its first kind, if the attempt's due time isn't recorded."""


def _waits(run: Run, attempt: Attempt | None, until: datetime) -> list[_PhaseEnd]:
    """Return what the attempt waited for until it started.

    Without an ``attempt``, return what the next attempt waits for until ``until``.
    """
    number = attempt.number if attempt else run.attempt
    due_at = attempt.due_at if attempt else run.due_at
    queued_at = attempt.queued_at if attempt else run.dispatched_at
    first = _first_wait(run, number)
    sent_once = queued_at and not (number == run.attempt and run.deliveries > 1)
    last = PhaseKind.QUEUED if sent_once else PhaseKind.DUE_OR_QUEUED
    if attempt is None and run.state == State.WAITING:
        last = PhaseKind.EARLIER_RUNS
    elif attempt is None and run.state == State.PENDING and not run.sent_at:
        last = PhaseKind.DUE
    elif attempt and due_at is None:
        last = WAIT_WITHOUT_DUE_TIME[first]
    ends = [] if due_at is None else [_PhaseEnd(first, due_at)]
    if first is PhaseKind.EARLY:
        ends.append(_PhaseEnd(PhaseKind.UNCLAIMED, run.claimed_at))
    if last is PhaseKind.QUEUED and queued_at:
        ends.append(_PhaseEnd(PhaseKind.DUE, queued_at))
    return [
        *(_PhaseEnd(each.kind, min(each.until, until)) for each in ends),
        _PhaseEnd(last, until),
    ]


def _first_wait(run: Run, number: int) -> PhaseKind:
    """Return what the attempt with that number waits for first."""
    if number > 1:
        return PhaseKind.BACKOFF
    return PhaseKind.EARLIER_RUNS if run.trigger == Trigger.BACKFILL else PhaseKind.EARLY


def _phases(since: datetime, ends: Sequence[_PhaseEnd]) -> Iterator[Phase]:
    for kind, until in ends:
        if until > since or kind is PhaseKind.RUNNING:
            until = max(until, since)
            yield Phase(kind, since, until)
            since = until
