"""Decide which finished runs of a job to delete.

A job's finished run is kept:

- if it is the job's latest finished run, regardless of its age, unless the job was deleted
- if it failed and ended less than ``keep_failed_for`` ago, or didn't fail and ended less than
  ``keep_for`` ago

If ``keep_runs`` is set, only the latest ``keep_runs`` failed runs are kept. Other runs are deleted
if they are older than the latest ``keep_runs`` finished runs.

Invariants:

- Only finished runs are deleted. A run that an unfinished rerun refers to is kept, because both
  have the same occurrence.
- Pruning starts at the oldest run. It stops at the first run that is kept or unfinished, unless
  that run failed or is backfilled.
- So pruning makes no gap after the oldest kept run that neither failed nor is backfilled. The
  doctor and backfills rely on this.
- Failed runs are kept at least as long as other runs.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple
from uuid import UUID

from django_dcron.policies.lifecycle import FINAL, State

LONGEST = timedelta(days=36_500)
"""The longest retention. Subtracting more from a date could leave the range of ``datetime``."""
ROWS_AT_ONCE = 1000
"""About how many rows (runs and attempts) are deleted in one transaction."""


@dataclass(frozen=True, slots=True)
class Retention:
    keep_for: timedelta
    keep_failed_for: timedelta
    keep_runs: int | None = None
    """None: unlimited."""
    keeps_latest: bool = True
    """Whether the latest finished run is kept at any age. False if the job was deleted."""

    def age_of(self, state: str) -> timedelta:
        """Return how long a run that ended in ``state`` is kept."""
        longest = (
            max(self.keep_for, self.keep_failed_for) if state == State.FAILED else self.keep_for
        )
        return min(longest, LONGEST)


class FinishedRun(NamedTuple):
    """The columns of a run that retention needs."""

    run_id: UUID
    scheduled_at: datetime
    state: str
    ended_at: datetime
    """The scheduled time, if the run is unfinished."""
    is_backfilled: bool = False
    attempts: int = 1
    is_needed: bool = False
    """Whether an unfinished rerun refers to the run."""


@dataclass(frozen=True, slots=True)
class HistoryBounds:
    """Bounds of a job's history, as scheduled times. An outdated value only keeps more runs."""

    latest: datetime | None
    """The latest finished run, which is kept at any age. None if the job was deleted."""
    oldest: datetime | None = None
    """The oldest of the latest ``keep_runs`` finished runs. None if there are fewer."""
    oldest_failed: datetime | None = None
    """The oldest of the latest ``keep_runs`` failed runs."""

    def end(self, retention: Retention, now: datetime) -> datetime:
        """Return the scheduled time from which on no run is deleted."""
        by_age = now - retention.age_of(State.SUCCEEDED)
        expired = max(by_age, self.oldest or by_age)
        return expired if self.latest is None else min(self.latest, expired)


@dataclass(frozen=True, slots=True)
class RetentionBatch:
    expired: list[UUID]
    position: datetime | None
    """The scheduled time of the last row considered. None if there were no rows to consider."""
    is_done: bool
    """Whether pruning of the job is complete: no later run is deleted."""


def select_expired(
    rows: Iterable[FinishedRun], retention: Retention, bounds: HistoryBounds, now: datetime
) -> RetentionBatch:
    """Select the runs among ``rows`` to delete, at most one batch of ``ROWS_AT_ONCE`` rows.

    ``rows``: the job's oldest runs not yet considered, by scheduled time.
    """
    end = bounds.end(retention, now)
    expired: list[UUID] = []
    position, weight = None, 0
    for row in rows:
        if row.scheduled_at >= end:
            return RetentionBatch(expired, position, is_done=True)
        if _is_expired(row, retention, bounds, now):
            weight += 1 + row.attempts
            if expired and weight > ROWS_AT_ONCE:
                break
            expired.append(row.run_id)
        elif row.state != State.FAILED and not row.is_backfilled:
            return RetentionBatch(expired, position, is_done=True)
        position = row.scheduled_at
    return RetentionBatch(expired, position, is_done=False)


def _is_expired(
    row: FinishedRun, retention: Retention, bounds: HistoryBounds, now: datetime
) -> bool:
    if row.state not in FINAL or row.is_needed:
        return False
    if row.ended_at < now - retention.age_of(row.state):
        return True
    oldest = bounds.oldest_failed if row.state == State.FAILED else bounds.oldest
    return oldest is not None and row.scheduled_at < oldest
