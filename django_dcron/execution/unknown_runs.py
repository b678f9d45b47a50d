"""Classify, log and remember runs that a worker receives but doesn't find in its database.

There are two causes:

- The run was deleted after a node had put it on its agenda, because its job was changed or deleted.
  This is routine.
- The worker uses a different database than the node that published the message. The message then
  belongs to other workers.

A message names the node that published it. If that node is alive in this database, the database is
the right one. A copy of the right database, such as a staging system's, has the node's row too, but
none of its heartbeats.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any
from uuid import UUID

from django.db import OperationalError, ProgrammingError

from django_dcron.conf import settings
from django_dcron.db.routing import alias_for, database_name, lacks_table
from django_dcron.models import Node, Run

logger = logging.getLogger("django_dcron.runs")

REMEMBERED = 50
"""How many unknown runs a worker remembers."""
WARN_EVERY = 10.0
"""Seconds between two warnings of a process. A job may be deleted with thousands of queued runs."""


def is_published_here(node: str | None) -> bool:
    """Return whether the node with this id is alive in this database. None: whether any node is.

    Raises the database's errors.
    """
    using = alias_for(Node)
    live = Node.objects.using(using).live(settings.LEASE)
    try:
        return (live if node is None else live.filter(pk=node)).exists()
    except (ProgrammingError, OperationalError):
        if lacks_table(Node, using):
            return False
        raise


class UnknownRuns:
    """The latest unknown runs of this process. Thread-safe."""

    def __init__(self, size: int = REMEMBERED, monotonic: Callable[[], float] = time.monotonic):
        self._size = size
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._latest: OrderedDict[str, tuple[float, bool]] = OrderedDict()

    def add(self, run_id: str, *, dropped: bool) -> None:
        """Remember ``run_id``. ``dropped``: its message didn't go back to the queue.

        A run that was dropped once stays dropped, because two processes of a pool may report one
        message in the wrong order.
        """
        with self._lock:
            if dropped or not self._latest.get(run_id, (0.0, False))[1]:
                self._latest[run_id] = self._monotonic(), dropped
            self._latest.move_to_end(run_id)
            while len(self._latest) > self._size:
                self._latest.popitem(last=False)

    def report(self) -> list[dict[str, Any]]:
        """Return JSON for a node.

        Each entry has the run, whether its message was dropped, and the age of the drop or the
        message in seconds.
        """
        now = self._monotonic()
        with self._lock:
            return [
                {"run": run_id, "age": round(now - at, 3), "dropped": dropped}
                for run_id, (at, dropped) in self._latest.items()
            ]


class UnknownRunLog:
    """Log unknown runs: at most one WARNING every ``WARN_EVERY`` seconds, all others as DEBUG."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic):
        self._monotonic = monotonic
        self._next = float("-inf")
        self._suppressed = 0

    def log(
        self, run_id: UUID, attempt: int, worker: str, consequence: str, *, expected: bool = False
    ) -> None:
        """Log an unknown run.

        ``consequence``: What happens to the message or the run now.
        ``expected``: This run is no reason for a warning.
        """
        now = self._monotonic()
        level = logging.DEBUG
        suffix = ""
        if not expected and now < self._next:
            self._suppressed += 1
        elif not expected:
            level = logging.WARNING
            if self._suppressed:
                suffix = f" (unknown runs since the last warning: {self._suppressed})"
            self._next, self._suppressed = now + WARN_EVERY, 0
        logger.log(
            level,
            "unknown run: run=%s attempt=%d worker=%s; not in %s: the run was deleted with its "
            "job, or the worker and the node use different databases. %s%s",
            run_id,
            attempt,
            worker,
            database_name(alias_for(Run)),
            consequence,
            suffix,
            extra={
                "event": "unknown_run",
                "run": str(run_id),
                "attempt": attempt,
                "worker": worker,
            },
        )


unknown_run_log = UnknownRunLog()
"""The log of this process."""
