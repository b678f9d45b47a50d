"""Slots: which run of a job executes, which is next in line, and which wait in a backfill.

A run has at most one slot, in the columns ``slot`` and ``slot_number``:

| slot | number | the run that has it |
|---|---|---|
| ``running`` | 0 | executes, or starts next; keeps the slot between its attempts |
| ``next_in_line`` | 0 | waits for the running slot |
| ``backfill`` | Unix time of its occurrence | is backfilled and waits for its turn |
| NULL | 0 | every other run |

Invariants:

- UNIQUE (slot, job, slot_number): a job has at most one run in the running slot, and at most one
  next in line. NULLs never collide, so runs without a slot don't take part.
- Only the numbers of backfill slots differ from 0. A CHECK constraint enforces this.
- Backfill slots sort by job, then by occurrence. So the same index yields the oldest waiting run of
  each job, regardless of how many wait.
- The index begins with the slot. The entries of runs without a slot are therefore apart from the
  others, and on MariaDB a lock on a slot doesn't block them.
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from types import MappingProxyType


class Slot(StrEnum):
    RUNNING = "running"
    """At most one run of a job has it."""
    NEXT_IN_LINE = "next_in_line"
    """At most one run of a job has it."""
    BACKFILL = "backfill"
    """Each waiting backfilled run of a job has one with its own number."""


NO_SLOT = MappingProxyType({"slot": None, "slot_number": 0})
"""The columns of a run without a slot."""


def backfill_number(scheduled_at: datetime) -> int:
    """Return the number of the backfill slot of an occurrence."""
    return int(scheduled_at.timestamp())
