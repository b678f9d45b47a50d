"""What can be the answer to "why did it run, or not?"."""

from __future__ import annotations

from enum import StrEnum


class Verdict(StrEnum):
    """For programs; a value is never renamed or given another meaning. Where the occurrence has a run, that run's state."""

    PENDING = "pending"
    QUEUED = "queued"
    RUNNING = "running"
    WAITING = "waiting"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    SKIPPED = "skipped"
    MISSED = "missed"
    CANCELLED = "cancelled"
    COUNTED = "counted"
    """Missed, without a row of its own: a later run stands for it."""
    TO_COME = "to_come"
    NOT_SCHEDULED = "not_scheduled"
    """The schedule does not fall on that time."""
    EXCLUDED = "excluded"
    """The schedule falls on that time, but the job's calendar excludes the date."""
    BEFORE_START = "before_start"
    AFTER_END = "after_end"
    NOT_CREATED = "not_created"
    """The job did not exist then."""
    PAUSED = "paused"
    CHANGED = "changed"
    """The definition was another one then; what it was is not known."""
    QUARANTINED = "quarantined"
    """Out of scheduling: the schedule cannot be read."""
    NOT_CLAIMED = "not_claimed"
    """No node has considered it yet."""
    PRUNED = "pruned"
    UNEXPLAINED = "unexplained"
