"""The misfire policy: what becomes of occurrences that were not started in time.

An occurrence is *late* once ``misfire_grace`` has passed since its time. One that is not late is simply run. Of the late
ones the policy runs some and lets the others be recorded as missed; none is dropped without a record. The same rule
serves a backlog of the scheduler (``settle``, at the claim) and one of the workers (``should_start``, at the start).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum


class MisfirePolicy(StrEnum):
    SKIP = "skip"
    RUN_LATEST = "run_latest"
    RUN_ALL = "run_all"


@dataclass(frozen=True, slots=True)
class Span:
    """What one run row accounts for: the occurrence ``scheduled_at`` and, maybe, late ones before it."""

    scheduled_at: datetime
    missed: bool = False
    """Recorded as missed, not to be run."""
    missed_before: int = 0
    """How many earlier occurrences it stands for (a lower bound from 1,000 on)."""
    missed_from: datetime | None = None
    """The oldest of those."""


@dataclass(frozen=True, slots=True)
class Backlog:
    """The late occurrences of a job; at least one."""

    oldest: Sequence[datetime]
    """From the oldest on; all of them unless ``count`` says otherwise."""
    newest: datetime
    count: int


@dataclass(frozen=True, slots=True)
class Misfire:
    policy: MisfirePolicy
    grace: timedelta
    catchup_limit: int

    def is_late(self, scheduled_at: datetime, now: datetime) -> bool:
        return now - scheduled_at > self.grace

    def settle(self, backlog: Backlog) -> list[Span]:
        """The spans that account for every occurrence of the backlog, oldest first."""
        match self.policy:
            case MisfirePolicy.SKIP:
                return [_tail(backlog, 0, missed=True)]
            case MisfirePolicy.RUN_LATEST:
                return [_tail(backlog, 0, missed=False)]
            case MisfirePolicy.RUN_ALL:
                spans = [Span(occurrence) for occurrence in backlog.oldest[: self.catchup_limit]]
                if backlog.count > self.catchup_limit:
                    spans.append(_tail(backlog, self.catchup_limit, missed=True))
                return spans

    def should_start(self, *, newer_due: bool, ahead_in_backlog: int) -> bool:
        """Whether a late run that has reached a worker is still to be started.

        ``newer_due``: a newer run of the job is due and not started yet.
        ``ahead_in_backlog``: how many runs of the same backlog, older ones, were started or are still to be.
        """
        match self.policy:
            case MisfirePolicy.SKIP:
                return False
            case MisfirePolicy.RUN_LATEST:
                return not newer_due
            case MisfirePolicy.RUN_ALL:
                return ahead_in_backlog < self.catchup_limit


def _tail(backlog: Backlog, start: int, *, missed: bool) -> Span:
    """All of the backlog from index ``start`` on, in one span."""
    others = backlog.count - start - 1
    return Span(backlog.newest, missed, others, backlog.oldest[start] if others else None)
