"""Stop a job's code from another thread of the same process by raising an exception in it.

Invariants:

- Exceptions are raised only between ``arm`` and ``disarm``. Code that has returned isn't
  interrupted.
- Code that was interrupted is interrupted again only if the caller says so (``again``). Otherwise a
  second exception could end the cleanup after the first.
- In the main thread, a signal handler raises the exception, which also ends a blocking call.
- In other threads, the interpreter raises it as soon as the thread runs Python code again.
- While the thread runs a coroutine, the coroutine is cancelled instead.
- If no exception is pending, the same signal from another process means that there may be a
  cancellation to read (``call_on_signal``).
"""

from __future__ import annotations

import ctypes
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from django_dcron.utils.threads import DcronThread

SIGNAL = signal.SIGUSR2
FIRST_PAUSE = 0.02
LONGEST_PAUSE = 1.0
"""Seconds between two signals, until the main thread reacts."""


class Interruption:
    """The interruption of one execution.

    The executing thread creates, arms and disarms it. Other threads call ``interrupt``.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._armed = False
        self._used = False
        self._exception: type[BaseException] | None = None
        self._wanted: type[BaseException] | None = None
        """The exception that the signal handler has to raise."""
        self._redirection: Callable[[], None] | None = None
        self._thread = threading.get_ident()
        self._in_main = threading.current_thread() is threading.main_thread()

    @property
    def armed(self) -> bool:
        """Whether the job's code is being executed and may be interrupted."""
        return self._armed

    @property
    def used(self) -> bool:
        """Whether an exception was raised in the job's code, or is about to be."""
        return self._used

    @property
    def exception(self) -> BaseException | None:
        """A new instance of the exception of ``interrupt``; None without an interruption."""
        return self._exception() if self._used and self._exception else None

    def arm(self) -> None:
        if self._in_main:
            _main_thread.listen_for(self)
        self._armed = True

    def disarm(self) -> None:
        """Prevent further interruptions. It may be called more than once."""
        if self._in_main:
            # No lock: the signal handler runs in this thread and may interrupt the lock's holder.
            self._armed = False
            return
        with self._lock:
            self._armed = False
        if self._used:
            _discard_pending(self._thread)

    def interrupt(
        self,
        exception: type[BaseException],
        *,
        again: bool = False,
        before: Callable[[], None] = lambda: None,
    ) -> bool:
        """Raise ``exception`` in the job's code.

        ``again``: Raise it even if the code was interrupted before. An earlier exception that is
        still pending is replaced. ``before``: Called first, unless the code has returned or was
        interrupted before.

        Returns False if the code has returned, was interrupted before, or can't be interrupted
        because it runs in a greenlet.
        """
        with self._lock:
            if not self._armed or (self._used and not again):
                return False
            before()
            self._exception = exception
            self._used = True
            if self._redirection is not None:
                self._redirection()
            elif self._in_main:
                self._wanted = exception
                thread = DcronThread(
                    target=self._signal_until_taken, name="dcron-interrupt", daemon=True
                )
                try:
                    thread.start()
                except RuntimeError:  # too many threads; one signal is usually enough
                    signal.pthread_kill(self._thread, SIGNAL)
            else:
                self._used = _raise_in(self._thread, exception)
            return self._used

    @contextmanager
    def redirected_to(self, call: Callable[[], None]) -> Iterator[None]:
        """Within the block, ``interrupt`` calls ``call`` in its own thread and raises nothing.

        After an earlier interruption, ``call`` is called at once. It may be called twice: this sets
        ``_redirection`` before it reads ``_used``, and ``interrupt`` sets ``_used`` before it reads
        ``_redirection``. So at least one of them notices the other.
        """
        self._redirection = call
        try:
            if self._used:
                call()
            yield
        finally:
            self._redirection = None

    def _signal_until_taken(self) -> None:
        """Send the signal until the main thread reacts.

        One signal isn't enough: if it arrives right before a call blocks, it doesn't end that call.
        """
        pause = FIRST_PAUSE
        while self._armed and self._wanted is not None:
            signal.pthread_kill(self._thread, SIGNAL)
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    def take(self) -> type[BaseException] | None:
        """Return the exception to raise in the main thread, once, or None."""
        wanted, self._wanted = self._wanted, None
        return wanted if self._armed else None


class _Discarded(BaseException):
    """Replaces a pending exception that must no longer be raised."""


def _raise_in(thread: int, exception: type[BaseException]) -> bool:
    """Raise ``exception`` in the thread. Returns False if ``thread`` identifies a greenlet."""
    return bool(
        ctypes.pythonapi.PyThreadState_SetAsyncExc(
            ctypes.c_ulong(thread), ctypes.py_object(exception)
        )
    )


def _discard_pending(this_thread: int) -> None:
    """Clear a pending exception of this thread, whether or not it was raised already.

    Setting it to NULL doesn't work: until CPython 3.12, the interpreter then looks for an exception
    at every step of every thread. On 3.11, with a tracer such as coverage, it does so forever.
    """
    try:
        _raise_in(this_thread, _Discarded)
        while True:  # the interpreter raises it at the next step
            pass
    except _Discarded:
        pass


class _MainThread:
    """Handles the signal in the main thread, from the first run until the process ends.

    A late signal must not end the process, which is the signal's default action.
    """

    def __init__(self) -> None:
        self._interruption: Interruption | None = None
        self._on_signal: Callable[[], None] | None = None
        self._handler_before: Any = None

    def listen_for(self, interruption: Interruption) -> None:
        self._interruption = interruption
        self._listen()

    def call_on_signal(self, call: Callable[[], None]) -> None:
        self._on_signal = call
        self._listen()

    def _listen(self) -> None:
        if signal.getsignal(SIGNAL) != self._handle:
            self._handler_before = signal.signal(SIGNAL, self._handle)

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        if self._interruption is not None and (exception := self._interruption.take()) is not None:
            raise exception
        if self._on_signal is not None:
            self._on_signal()
        if callable(self._handler_before):  # the project's handler
            self._handler_before(signum, frame)


_main_thread = _MainThread()


def call_on_signal(call: Callable[[], None]) -> None:
    """Call ``call`` in the main thread, at any point, when another process sends ``SIGNAL``.

    Must be called in the main thread. ``call`` may interrupt any code, so it must be reentrant.
    """
    _main_thread.call_on_signal(call)
