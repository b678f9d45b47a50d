"""SIGTERM and SIGINT as bytes in a pipe, so that the main thread can wait for them, with a timeout, and for threads.

The interpreter itself writes them, the moment one arrives, in whichever thread that is (``signal.set_wakeup_fd``). A handler of ours
would only be called by the main thread once it goes on, which a signal does not make it do if another thread got it, or if it
came just before the main thread began to wait.

A process that is forked meanwhile, by a job that uses multiprocessing, inherits all of it. It gets the handlers of before, or a
signal of its own would not end it, but the node. Until it has them the signals wait.
"""

from __future__ import annotations

import os
import select
import signal
import threading
import time
from types import FrameType, TracebackType
from typing import Any

WAKE = 0
SIGNALS = (signal.SIGTERM, signal.SIGINT)


class SignalPipe:
    """While entered, the two signals are written to the pipe instead of ending the process. Only in the main thread."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self._write, False)
        self._before: dict[int, Any] = {}
        self._wakeup_before = -1
        self._open = threading.Lock()
        """Held by whoever writes from another thread, so that the pipe is not closed under it."""

    def __enter__(self) -> SignalPipe:
        if threading.current_thread() is threading.main_thread():
            self._wakeup_before = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
            for number in SIGNALS:
                self._before[number] = signal.signal(number, _noted)
            _listening.append(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        if self._before:
            _listening.remove(self)
            self._put_back()
        with self._open:
            os.close(self._read)
            os.close(self._write)
            self._read = self._write = -1

    def wait(self, seconds: float | None = None) -> int | None:
        """Until a signal arrives (its number), somebody calls ``wake``, or ``seconds`` are over (None)."""
        end = None if seconds is None else time.monotonic() + seconds
        while True:
            remaining = None if end is None else max(end - time.monotonic(), 0)
            readable, _, _ = select.select([self._read], [], [], remaining)
            if not readable:
                return None
            byte = os.read(self._read, 1)[0]
            if byte == WAKE:
                return None
            if byte in SIGNALS:  # else one that the project listens to
                return byte

    def wake(self) -> None:
        """From any thread: end a ``wait``."""
        with self._open:
            if self._write >= 0:
                os.write(self._write, bytes([WAKE]))

    def _put_back(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._wakeup_before)


_listening: list[SignalPipe] = []
"""Those that are entered, the latest last."""
_forking = threading.local()


def _before_fork() -> None:
    _forking.mask = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS) if _listening else None


def _after_fork() -> None:
    if _forking.mask is not None:
        signal.pthread_sigmask(signal.SIG_SETMASK, _forking.mask)


def _after_fork_in_child() -> None:
    while _listening:
        _listening.pop()._put_back()
    _after_fork()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork_in_child)


def _noted(number: int, frame: FrameType | None) -> None:
    """It is in the pipe."""
