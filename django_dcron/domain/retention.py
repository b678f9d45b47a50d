"""How long finished runs are kept: facts of rows in, those that are over out.

Of a job are kept

- its latest finished run, whatever its age;
- a failed run that ended less than ``keep_failed_for`` ago, any other that ended less than ``keep_for`` ago;
- of these, if there is a ``keep_runs``, so many: the latest finished runs, and the latest failed ones.

Invariants:

- Only finished runs are over, and none that an unfinished rerun refers to: its occurrence is that one's too.
- A history is shortened from its oldest end alone. What is older than a run that is kept, or is not finished, is over in
  full; only failed and backfilled runs may outlive what came after them. So a gap that is newer than the oldest run kept was
  not made by pruning: the doctor and the backfill rely on it.
- Failed runs are therefore kept at least as long as others.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple
from uuid import UUID

from django_dcron.domain.lifecycle import FINAL, State

LONGEST = timedelta(days=36_500)
"""For ever: beyond, a difference of dates may leave the calendar."""
ROWS_AT_ONCE = 1000
"""About how many rows, runs and attempts together, are deleted in one transaction."""


@dataclass(frozen=True, slots=True)
class Retention:
    keep_for: timedelta
    keep_failed_for: timedelta
    keep_runs: int | None = None
    """None: any number."""

    def age_of(self, state: str) -> timedelta:
        """How long a run that ended in ``state`` is kept."""
        longest = max(self.keep_for, self.keep_failed_for) if state == State.FAILED else self.keep_for
        return min(longest, LONGEST)


class Row(NamedTuple):
    """A run, as far as it matters here."""

    run_id: UUID
    scheduled_at: datetime
    state: str
    ended_at: datetime
    """Its scheduled time, while it is unfinished."""
    is_backfilled: bool = False
    attempts: int = 1
    is_needed: bool = False
    """An unfinished rerun refers to it."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """Where in the history of a job its numbers end, by scheduled time; an older answer only keeps more."""

    latest: datetime
    """Its latest finished run."""
    oldest: datetime | None = None
    """The oldest of its latest ``keep_runs`` finished runs; None: it has no more than so many."""
    oldest_failed: datetime | None = None
    """The oldest of its latest ``keep_runs`` failed ones."""

    def end(self, retention: Retention, now: datetime) -> datetime:
        """Nothing that is scheduled from there on is over."""
        by_age = now - retention.age_of(State.SUCCEEDED)
        return min(self.latest, max(by_age, self.oldest or by_age))


@dataclass(frozen=True, slots=True)
class Sifted:
    over: list[UUID]
    position: datetime | None
    """The last row considered; None: not one."""
    is_done: bool
    """Nothing that comes later is over."""


def sift(rows: Iterable[Row], retention: Retention, bounds: Bounds, now: datetime) -> Sifted:
    """Those of ``rows`` (the oldest of a job that were not considered yet, by scheduled time) that are over; no more of them
    than should be deleted at once."""
    end = bounds.end(retention, now)
    over: list[UUID] = []
    position, weight = None, 0
    for row in rows:
        if row.scheduled_at >= end:
            return Sifted(over, position, is_done=True)
        if _is_over(row, retention, bounds, now):
            weight += 1 + row.attempts
            if over and weight > ROWS_AT_ONCE:
                break
            over.append(row.run_id)
        elif row.state != State.FAILED and not row.is_backfilled:
            return Sifted(over, position, is_done=True)
        position = row.scheduled_at
    return Sifted(over, position, is_done=False)


def _is_over(row: Row, retention: Retention, bounds: Bounds, now: datetime) -> bool:
    if row.state not in FINAL or row.is_needed:
        return False
    if row.ended_at < now - retention.age_of(row.state):
        return True
    oldest = bounds.oldest_failed if row.state == State.FAILED else bounds.oldest
    return oldest is not None and row.scheduled_at < oldest
