"""The overlap policy of a job: whether its runs may execute at the same time.

Under an exclusive policy, the run that executes has the job's running slot (``slots``).
``start_decision`` decides what a run does if the slot is taken.
"""

from __future__ import annotations

from enum import StrEnum


class OverlapPolicy(StrEnum):
    ALLOW = "allow"
    SKIP = "skip"
    QUEUE_ONE = "queue_one"
    QUEUE_ALL = "queue_all"
    CANCEL_RUNNING = "cancel_running"

    @property
    def exclusive(self) -> bool:
        """Whether a run needs the job's slot to start."""
        return self is not OverlapPolicy.ALLOW


def is_queueing(overlap: OverlapPolicy, *, runs_backlog: bool) -> bool:
    """Return whether several runs of the schedule may wait for the slot, in the order they are due.

    ``runs_backlog``: whether the misfire policy is ``run_all``. Its late runs wait for each other
    under ``skip`` and ``queue_one``, too.
    """
    if overlap in (OverlapPolicy.SKIP, OverlapPolicy.QUEUE_ONE):
        return runs_backlog
    return overlap is OverlapPolicy.QUEUE_ALL


def read_overlap_policy(stored: str) -> OverlapPolicy:
    """Return the policy of a job's row. An unknown value becomes ``SKIP``, the strictest policy.

    A value is unknown if it was written without validation or by a later release.
    """
    try:
        return OverlapPolicy(stored)
    except ValueError:
        return OverlapPolicy.SKIP
