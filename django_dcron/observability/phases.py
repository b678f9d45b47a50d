"""The phases of a run: what each attempt waited for and when it ran, as far as the rows tell.

Invariants:

- The phases of an attempt follow one another without a gap, from the end of the attempt before it (the first: from the time it
  was scheduled for, or was made, if backfilled) to its own end, to now, or to the time it is due.
- Nothing is said that no row keeps. An attempt's row keeps when it was due and handed over; of the one to come the run's says
  it. A start that came before its delivery was noted has none, and one by a worker of an older release neither.
- A run is claimed once: the first attempt tells of it.
- Several processes write the rows, milliseconds apart: an instant before the one it follows counts as that one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from django_dcron.domain.lifecycle import State, Trigger
from django_dcron.models import Attempt, Run


class Kind(StrEnum):
    """What went on; each lasts until the next."""

    EARLY = "early"
    """Not due yet: claimed ahead, or jitter."""
    UNCLAIMED = "unclaimed"
    """Due, but no node had claimed it."""
    TURN = "turn"
    """Held back by the overlap policy, or backfilled and behind others."""
    BACKOFF = "backoff"
    BETWEEN = "between"
    """Backoff and all that followed until the start: more is not known."""
    DUE = "due"
    """Due, and not handed over yet."""
    QUEUED = "queued"
    """Handed over, and not started yet."""
    START = "start"
    """Due, and not started yet: more is not known."""
    RUNNING = "running"


@dataclass(frozen=True, slots=True)
class Phase:
    kind: Kind
    since: datetime
    until: datetime

    @property
    def length(self) -> timedelta:
        return self.until - self.since


@dataclass(frozen=True, slots=True)
class Course:
    """Of one attempt."""

    number: int
    attempt: Attempt | None
    """None: it has not started, or never did."""
    phases: tuple[Phase, ...]
    claimed: timedelta | None = None
    """By a node, so long after the first attempt was due; less than nothing: ahead of it. None: not by a node, or not known."""


def courses_of(run: Run, attempts: Sequence[Attempt], now: datetime) -> list[Course]:
    """``attempts``: the latest ones, as many as are wanted, in order. What was before the first of them is left out."""
    end = run.finished_at or now
    at = _beginning(run, attempts, end)
    courses = []
    for attempt in attempts:
        ended = attempt.finished_at or max(end, attempt.started_at)
        marks = [*_waits(run, attempt, attempt.started_at), (Kind.RUNNING, ended)]
        courses.append(Course(attempt.number, attempt, tuple(_phases(at, marks)), _claimed(run, attempt)))
        at = max(at, ended)
    if not attempts or attempts[-1].number < run.attempt:
        until = end if run.is_final else max(now, run.due_at)
        phases = _phases(at, _waits(run, None, until))
        courses.append(Course(run.attempt, None, tuple(phases), _claimed(run, None)))
    return courses


def _beginning(run: Run, attempts: Sequence[Attempt], end: datetime) -> datetime:
    first = attempts[0] if attempts else None
    if first is None or first.number == 1:
        return _origin(run, end)
    return min(first.due_at or first.started_at, first.started_at)


def _claimed(run: Run, attempt: Attempt | None) -> timedelta | None:
    number, due_at = (attempt.number, attempt.due_at) if attempt else (run.attempt, run.due_at)
    if number > 1 or due_at is None or run.trigger != Trigger.SCHEDULE:
        return None
    return run.claimed_at - due_at


def _origin(run: Run, end: datetime) -> datetime:
    """Where the first attempt's wait begins. A backfilled run was scheduled long before it was made; one that was claimed
    ahead may have been cancelled before its time."""
    before_its_time = run.scheduled_at > end
    return run.claimed_at if run.trigger == Trigger.BACKFILL or before_its_time else run.scheduled_at


Mark = tuple[Kind, datetime]
"""A phase, and until when it lasted."""

STILL_WAITING: dict[str, Kind] = {State.WAITING: Kind.TURN, State.PENDING: Kind.DUE}
"""What a run that has not started waits for at last, by its state. (It may have been handed over before that.)"""
AT_LEAST = {Kind.BACKOFF: Kind.BETWEEN, Kind.TURN: Kind.TURN, Kind.EARLY: Kind.START}
"""What a wait is called by its beginning if no row keeps when the attempt was due."""


def _waits(run: Run, attempt: Attempt | None, until: datetime) -> list[Mark]:
    """All that the attempt waited for until it started; None: all that the one to come waits for until ``until``."""
    number = attempt.number if attempt else run.attempt
    due_at = attempt.due_at if attempt else run.due_at
    queued_at = attempt.queued_at if attempt else run.handed_over_at
    backfilled = run.trigger == Trigger.BACKFILL
    first = Kind.BACKOFF if number > 1 else Kind.TURN if backfilled else Kind.EARLY
    last = Kind.QUEUED if queued_at else Kind.START
    if attempt is None:
        last = STILL_WAITING.get(run.state, last)
    elif due_at is None:
        last = AT_LEAST[first]
    marks = [] if due_at is None else [(first, due_at)]
    if number == 1 and not backfilled:
        marks.append((Kind.UNCLAIMED, run.claimed_at))
    if last is Kind.QUEUED and queued_at:
        marks.append((Kind.DUE, queued_at))
    return [*((kind, min(at, until)) for kind, at in marks), (last, until)]


def _phases(since: datetime, marks: Sequence[Mark]) -> Iterator[Phase]:
    for kind, until in marks:
        if until > since or kind is Kind.RUNNING:
            until = max(until, since)
            yield Phase(kind, since, until)
            since = until
