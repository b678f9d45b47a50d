"""The watchdog: how long each thing that should happen again and again has not happened.

A thread gives a sign of life whenever it begins something, and before it rests it says for how long. Silence beyond that
is counted by the watchdog itself, look by look, and of the time between two looks only as much as was to be expected: so
a process that was suspended, or starved, has nothing to reproach its threads with when it goes on.

A thread that is silent for longer than ``DCRON_HANG_AFTER`` is taken to hang, until it gives a sign again. That is said
once, with the stacks of all threads, its own first; and once when it goes on.

Where the database itself stalls, a new process would fare no better. So a thread that is inside the database, while none of
the other threads gets anything out of it either, merely waits, up to ``DCRON_DATABASE_GRACE``. Once one of them does, the
database is not to blame: a connection that is cut off makes a thread hang as anything else does.
"""

from __future__ import annotations

import logging
import sys
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass

from django_dcron.conf import settings
from django_dcron.domain.counts_in_words import number_of

logger = logging.getLogger("django_dcron.scheduler")

LOOK_EVERY = 2.0
"""Seconds. A look that comes later counts for no more than twice as much."""
STACKS = 40
"""How many threads' stacks are logged at the most: a node may execute runs in threads of its own."""


@dataclass(eq=False)
class _Sign:
    thread: int
    next_by: float
    """When the next one is to be expected at the latest, on the monotonic clock."""
    silence: float = 0.0
    """Seconds counted since."""
    hangs: bool = False


class Watchdog:
    """Signs may be given from any thread; ``look`` is for one alone."""

    def __init__(self, node: str, monotonic: Callable[[], float]):
        self._node = node
        self._monotonic = monotonic
        self._looked_at = monotonic()
        self._threads: dict[str, _Sign] = {}
        self._events: dict[str, _Sign] = {}
        self.hanging: dict[str, float] = {}
        """The threads that hang, by their name, and how long they have been silent. Replaced at each look, never changed."""
        self.waiting: dict[str, float] = {}
        """Those that have waited long for a database that stalls, in the same way."""

    def alive(self, thread: str, rest: float | None = 0.0) -> None:
        """The calling thread goes on with something, or rests for ``rest`` seconds at the most; None: until it is woken."""
        expected = self._monotonic() + (float("inf") if rest is None else max(rest, 0.0))
        self._threads[thread] = _Sign(threading.get_ident(), expected)

    def ended(self, thread: str) -> None:
        self._threads.pop(thread, None)

    def happened(self, event: str) -> None:
        """From now on the age of ``event`` counts: the database has answered. It makes nothing hang."""
        self._events[event] = _Sign(threading.get_ident(), self._monotonic())

    def age(self, event: str) -> float:
        """Seconds since ``event`` last happened, as of the last look."""
        return self._events[event].silence

    @property
    def look_age(self) -> float:
        """Seconds since it last looked: what it says is as old."""
        return self._monotonic() - self._looked_at

    def look(self) -> None:
        now = self._monotonic()
        passed = min(now - self._looked_at, 2 * LOOK_EVERY)
        self._looked_at = now
        threads = dict(self._threads)
        for sign in (*threads.values(), *self._events.values()):
            if now > sign.next_by:
                sign.silence += min(passed, now - sign.next_by)
        self._judge(threads)

    def _judge(self, threads: dict[str, _Sign]) -> None:
        limit = settings.HANG_AFTER.total_seconds()
        answers = any(event.silence < limit / 2 for event in self._events.values())
        hung, waited = self.hanging, self.waiting
        hanging: dict[str, float] = {}
        waiting: dict[str, float] = {}
        for name, sign in threads.items():
            if sign.silence > limit:
                sign.hangs = sign.hangs or answers or not _waits_for_database(sign)
                (hanging if sign.hangs else waiting)[name] = sign.silence
        self.hanging, self.waiting = hanging, waiting
        for name in hanging.keys() - hung.keys():
            text = "%s: its %s thread hangs, it has given no sign of life for %d s\n%s"
            self._log(logging.ERROR, "hangs", name, text, hanging[name], _stacks(threads[name].thread))
        for name in waiting.keys() - waited.keys():
            text = "%s: its %s thread has waited for the database for %d s"
            self._log(logging.ERROR, "waits", name, text, waiting[name])
        for name in (hung.keys() | waited.keys()) - hanging.keys() - waiting.keys():
            self._log(logging.INFO, "goes_on", name, "%s: its %s thread goes on")

    def _log(self, level: int, event: str, thread: str, text: str, *args: object) -> None:
        extra = {"event": event, "node": self._node, "hanging": thread}
        logger.log(level, text, self._node, thread, *args, extra=extra)


def _waits_for_database(sign: _Sign) -> bool:
    """Whether its thread is inside Django's database backend now, and has been silent no longer than a database may stall."""
    if sign.silence > settings.DATABASE_GRACE.total_seconds():
        return False
    frame = sys._current_frames().get(sign.thread)
    while frame is not None and not frame.f_globals.get("__name__", "").startswith("django.db.backends."):
        frame = frame.f_back
    return frame is not None


def _stacks(first: int) -> str:
    """Where all threads of this process are now, that of ``first`` before all others; the asking one is left out."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    frames = sys._current_frames()
    frames.pop(threading.get_ident(), None)
    order = sorted(frames, key=lambda ident: (ident != first, names.get(ident, "")))
    texts = [
        f"Thread {names.get(ident, ident)}:\n{''.join(traceback.format_stack(frames[ident]))}"
        for ident in order[:STACKS]
    ]
    if len(order) > STACKS:
        texts.append(f"and {number_of(len(order) - STACKS, 'thread')} more")
    return "".join(texts).rstrip()
