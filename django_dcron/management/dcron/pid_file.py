"""The pid file of a node: who runs is told by a lock on it, never by the number in it.

Invariants:

- The node holds a lock on the file (fcntl's) for as long as it lives. The kernel takes that away with the process, however it
  ends, and passes it on to no child. So a file without a holder is of a node that was killed.
- The kernel names the holder. The number in the file is for people to read: a stale one, or one that has since been given to
  another program, is never signalled. Between the question and the signal the process is held by a handle (pidfd), where
  there are such.
- The path is not a symbolic link: what it leads to, which may be any file of this user, is never opened or truncated.
- There is one file at the path. A lock on one that was deleted or replaced meanwhile counts for nothing: it is taken anew.
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

from django_dcron.management.dcron.exits import cannot, no

DEFAULT = "dcron.pid"
PATIENCE = 0.5
"""Seconds to wait for the lock: somebody may hold it for a moment to clear up what a killed node left."""
LOOK_EVERY = 0.05
ENDS_WITHIN = 2.0
"""Seconds that a process has to end in, at least, once it has let go of its file."""

_held: dict[tuple[int, int], int] = {}
"""By device and inode: the files that this process holds, and its number (a child made by ``fork`` holds none)."""


class PidFile:
    """Entered, this process is the holder. Raises ``CommandError``."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path).absolute()
        self._fd = -1

    def __enter__(self) -> PidFile:
        deadline = time.monotonic() + PATIENCE
        with self._usable():
            while not self._take():
                if time.monotonic() >= deadline:
                    self.refuse_if_held()
                time.sleep(LOOK_EVERY)
            self.beside("stopping").unlink(missing_ok=True)
            os.ftruncate(self._fd, 0)
            os.write(self._fd, f"{os.getpid()}\n".encode())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        _held.pop(_identity(os.fstat(self._fd)), None)
        if self._is_at_path():
            self.beside("stopping").unlink(missing_ok=True)
            self.path.unlink()
        os.close(self._fd)  # last: until now nobody else could have written it
        self._fd = -1

    def beside(self, what: str) -> Path:
        """Where ``what`` is kept of the same node."""
        return self.path.with_name(f"{self.path.name}.{what}")

    def refuse_if_held(self) -> None:
        if (pid := self.holder()) is not None:
            raise no(f"A node is running already: process {pid} holds {self.path}.")

    def holder(self) -> int | None:
        """The process that holds it."""
        with self._usable():
            try:
                if _held.get(_identity(self.path.lstat())) == os.getpid():
                    return os.getpid()  # closing another descriptor of the file would let go of the lock
                fd = os.open(self.path, os.O_RDONLY | os.O_NOFOLLOW)
            except FileNotFoundError:
                return None
            try:
                pid = _holder(fd)
            finally:
                os.close(fd)
        if pid is not None and pid <= 0:
            raise cannot(f"{self.path} is held by a process of another container or machine.")
        return pid

    def signal(self, number: signal.Signals) -> int | None:
        """Signal the holder, and nobody else. Returns which process that was."""
        pid = self.holder()
        if pid is None:
            return None
        handle = _open_process(pid)
        try:
            if self.holder() != pid:  # now the handle is of the holder, or of nobody any more
                return None
            if handle is None:
                os.kill(pid, number)
            else:
                signal.pidfd_send_signal(handle, number)
        except ProcessLookupError:
            return None
        except PermissionError as error:
            raise cannot(f"Process {pid} cannot be signalled: it belongs to another user.") from error
        finally:
            if handle is not None:
                os.close(handle)
        return pid

    def ask_to_end(self) -> int | None:
        """SIGTERM to the holder, once, however often and by however many it is asked: at a second one it would leave at once,
        undrained. Returns which process that is."""
        pid = self.holder()
        if pid is None:
            return None
        asked = self.beside("stopping")
        with self._usable():
            try:
                os.close(os.open(asked, os.O_CREAT | os.O_EXCL, 0o644))
            except FileExistsError:
                return pid
        try:
            return self.signal(signal.SIGTERM)
        except CommandError:  # it has not been asked after all
            asked.unlink(missing_ok=True)
            raise

    def wait_for_end(self, pid: int, seconds: float) -> bool:
        """Until process ``pid`` holds it no more, and has ended: what it held beside the file, a port say, is free then. False:
        it has not."""
        deadline = time.monotonic() + seconds
        handle = _open_process(pid)
        try:
            if self.holder() != pid:  # it has let go, and the handle may be of another by now
                return True
            while self.holder() == pid:
                if time.monotonic() >= deadline:
                    return False
                time.sleep(LOOK_EVERY)
            return handle is None or _has_ended(handle, deadline - time.monotonic())
        finally:
            if handle is not None:
                os.close(handle)

    def clear(self) -> None:
        """Remove what a killed node left, unless another holds it by now."""
        with self:
            pass

    @contextmanager
    def _usable(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            why = (
                "it is a symbolic link, which is not followed; name the file itself"
                if error.errno == errno.ELOOP
                else error.strerror
            )
            raise cannot(f"The pid file {self.path} cannot be used: {why}.") from error

    def _take(self) -> bool:
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


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def _holder(fd: int) -> int | None:
    """Whose lock keeps others from this file. The layouts are those of ``struct flock``."""
    if sys.platform.startswith("linux"):
        asked = fcntl.fcntl(fd, fcntl.F_GETLK, struct.pack("@hhqqi", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
        kind, _, _, _, pid = struct.unpack("@hhqqi", asked)
    else:
        asked = fcntl.fcntl(fd, fcntl.F_GETLK, struct.pack("@qqihh", 0, 0, 0, fcntl.F_WRLCK, os.SEEK_SET))
        _, _, pid, kind, _ = struct.unpack("@qqihh", asked)
    return None if kind == fcntl.F_UNLCK else int(pid)


def _has_ended(handle: int, seconds: float) -> bool:
    """Whether the process of the handle ends within so many seconds."""
    ended = select.poll()
    ended.register(handle, select.POLLIN)
    return bool(ended.poll(max(seconds, ENDS_WITHIN) * 1000))


def _open_process(pid: int) -> int | None:
    """A handle of the process. None: this system has none, or does not let us."""
    if not hasattr(os, "pidfd_open"):
        return None
    try:
        return os.pidfd_open(pid)
    except (
        OSError
    ):  # the process has ended, or a kernel or a sandbox without them: the lock is asked once more
        return None
