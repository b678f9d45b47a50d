"""Setbacks: ticks that did not go through, in a row, and how long to pause after them.

The database is away, somebody was in the way, or it refused what we wrote: the node outlives all three. That the database
went, and that it is back, is said once each.
"""

from __future__ import annotations

import logging
import random
from datetime import datetime

from django_dcron.conf import settings
from django_dcron.domain.counts_in_words import number_of
from django_dcron.models.database import AWAY, in_one_line, is_contention

logger = logging.getLogger("django_dcron.scheduler")

LONGEST_PAUSE = 5.0
"""Seconds between tries while the database is away; doubled from a tick's length on, so many times at the most."""
DOUBLINGS = 10


class Setbacks:
    def __init__(self, node: str):
        self._node = node
        self._away = 0
        """Ticks in a row, because the database was away."""
        self._refused = 0
        """Ticks in a row, because of what was written."""
        self.away_since: datetime | None = None
        self.reason = ""
        """Why the last tick did not go through, in one line; empty if it did."""

    def failed(self, error: Exception, at: datetime) -> bool:
        """A tick did not go through; returns whether the database is away."""
        self.reason = in_one_line(error)
        if is_contention(error):
            self._log("contention", "%s: another transaction was in the way, once more: %s", error)
            return False
        if isinstance(error, AWAY):
            if not self._away:
                extra = {"event": "database_away", "node": self._node}
                logger.error("the database does not answer: %s", error, extra=extra)
                self.away_since = at
            self._away += 1
            return True
        self._refused += 1
        logger.error(
            "%s: the database refused a part of the tick, once more: %s",
            self._node,
            error,
            exc_info=error,
            extra={"event": "refused", "node": self._node},
        )
        return False

    def over(self) -> None:
        """A tick went through."""
        if self._away:
            self._log(
                "database_back",
                "the database answers %s again, after %s",
                number_of(self._away, "try", "tries"),
            )
        self._away = self._refused = 0
        self.away_since = None
        self.reason = ""

    @property
    def pause(self) -> float:
        """Seconds to the next try."""
        doubled = settings.TICK.total_seconds() * 2.0 ** min(self._away + self._refused, DOUBLINGS)
        return min(doubled, LONGEST_PAUSE) * random.uniform(0.5, 1)  # noqa: S311 (spreads)

    def _log(self, event: str, message: str, *args: object) -> None:
        logger.info(message, self._node, *args, extra={"event": event, "node": self._node})
