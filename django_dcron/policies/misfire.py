"""The misfire policy: which late occurrences run and which are recorded as missed.

An occurrence is *late* once ``misfire_grace`` has passed since its time. When a node claims late
occurrences, ``plan_runs`` decides which of them run. ``should_start`` decides whether a worker
still starts a late run.

Invariants:

- The policy applies to late occurrences only. All others run.
- No late occurrence is dropped without a record: it runs or is recorded as missed.
- ``plan_runs`` and ``should_start`` apply the same rule.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

REPLACED_BY_NEWER_RUN = "a newer run replaces it"
"""Part of the recorded reason of a run that didn't start because a newer one was due."""


class MisfirePolicy(StrEnum):
    SKIP = "skip"
    RUN_LATEST = "run_latest"
    RUN_ALL = "run_all"


@dataclass(frozen=True, slots=True)
class PlannedRun:
    """A planned run, and the earlier late occurrences that it counts as missed."""

    scheduled_at: datetime
    missed: bool = False
    """The run is recorded as missed and doesn't run."""
    missed_before: int = 0
    """The number of earlier occurrences that the run counts as missed.

    It is a lower bound from 1,000 on.
    """
    missed_from: datetime | None = None
    """The oldest of these earlier occurrences."""


@dataclass(frozen=True, slots=True)
class LateOccurrences:
    """The late occurrences of a job. There is at least one."""

    oldest: Sequence[datetime]
    """The oldest occurrences, ascending. Contains all of them unless ``count`` is larger."""
    newest: datetime
    count: int


@dataclass(frozen=True, slots=True)
class Misfire:
    policy: MisfirePolicy
    grace: timedelta
    catchup_limit: int

    def is_late(self, scheduled_at: datetime, now: datetime) -> bool:
        return now - scheduled_at > self.grace

    def plan_runs(self, late: LateOccurrences) -> list[PlannedRun]:
        """Return the planned runs that account for all late occurrences, oldest first."""
        match self.policy:
            case MisfirePolicy.SKIP:
                return [_combined_run(late, 0, missed=True)]
            case MisfirePolicy.RUN_LATEST:
                return [_combined_run(late, 0, missed=False)]
            case MisfirePolicy.RUN_ALL:
                planned_runs = [
                    PlannedRun(occurrence) for occurrence in late.oldest[: self.catchup_limit]
                ]
                if late.count > self.catchup_limit:
                    planned_runs.append(_combined_run(late, self.catchup_limit, missed=True))
                return planned_runs

    def should_start(self, *, newer_due: bool, ahead_in_backlog: int) -> bool:
        """Decide whether a worker still starts a late run.

        ``newer_due``: a newer run of the job is due or has started. ``ahead_in_backlog``: the
        number of older runs of the same backlog that have started or may still start.
        """
        match self.policy:
            case MisfirePolicy.SKIP:
                return False
            case MisfirePolicy.RUN_LATEST:
                return not newer_due
            case MisfirePolicy.RUN_ALL:
                return ahead_in_backlog < self.catchup_limit

    @property
    def refusal(self) -> str:
        """Why a late run doesn't start, in English, for the recorded reason."""
        match self.policy:
            case MisfirePolicy.SKIP:
                return "late runs are skipped (misfire policy skip)"
            case MisfirePolicy.RUN_LATEST:
                return f"{REPLACED_BY_NEWER_RUN} (misfire policy run_latest)"
            case MisfirePolicy.RUN_ALL:
                return (
                    f"earlier runs reach the catch-up limit of {self.catchup_limit} (misfire "
                    "policy run_all)"
                )


def _combined_run(late: LateOccurrences, start: int, *, missed: bool) -> PlannedRun:
    """Return one planned run for all late occurrences from index ``start`` on."""
    others = late.count - start - 1
    return PlannedRun(late.newest, missed, others, late.oldest[start] if others else None)
