"""Recognize and remember the tasks that Celery's beat sends, for ``dcron doctor``.

Beat doesn't record its runs of a static schedule. The messages that workers receive are therefore
the only sign that beat still runs.

Invariants:

- A message counts only if its header says that beat sent it. Celery 5.6 and later set the header.
  For earlier releases, django-dcron sets it in the beat process, if that process imports
  ``django_dcron.tasks``.
- A retry doesn't count: the task itself sends it, with the headers of the original message.
- A message that another worker received before doesn't count.
- A message may still have waited in its queue for a long time.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

HEADER = "celery_beat_task"
"""Celery's own header."""
REMEMBERED = 1_000
"""How many tasks a worker remembers."""


class BeatTasks:
    """When this worker last received each task from beat. Thread-safe."""

    def __init__(self, size: int = REMEMBERED, monotonic: Callable[[], float] = time.monotonic):
        self._size = size
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._latest: OrderedDict[str, float] = OrderedDict()

    def remember(self, headers: Mapping[str, Any], delivery: Mapping[str, Any]) -> None:
        """Remember the task of a received message if beat sent it.

        ``delivery``: kombu's delivery information.
        """
        if not headers.get(HEADER) or headers.get("retries") or delivery.get("redelivered"):
            return
        task = str(headers.get("task"))
        with self._lock:
            self._latest[task] = self._monotonic()
            self._latest.move_to_end(task)
            while len(self._latest) > self._size:
                self._latest.popitem(last=False)

    def report(self) -> list[dict[str, Any]]:
        """Return JSON: each task, and the seconds since this worker last received it from beat."""
        now = self._monotonic()
        with self._lock:
            return [{"task": task, "age": round(now - at, 3)} for task, at in self._latest.items()]


class BeatSender:
    """Marks the messages that beat sends from its own thread."""

    def __init__(self) -> None:
        self._thread: int | None = None

    def begin(self) -> None:
        """Declare that this thread is beat's. With some pools, beat shares the worker's process."""
        self._thread = threading.get_ident()

    def mark(self, headers: dict[str, Any] | None) -> None:
        if headers is not None and threading.get_ident() == self._thread:
            headers.setdefault(HEADER, True)
