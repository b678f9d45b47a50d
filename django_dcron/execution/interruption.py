"""Stopping a job's code from another thread of the same process, by raising an exception in it.

Invariants:

- At most one exception is ever raised, and only between ``arm`` and ``disarm``: code that has returned is left alone.
- In the main thread it is raised by a signal, which also ends a blocking call; in any other thread by the
  interpreter, as soon as that thread runs Python code again.
- The same signal from outside, when nothing is to be raised, says that there may be something to learn (``on_signal``).
"""

from __future__ import annotations

import ctypes
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

SIGNAL = signal.SIGUSR2
FIRST_PAUSE = 0.02
LONGEST_PAUSE = 1.0
"""Seconds between two signals, while the first was not noticed."""


class Interruption:
    """For one execution, used by the thread that makes it (``arm``, ``disarm``) and by others (``interrupt``)."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._armed = False
        self._used = False
        self._wanted: type[BaseException] | None = None
        self._thread = threading.get_ident()
        self._in_main = threading.current_thread() is threading.main_thread()

    @property
    def armed(self) -> bool:
        """Whether the job's code is being executed."""
        return self._armed

    def arm(self) -> None:
        if self._in_main:
            _main_thread.listen_for(self)
        self._armed = True

    def disarm(self) -> None:
        """May be called again."""
        if self._in_main:
            # The handler runs in this very thread, so no lock: what it interrupts may hold it.
            self._armed = False
            return
        with self._lock:
            self._armed = False
        if self._used:
            _use_up(self._thread)

    def interrupt(self, exception: type[BaseException]) -> bool:
        """Raise ``exception`` in the job's code; False if it has returned or was interrupted already."""
        with self._lock:
            if not self._armed or self._used:
                return False
            self._used = True
            if self._in_main:
                self._wanted = exception
                threading.Thread(target=self._signal_until_taken, name="dcron-interrupt", daemon=True).start()
            else:
                self._used = _raise_in(self._thread, exception)
            return self._used

    def _signal_until_taken(self) -> None:
        """More than once: a signal that comes right before a call blocks does not end that call."""
        pause = FIRST_PAUSE
        while self._armed and self._wanted is not None:
            signal.pthread_kill(self._thread, SIGNAL)
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    def take(self) -> type[BaseException] | None:
        """What is to be raised in the main thread, once; None if nothing is, or no longer."""
        wanted, self._wanted = self._wanted, None
        return wanted if self._armed else None


class _UsedUp(BaseException):
    """Takes the place of an exception that is no longer to be raised."""


def _raise_in(thread: int, exception: type[BaseException]) -> bool:
    """False if there is no such thread: greenlets, for one, are none."""
    return bool(
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(exception))
    )


def _use_up(this_thread: int) -> None:
    """Have nothing left to be raised in this thread, whether or not it was raised already.

    Not by setting it to NULL: until CPython 3.12 that leaves the interpreter looking for an exception at every step of
    every thread, and under a tracer, such as coverage, on 3.11, for ever.
    """
    try:
        _raise_in(this_thread, _UsedUp)
        while True:  # it is raised at the next step
            pass
    except _UsedUp:
        pass


class _MainThread:
    """Listens for the signal from the first run on and for good: one that comes late must not end the process."""

    def __init__(self) -> None:
        self._interruption: Interruption | None = None
        self._on_signal: Callable[[], None] | None = None
        self._handler_before: Any = None

    def listen_for(self, interruption: Interruption) -> None:
        self._interruption = interruption
        self._listen()

    def call_on_signal(self, on_signal: Callable[[], None]) -> None:
        self._on_signal = on_signal
        self._listen()

    def _listen(self) -> None:
        if signal.getsignal(SIGNAL) != self._handle:
            self._handler_before = signal.signal(SIGNAL, self._handle)

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        if self._interruption is not None and (exception := self._interruption.take()) is not None:
            raise exception
        if self._on_signal is not None:
            self._on_signal()
        if callable(self._handler_before):  # the project's own
            self._handler_before(signum, frame)


_main_thread = _MainThread()


def on_signal(call: Callable[[], None]) -> None:
    """Have ``call`` called in the main thread, whatever it is doing, when another process sends ``SIGNAL``.

    Asked for in the main thread. Only what may be done in the middle of anything.
    """
    _main_thread.call_on_signal(call)
