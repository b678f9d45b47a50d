"""Report that nodes of another database hold the locks of a node's shards.

Two sites that share a Redis need a ``KEY_PREFIX`` each. Otherwise, only one of them is scheduled.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from contextlib import suppress

from django_dcron.conf import settings
from django_dcron.db.routing import alias_for
from django_dcron.exceptions import LockUnavailable
from django_dcron.locks.base import Lock
from django_dcron.models import Node

logger = logging.getLogger("django_dcron.scheduler")

FOREIGN_AFTER = 2.0
"""A node looks for the cause if other nodes hold the locks of its shards for this many lease times.
The locks of a node that has ended expire after one lease time. It then looks as often.
"""


class ForeignLocks:
    def __init__(self, node: str, lock: Lock) -> None:
        self._node = node
        self._lock = lock
        self._waits_since: float | None = None
        """The monotonic time of the last look for the holders, or since which locks are missing.
        None if no lock is missing.
        """
        self._logged = ""
        """The holder that was logged last."""
        self.holder = ""
        """The node of another database that has locks of this node's shards. Empty if none has."""

    def check(self, missing: Collection[str], now: float) -> None:
        """Set ``holder`` if nodes of another database keep the locks ``missing``.

        Each holder is logged once.
        ``missing`` names the locks of this node's shards that it doesn't hold, and ``now`` is the
        monotonic time. If this database is a copy of the other one, it contains old rows of these
        nodes. A node without heartbeats doesn't renew its locks (``membership``).
        """
        if not missing:
            self._waits_since, self._logged, self.holder = None, "", ""
            return
        if self._waits_since is None:
            self._waits_since = now
        if now - self._waits_since < FOREIGN_AFTER * settings.LEASE.total_seconds():
            return
        self._waits_since = now
        with suppress(LockUnavailable):
            holders = self._lock.holders(missing)
            nodes = Node.objects.using(alias_for(Node)).live(2 * settings.LEASE)
            self.holder = min(nodes.unknown(holders.values()), default="")
            if self.holder not in ("", self._logged):
                self._logged = self.holder
                logger.warning(
                    "shards led by a node of another database: node=%s holder=%s shards=%d/%d; "
                    "give each site that shares a Redis its own KEY_PREFIX in CACHES",
                    self._node,
                    self.holder,
                    len(missing),
                    settings.SHARDS,
                    extra={"event": "foreign_locks", "node": self._node, "holder": self.holder},
                )
