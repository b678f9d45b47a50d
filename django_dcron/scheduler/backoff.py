"""Backoff: consecutive failed ticks, and the pause after them.

A tick fails because the database is unreachable or read-only, another transaction blocks it, or
the database rejects a statement. The node survives all of these. An outage is logged once when it
begins and once when it ends.
"""

from __future__ import annotations

import logging
import random
from datetime import datetime

from django_dcron.conf import settings
from django_dcron.db.contention import is_contention
from django_dcron.db.errors import UNAVAILABLE, in_one_line

logger = logging.getLogger("django_dcron.scheduler")

LONGEST_PAUSE = 5.0
"""The longest pause after a failed tick, in seconds. The pause is ``DCRON_TICK``, doubled once for
each failed tick since the last success, up to ``DOUBLINGS`` times. Contention doesn't double it.
"""
DOUBLINGS = 10


class TickBackoff:
    def __init__(self, node: str):
        self._node = node
        self._unreachable = 0
        """How many ticks since the last success found the database unreachable."""
        self._refused = 0
        """How many ticks since the last success failed because of a rejected statement."""
        self.unreachable_since: datetime | None = None
        self.reason = ""
        """Why the last tick failed, in one line. Empty if it succeeded."""

    def record_failure(self, error: Exception, at: datetime) -> bool:
        """Record a failed tick. Return whether the database is unreachable."""
        self.reason = in_one_line(error)
        if is_contention(error):
            self._log("contention", "tick postponed by a lock: node=%s error=%s", error)
            return False
        if isinstance(error, UNAVAILABLE):
            if not self._unreachable:
                extra = {"event": "database_unreachable", "node": self._node}
                logger.error("database unusable: node=%s error=%s", self._node, error, extra=extra)
                self.unreachable_since = at
            self._unreachable += 1
            return True
        self._refused += 1
        logger.error(
            "tick failed, retrying: node=%s error=%s",
            self._node,
            error,
            exc_info=error,
            extra={"event": "tick_failed", "node": self._node},
        )
        return False

    def record_success(self) -> None:
        """Record a successful tick."""
        if self._unreachable:
            self._log(
                "database_back",
                "database usable again: node=%s failed_attempts=%d",
                self._unreachable,
            )
        self._unreachable = self._refused = 0
        self.unreachable_since = None
        self.reason = ""

    @property
    def pause(self) -> float:
        """Seconds until the next try."""
        doubled = settings.TICK.total_seconds() * 2.0 ** min(
            self._unreachable + self._refused, DOUBLINGS
        )
        return min(doubled, LONGEST_PAUSE) * random.uniform(0.5, 1)  # noqa: S311 (spreads)

    def _log(self, event: str, message: str, *args: object) -> None:
        logger.info(message, self._node, *args, extra={"event": event, "node": self._node})
