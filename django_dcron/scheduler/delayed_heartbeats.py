"""Runs whose heartbeats a lock may have delayed: they are not declared lost as soon as the lock is gone.

A session that locks a run's row keeps the worker's heartbeat from being written. Once the row is free again, the worker needs a
moment for its next try. So a run that was seen locked is excused for half a lease after that; a worker tries about once a second.

Invariants:

- ``look`` sees each run from half a lease of silence on, and so sees a lock before it has made the heartbeat stale.
- A run in a shard that this node has just gained is excused in the same way: nobody has looked at it from here.
- An excuse is counted on the monotonic clock.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from datetime import timedelta
from uuid import UUID

from django_dcron.conf import settings


class DelayedHeartbeats:
    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._locked_at: dict[UUID, float] = {}
        """When each run was last seen locked."""
        self._shards: frozenset[int] | None = None
        self._gained_at: dict[int, float] = {}
        self._all_at = float("-inf")
        """When the runs as a whole could not be looked at."""

    def see(self, shards: Collection[int], locked: Collection[UUID], lease: timedelta) -> None:
        """What a look at the silent runs of ``shards`` has found."""
        now, expired = self._monotonic(), self._monotonic() - lease.total_seconds()
        if self._shards is not None:
            self._gained_at |= dict.fromkeys(frozenset(shards) - self._shards, now)
        self._shards = frozenset(shards)
        kept = {run_id: at for run_id, at in self._locked_at.items() if at > expired}
        self._locked_at = kept | dict.fromkeys(locked, now)

    def see_all_locked(self) -> None:
        self._all_at = self._monotonic()

    def excuse(self, run_id: UUID, job_id: int, lease: timedelta) -> bool:
        """Whether the run may be silent only because its heartbeat could not be written."""
        never = float("-inf")
        gained_at = self._gained_at.get(job_id % settings.SHARDS, never)
        latest = max(self._locked_at.get(run_id, never), gained_at, self._all_at)
        return self._monotonic() - latest < lease.total_seconds() / 2
