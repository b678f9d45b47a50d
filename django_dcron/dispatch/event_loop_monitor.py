"""Report code that blocks an event loop, with its stack.

Invariants:

- Each blockage is logged once when it is detected, and once when it ends.
- The monitor counts unanswered checks and doesn't measure time, so a suspended process causes no
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
MAX_UNANSWERED = 5
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
            if self._unanswered >= MAX_UNANSWERED:
                extra = {"event": "event_loop_responds"}
                logger.info("event loop responds again", extra=extra)
            self._unanswered = 0
            self._answered.clear()
            self._loop.call_soon_threadsafe(self._answered.set)
            return
        self._unanswered += 1
        if self._unanswered == MAX_UNANSWERED:
            extra = {"event": "event_loop_blocked"}
            text = "event loop blocked, so all coroutines wait: blocked_for=%ds\n%s"
            blocked_for = MAX_UNANSWERED * CHECK_EVERY
            logger.warning(text, blocked_for, _stack(self._thread), extra=extra)


def _stack(thread: threading.Thread) -> str:
    frame = sys._current_frames().get(thread.ident or 0)
    return "".join(traceback.format_stack(frame)).rstrip() if frame else ""
