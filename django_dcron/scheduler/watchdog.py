"""The watchdog measures how long threads have been silent and how long ago events happened.

A thread records its activity when it begins a step. Before it rests, it records the maximum
duration of the rest.

Invariants:

- Silence is counted at each check, and each check adds a limited time. A suspended or starved
  process therefore doesn't make its threads hang.
- A thread that is silent for longer than ``DCRON_HANG_AFTER`` hangs, until its next activity.
- A hang is logged once, with the stacks of all threads, the hung thread first. The end of a hang is
  logged once, too.
- While no thread gets an answer from the database, a thread in a database call is *waiting*, not
  hanging, for up to ``DCRON_DATABASE_GRACE``. A restart would not help.
- Once the database answers another thread, the waiting thread hangs: its own connection is cut off.
"""

from __future__ import annotations

import logging
import sys
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass

from django_dcron.conf import settings
from django_dcron.utils.counts import number_of

logger = logging.getLogger("django_dcron.scheduler")

CHECK_EVERY = 2.0
"""Seconds between two checks. A late check counts as at most two intervals."""
STACKS = 40
"""The maximum number of stacks in the log. A node may execute runs in its own threads."""


@dataclass(eq=False)
class _LastSeen:
    thread: int
    next_by: float
    """The monotonic time by which the next activity is expected."""
    silence: float = 0.0
    """Seconds of silence counted since then."""
    hangs: bool = False


class Watchdog:
    """Any thread may record activity; only one thread calls ``check``."""

    def __init__(self, node: str, monotonic: Callable[[], float]):
        self._node = node
        self._monotonic = monotonic
        self._checked_at = monotonic()
        self._threads: dict[str, _LastSeen] = {}
        self._events: dict[str, _LastSeen] = {}
        self.hanging: dict[str, float] = {}
        """The names of the threads that hang, and their silence in seconds. Replaced at each check,
        never changed.
        """
        self.waiting: dict[str, float] = {}
        """The threads that have waited long for a stalled database, in the same form."""

    def record_activity(self, thread: str, rest: float | None = 0.0) -> None:
        """Record that the calling thread is active, or rests for at most ``rest`` seconds.

        None: the thread rests until it is woken.
        """
        expected = self._monotonic() + (float("inf") if rest is None else max(rest, 0.0))
        self._threads[thread] = _LastSeen(threading.get_ident(), expected)

    def ended(self, thread: str) -> None:
        self._threads.pop(thread, None)

    def record_event(self, event: str) -> None:
        """Record ``event``, which shows that the database has answered.

        A missing event makes no thread hang.
        """
        self._events[event] = _LastSeen(threading.get_ident(), self._monotonic())

    def age(self, event: str) -> float:
        """Return the seconds since the last ``event``, as of the last check."""
        return self._events[event].silence

    @property
    def check_age(self) -> float:
        """Seconds since the last check."""
        return self._monotonic() - self._checked_at

    def check(self) -> None:
        now = self._monotonic()
        passed = min(now - self._checked_at, 2 * CHECK_EVERY)
        self._checked_at = now
        threads = dict(self._threads)
        for last_seen in (*threads.values(), *self._events.values()):
            if now > last_seen.next_by:
                last_seen.silence += min(passed, now - last_seen.next_by)
        self._judge(threads)

    def _judge(self, threads: dict[str, _LastSeen]) -> None:
        limit = settings.HANG_AFTER.total_seconds()
        answers = any(event.silence < limit / 2 for event in self._events.values())
        previously_hanging, previously_waiting = self.hanging, self.waiting
        hanging: dict[str, float] = {}
        waiting: dict[str, float] = {}
        for name, last_seen in threads.items():
            if last_seen.silence > limit:
                last_seen.hangs = last_seen.hangs or answers or not _waits_for_database(last_seen)
                silent_threads = hanging if last_seen.hangs else waiting
                silent_threads[name] = last_seen.silence
        self.hanging, self.waiting = hanging, waiting
        for name in hanging.keys() - previously_hanging.keys():
            text = "thread hangs: node=%s thread=%s silent=%ds\n%s"
            self._log(
                logging.ERROR,
                "thread_hangs",
                name,
                text,
                hanging[name],
                _stacks(threads[name].thread),
            )
        for name in waiting.keys() - previously_waiting.keys():
            text = "thread blocked by the database: node=%s thread=%s waited=%ds"
            self._log(logging.ERROR, "thread_blocked", name, text, waiting[name])
        before = previously_hanging.keys() | previously_waiting.keys()
        for name in before - hanging.keys() - waiting.keys():
            self._log(logging.INFO, "thread_recovered", name, "thread recovered: node=%s thread=%s")

    def _log(self, level: int, event: str, thread: str, text: str, *args: object) -> None:
        extra = {"event": event, "node": self._node, "hanging": thread}
        logger.log(level, text, self._node, thread, *args, extra=extra)


def _waits_for_database(last_seen: _LastSeen) -> bool:
    """Return whether the thread is in a database call, within ``DCRON_DATABASE_GRACE``."""
    if last_seen.silence > settings.DATABASE_GRACE.total_seconds():
        return False
    frame = sys._current_frames().get(last_seen.thread)
    while frame is not None and not frame.f_globals.get("__name__", "").startswith(
        "django.db.backends."
    ):
        frame = frame.f_back
    return frame is not None


def _stacks(first: int) -> str:
    """Return the stacks of all threads except the calling one, thread ``first`` at the top."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    frames = sys._current_frames()
    frames.pop(threading.get_ident(), None)
    order = sorted(frames, key=lambda ident: (ident != first, names.get(ident, "")))
    stacks = [
        f"Thread {names.get(ident, ident)}:\n{''.join(traceback.format_stack(frames[ident]))}"
        for ident in order[:STACKS]
    ]
    if len(order) > STACKS:
        stacks.append(f"and {number_of(len(order) - STACKS, 'thread')} more")
    return "".join(stacks).rstrip()
