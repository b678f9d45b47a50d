"""Report code that blocks an event loop, with its stack.

Invariants:

- A block is logged once, and so is its end.
- The number of unanswered checks counts, not the time. A suspended process therefore causes no
  warning.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import traceback

logger = logging.getLogger("django_dcron.runs")

CHECK_EVERY = 1.0
"""Seconds between two checks."""
BLOCKED_AFTER = 5
"""The event loop is blocked if it leaves this many checks in a row unanswered."""


class EventLoopMonitor:
    """Checks one event loop. Only one thread calls ``check``."""

    def __init__(self, loop: asyncio.AbstractEventLoop, thread: threading.Thread):
        self._loop = loop
        self._thread = thread
        self._answered = threading.Event()
        self._answered.set()
        self._unanswered = 0

    def check(self) -> None:
        """Ask the event loop to answer, unless it hasn't answered the last check."""
        if self._answered.is_set():
            if self._unanswered >= BLOCKED_AFTER:
                extra = {"event": "event_loop_responds"}
                logger.info("event loop responds again", extra=extra)
            self._unanswered = 0
            self._answered.clear()
            self._loop.call_soon_threadsafe(self._answered.set)
            return
        self._unanswered += 1
        if self._unanswered == BLOCKED_AFTER:
            extra = {"event": "event_loop_blocked"}
            text = "event loop blocked, no coroutine of this process continues: silent=%ds\n%s"
            silent = BLOCKED_AFTER * CHECK_EVERY
            logger.warning(text, silent, _stack(self._thread), extra=extra)


def _stack(thread: threading.Thread) -> str:
    frame = sys._current_frames().get(thread.ident or 0)
    return "".join(traceback.format_stack(frame)).rstrip() if frame else ""
