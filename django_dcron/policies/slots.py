"""Slots: the values of the unique column ``Run.slot``. Only this module knows their encoding.

| slot | value | the run that has it |
|---|---|---|
| ``running_slot`` | the job's id | executes, or starts next; keeps the slot between its attempts |
| ``next_in_line_slot`` | minus the job's id | waits for the running slot; at most one run per job |
| ``backfill_slot`` | from 2**62 on | is backfilled and waits for its turn |
| none | NULL | every other run |

Invariants:

- No two jobs share a value, and a job's values differ from one another. So one unique column
  prevents two runs from having the same slot.
- Backfill slots sort by job, then by occurrence. So one index finds the oldest run of each job.
- All values fit into 64 bits for job ids below 2**29.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, TypeVar

JobId = TypeVar("JobId")

FIRST_BACKFILL_SLOT = 2**62
"""The smallest backfill slot of all jobs. The other slots are smaller."""
BACKFILL_SLOTS = 2**33
"""The number of backfill slots per job: one for each second from 1970 to 2242."""


def running_slot(job_id: JobId) -> JobId:
    """Return the slot of the run that executes. Also takes an SQL expression of the job's id."""
    return job_id


def next_in_line_slot(job_id: int) -> int:
    """Return the slot of the only run that waits for the running slot."""
    return -job_id


def backfill_slot(job_id: int, scheduled_at: datetime) -> int:
    """Return the slot of a backfilled run that waits for its turn."""
    return int(first_backfill_slot(job_id)) + int(scheduled_at.timestamp())


def first_backfill_slot(job_id: Any) -> Any:
    """Return the lower bound of the job's backfill slots. The next job's is the upper bound.

    Also takes an SQL expression of the job's id.
    """
    return FIRST_BACKFILL_SLOT + job_id * BACKFILL_SLOTS
