"""The possible verdicts on why a job ran or didn't run."""

from __future__ import annotations

from enum import StrEnum


class WhyVerdict(StrEnum):
    """A verdict for programs; a value is never renamed and never changes its meaning.

    If the occurrence has a run, the verdict is the run's state.
    """

    PENDING = "pending"
    QUEUED = "queued"
    RUNNING = "running"
    WAITING = "waiting"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    SKIPPED = "skipped"
    MISSED = "missed"
    CANCELLED = "cancelled"
    COVERED = "covered"
    """Missed. The occurrence has no row: a later run counts it."""
    NOT_DUE = "not_due"
    NO_OCCURRENCE = "no_occurrence"
    """The schedule doesn't fall on that time."""
    EXCLUDED = "excluded"
    """The schedule falls on that time, but the job's calendar excludes it."""
    BEFORE_START = "before_start"
    AFTER_END = "after_end"
    NOT_CREATED = "not_created"
    """The job didn't exist then."""
    PAUSED = "paused"
    FROZEN = "frozen"
    """A freeze holds back the occurrence."""
    CHANGED = "changed"
    """The job had another definition then, which isn't recorded."""
    QUARANTINED = "quarantined"
    """The job isn't scheduled because of a problem, such as an invalid schedule."""
    NOT_CLAIMED = "not_claimed"
    """No node has claimed the occurrence yet."""
    PRUNED = "pruned"
    UNEXPLAINED = "unexplained"
