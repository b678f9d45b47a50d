"""Manage a node's pid file: a lock on it identifies the running node, never the number in it.

Invariants:

- The node has an ``fcntl`` lock on the file while it runs. The kernel releases the lock when the
  process ends in any way, and doesn't pass it to children. A file without a holder therefore
  belongs to a node that was killed.
- The kernel identifies the holder. The number in the file is informative only: a stale or reused
  pid is never signaled.
- Where available, a pidfd refers to the process between the check and the signal.
- The path isn't a symbolic link. A link's target, possibly any file of the user, is never opened or
  truncated.
- There is one file at the path. A lock on a file that was deleted or replaced meanwhile is
  discarded and acquired again.
"""

from __future__ import annotations

import errno
import fcntl
import os
import select
import signal
import struct
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

from django.core.management.base import CommandError

from django_dcron.management.dcron.exits import negative_result, usage_error

DEFAULT = "dcron.pid"
LOCK_TIMEOUT = 0.5
"""Seconds to wait for the lock. A process may hold it briefly to clean up after a killed node."""
CHECK_EVERY = 0.05
EXIT_TIMEOUT = 2.0
"""Minimum time in seconds for a process to exit after it has released its file."""

_held: dict[tuple[int, int], int] = {}
"""The files that this process has locked: its pid by device and inode.

A child created by ``fork`` has no locks.
"""


class PidFile:
    """A pid file; as a context manager, it makes this process the holder.

    Raises ``CommandError``.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path).absolute()
        self._fd = -1

    def __enter__(self) -> PidFile:
        deadline = time.monotonic() + LOCK_TIMEOUT
        with self._usable():
            while not self._try_lock():
                if time.monotonic() >= deadline:
                    self.refuse_if_held()
                time.sleep(CHECK_EVERY)
            self.forget_stop_request()
            os.ftruncate(self._fd, 0)
            os.write(self._fd, f"{os.getpid()}\n".encode())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        _held.pop(_identity(os.fstat(self._fd)), None)
        if self._is_at_path():
            self.forget_stop_request()
            self.path.unlink()
        os.close(self._fd)  # last, because until now no other process could write the file
        self._fd = -1

    def beside(self, what: str) -> Path:
        """Return the path of the node's file ``what``, next to the pid file."""
        return self.path.with_name(f"{self.path.name}.{what}")

    def refuse_if_held(self) -> None:
        if (pid := self.holder()) is not None:
            raise negative_result(
                f"A node is already running: process {pid} has locked {self.path}."
            )

    def holder(self) -> int | None:
        """Return the pid of the holder, or None."""
        with self._usable():
            try:
                if _held.get(_identity(self.path.lstat())) == os.getpid():
                    # Closing another descriptor of the file would release the lock.
                    return os.getpid()
                # Without O_NONBLOCK, opening a named pipe would wait for a writer.
                fd = os.open(self.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            except FileNotFoundError:
                return None
            try:
                pid = _holder(fd)
            finally:
                os.close(fd)
        if pid is not None and pid <= 0:
            raise usage_error(
                f"A process in another container or on another machine has locked {self.path}."
            )
        return pid

    @contextmanager
    def open_holder(self) -> Iterator[Holder | None]:
        """Yield the process that has locked the file, or None.

        Open it before a signal: after the process has released the file, its pid identifies it no
        longer.
        """
        pid = self.holder()
        handle = None if pid is None else _open_process(pid)
        try:
            # If it still has the lock, the handle refers to it.
            yield Holder(self, pid, handle) if pid is not None and self.holder() == pid else None
        finally:
            if handle is not None:
                os.close(handle)

    def record_stop_request(self) -> bool:
        """Record that the holder was asked to stop; return False if it was asked before."""
        with self._usable():
            try:
                os.close(os.open(self.beside("stopping"), os.O_CREAT | os.O_EXCL, 0o644))
            except FileExistsError:
                return False
        return True

    def forget_stop_request(self) -> None:
        self.beside("stopping").unlink(missing_ok=True)

    def clear(self) -> None:
        """Remove the files of a killed node, unless another process has locked them by now."""
        with self:
            pass

    @contextmanager
    def _usable(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            why = (
                "symbolic links aren't allowed; use the path of the file itself"
                if error.errno == errno.ELOOP
                else error.strerror
            )
            raise usage_error(f"Can't use the pid file {self.path}: {why}.") from error

    def _try_lock(self) -> bool:
        fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
        try:
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(fd)
            if error.errno in (errno.EACCES, errno.EAGAIN):
                return False
            raise
        self._fd = fd
        if not self._is_at_path():
            os.close(fd)
            return False
        _held[_identity(os.fstat(fd))] = os.getpid()
        return True

    def _is_at_path(self) -> bool:
        try:
            return os.path.samestat(os.fstat(self._fd), self.path.lstat())
        except FileNotFoundError:
            return False


class Holder:
    """The process that has locked a pid file."""

    def __init__(self, file: PidFile, pid: int, handle: int | None):
        self.pid = pid
        self._file = file
        self._handle = handle
        """A pidfd, or None if the system has none."""

    def signal(self, number: signal.Signals) -> bool:
        """Signal the process; return whether it was still running."""
        try:
            if self._handle is not None:
                signal.pidfd_send_signal(self._handle, number)
            elif self._file.holder() == self.pid:
                os.kill(self.pid, number)
            else:
                return False
        except ProcessLookupError:
            return False
        except PermissionError as error:
            raise usage_error(
                f"Can't signal process {self.pid}: it belongs to another user."
            ) from error
        return True

    def request_stop(self) -> None:
        """Send SIGTERM to the process only once, however many callers ask.

        A second SIGTERM would make the node exit at once, without draining.
        """
        if not self._file.record_stop_request():
            return
        try:
            self.signal(signal.SIGTERM)
        except CommandError:  # the signal wasn't sent
            self._file.forget_stop_request()
            raise

    def wait_for_end(self, seconds: float) -> bool:
        """Wait until the process has released the file and ended; return whether it did.

        Its other resources, such as a port, are then free.
        """
        deadline = time.monotonic() + seconds
        while self._file.holder() == self.pid:
            if time.monotonic() >= deadline:
                return False
            time.sleep(CHECK_EVERY)
        return self._handle is None or _has_ended(self._handle, deadline - time.monotonic())


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def _holder(fd: int) -> int | None:
    """Return the pid whose lock blocks the file. The layouts are those of ``struct flock``."""
    if sys.platform.startswith("linux"):
        answer = fcntl.fcntl(
            fd, fcntl.F_GETLK, struct.pack("@hhqqi", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        )
        kind, _, _, _, pid = struct.unpack("@hhqqi", answer)
    else:
        answer = fcntl.fcntl(
            fd, fcntl.F_GETLK, struct.pack("@qqihh", 0, 0, 0, fcntl.F_WRLCK, os.SEEK_SET)
        )
        _, _, pid, kind, _ = struct.unpack("@qqihh", answer)
    return None if kind == fcntl.F_UNLCK else int(pid)


def _has_ended(handle: int, seconds: float) -> bool:
    """Return whether the process of the handle ends within ``seconds``.

    It gets at least ``EXIT_TIMEOUT`` seconds.
    """
    ended = select.poll()
    ended.register(handle, select.POLLIN)
    return bool(ended.poll(max(seconds, EXIT_TIMEOUT) * 1000))


def _open_process(pid: int) -> int | None:
    """Return a pidfd, or None if the system doesn't support or permit it."""
    if not hasattr(os, "pidfd_open"):
        return None
    try:
        return os.pidfd_open(pid)
    except OSError:
        # The process has ended, or the kernel or a sandbox doesn't allow it. The caller checks the
        # lock again.
        return None
