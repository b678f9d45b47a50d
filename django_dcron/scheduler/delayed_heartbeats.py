"""Remember the runs whose heartbeats a lock may have delayed, so that they aren't declared lost.

A transaction that locks a run's row blocks the worker's heartbeat. Once the row is free, the worker
needs a moment for its next try, because it tries about once a second. A run that was found locked
is therefore spared for another half lease.

Invariants:

- ``record_locked`` receives the locked runs that have been silent for half a lease or longer. A
  lock is therefore noticed before it makes the heartbeat stale.
- A run in a shard that this node has just gained is spared, too: this node hasn't checked it yet.
- The half lease is measured on the monotonic clock.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from datetime import timedelta
from uuid import UUID

from django_dcron.conf import settings
from django_dcron.policies.sharding import shard_of_job


class DelayedHeartbeats:
    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._locked_at: dict[UUID, float] = {}
        """The monotonic time at which each run was last seen locked."""
        self._shards: frozenset[int] | None = None
        self._gained_at: dict[int, float] = {}
        """The monotonic time at which this node gained each shard."""
        self._all_at = float("-inf")
        """The monotonic time at which a lock last prevented the whole check."""

    def record_locked(
        self, shards: Collection[int], locked: Collection[UUID], lease: timedelta
    ) -> None:
        """Record which silent runs of ``shards`` are locked."""
        now, expired = self._monotonic(), self._monotonic() - lease.total_seconds()
        if self._shards is not None:
            self._gained_at |= dict.fromkeys(frozenset(shards) - self._shards, now)
        self._shards = frozenset(shards)
        recent = {run_id: at for run_id, at in self._locked_at.items() if at > expired}
        self._locked_at = recent | dict.fromkeys(locked, now)

    def record_all_locked(self) -> None:
        """Record that a lock prevented the whole check, so that any run may be locked."""
        self._all_at = self._monotonic()

    def may_be_delayed(self, run_id: UUID, job_id: int, lease: timedelta) -> bool:
        """Return whether the run may be silent only because its heartbeat was blocked."""
        never = float("-inf")
        gained_at = self._gained_at.get(shard_of_job(job_id, settings.SHARDS), never)
        latest = max(self._locked_at.get(run_id, never), gained_at, self._all_at)
        return self._monotonic() - latest < lease.total_seconds() / 2
