"""Write SIGTERM and SIGINT as bytes to a pipe, so that the main thread can wait for them.

The interpreter writes the bytes as soon as a signal arrives, in any thread
(``signal.set_wakeup_fd``). A Python handler isn't enough, because it runs only in the main thread
and only after that thread continues. A signal doesn't wake the main thread if another thread
received it, or if it came just before the wait.

A process that a job forks, for example with multiprocessing, inherits the handlers. A signal to
that process would stop the node, so the child restores the previous handlers. Signals are blocked
until it has done so.
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
    """A context manager that writes the two signals to the pipe instead of ending the process.

    It has an effect only in the main thread.
    """

    def __init__(self) -> None:
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self._write, False)
        self._previous_handlers: dict[int, Any] = {}
        self._previous_wakeup_fd = -1
        self._write_lock = threading.Lock()
        """Held during a write, so that the pipe isn't closed meanwhile."""

    def __enter__(self) -> SignalPipe:
        if threading.current_thread() is threading.main_thread():
            self._previous_wakeup_fd = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
            for number in SIGNALS:
                self._previous_handlers[number] = signal.signal(number, _ignore_signal)
            _listening.append(self)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        if self._previous_handlers:
            _listening.remove(self)
            self._restore_handlers()
        self.close()

    def close(self) -> None:
        """Close the pipe. Only needed if the context is never entered."""
        with self._write_lock:
            os.close(self._read)
            os.close(self._write)
            self._read = self._write = -1

    def wait(self, seconds: float | None = None) -> int | None:
        """Wait for a signal and return its number.

        Returns None after ``wake``, or when ``seconds`` have passed.
        """
        end = None if seconds is None else time.monotonic() + seconds
        while True:
            remaining = None if end is None else max(end - time.monotonic(), 0)
            readable, _, _ = select.select([self._read], [], [], remaining)
            if not readable:
                return None
            byte = os.read(self._read, 1)[0]
            if byte == WAKE:
                return None
            if byte in SIGNALS:  # Other bytes are signals that the project handles.
                return byte

    def wake(self) -> None:
        """End a ``wait``. Any thread may call this."""
        with self._write_lock:
            if self._write >= 0:
                os.write(self._write, bytes([WAKE]))

    def _restore_handlers(self) -> None:
        for number, handler in self._previous_handlers.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._previous_wakeup_fd)


_listening: list[SignalPipe] = []
"""The entered pipes, the latest last."""
_forking = threading.local()


def _before_fork() -> None:
    _forking.mask = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS) if _listening else None


def _after_fork() -> None:
    if _forking.mask is not None:
        signal.pthread_sigmask(signal.SIG_SETMASK, _forking.mask)


def _after_fork_in_child() -> None:
    while _listening:
        _listening.pop()._restore_handlers()
    _after_fork()


os.register_at_fork(
    before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork_in_child
)


def _ignore_signal(number: int, frame: FrameType | None) -> None:
    """Do nothing: the signal is already in the pipe."""
