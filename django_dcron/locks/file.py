"""FileLock: locks for several processes on one host, without a server.

All leases are in one file, ``leases.json``, in its own directory. Each read or write holds
``flock`` on that directory for microseconds. One ``flock`` per lock isn't enough: the kernel
releases it when the process ends, but not while the process is suspended. The lease of a suspended
process must expire, too.

Invariants:

- The clock is the host's monotonic clock, which all its processes share and nobody can set. It
  restarts with the machine. A lease that begins in the future is from before the restart and
  invalid.
- The file is replaced, never written in place. A process that dies in between leaves the old file.
- The lock is on the directory, not on a file in it, which a cleaner of temporary files could
  delete. Only the user who owns the directory has access.

Requires Linux, macOS or another POSIX system, and a local disk. NFS doesn't work, because hosts
have different clocks.
"""

from __future__ import annotations

import json
import logging
import os
import tempfile
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

from django.core.exceptions import ImproperlyConfigured
from django.db import connections

from django_dcron.db.routing import alias_for
from django_dcron.exceptions import LockUnavailable
from django_dcron.locks.base import Lease, checked_lease, checked_names, checked_text
from django_dcron.models import LockLease

try:
    import fcntl
except ImportError as error:
    raise ImproperlyConfigured(
        'File locks need a POSIX system. On Windows, set DCRON_LOCK = "redis" or "database".'
    ) from error

logger = logging.getLogger(__name__)

LEASE_FILE = "leases.json"
"""Maps the name of each lock to its ``StoredLease`` as a list."""


class StoredLease(NamedTuple):
    """A lease in the file. The times are seconds of the host's monotonic clock."""

    holder: str
    taken_at: float
    expires_at: float


def _own_directory() -> Path:
    """Return the directory of this user and database. Unrelated projects don't share locks."""
    database = connections[alias_for(LockLease)].settings_dict
    identity = "|".join(str(database[key]) for key in ("ENGINE", "HOST", "PORT", "NAME"))
    return (
        Path(tempfile.gettempdir()) / f"django-dcron-{os.getuid()}-{crc32(identity.encode()):08x}"
    )


class FileLock:
    """Locks in ``directory``, by default ``DCRON_LOCK_DIR``, which is created if missing.

    Waits up to ``timeout`` for access.
    """

    def __init__(
        self, directory: str | Path | None = None, timeout: timedelta = timedelta(seconds=2)
    ) -> None:
        from django_dcron.conf import settings as dcron

        self.directory = Path(directory or dcron.LOCK_DIR or _own_directory())
        self.timeout = timeout

    def hold(self, names: Collection[str], holder: str, lease: timedelta) -> list[Lease]:
        names, holder = checked_names(names), checked_text(holder, "holder")
        seconds = checked_lease(lease).total_seconds()
        if not names:
            return []
        started = time.monotonic()
        with self._locked_directory() as directory:
            now = _host_clock()
            leases = _read(directory, now)
            held = [name for name in names if name not in leases or leases[name].holder == holder]
            _write(directory, leases | dict.fromkeys(held, StoredLease(holder, now, now + seconds)))
        return [Lease(name, holder, started + seconds) for name in held]

    def release(self, names: Collection[str], holder: str) -> None:
        names, holder = checked_names(names), checked_text(holder, "holder")
        if not names:
            return
        with self._locked_directory() as directory:
            leases = _read(directory, _host_clock())
            released = {name for name in names if name in leases and leases[name].holder == holder}
            _write(
                directory, {name: lease for name, lease in leases.items() if name not in released}
            )

    def holders(self, names: Collection[str]) -> dict[str, str]:
        names = checked_names(names)
        if not names:
            return {}
        with self._locked_directory() as directory:
            leases = _read(directory, _host_clock())
        return {name: leases[name].holder for name in names if name in leases}

    @contextmanager
    def _locked_directory(self) -> Iterator[int]:
        """Open the directory and lock it for the duration of the block."""
        try:
            directory = self._open()
            try:
                self._wait_for_lock(directory)
                yield directory
            finally:
                # Closing isn't enough: a process forked meanwhile has the directory open, too.
                fcntl.flock(directory, fcntl.LOCK_UN)
                os.close(directory)
        except OSError as error:
            raise LockUnavailable(f"Can't use the locks in {self.directory}: {error}") from error

    def _open(self) -> int:
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        directory = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY)
        owner = os.fstat(directory).st_uid
        if owner != os.geteuid():
            # In a shared temporary directory, another user may have created it with bad intent.
            os.close(directory)
            raise PermissionError(
                f"the directory belongs to user {owner}, but this process runs as user "
                f"{os.geteuid()}"
            )
        return directory

    def _wait_for_lock(self, directory: int) -> None:
        deadline = time.monotonic() + self.timeout.total_seconds()
        while True:
            try:
                return fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise
                time.sleep(0.001)


def _host_clock() -> float:
    # The clock of time.monotonic() may differ between processes; this one doesn't.
    return time.clock_gettime(time.CLOCK_MONOTONIC)


def _read(directory: int, now: float) -> dict[str, StoredLease]:
    """Return the leases that are valid at ``now``, by the name of the lock."""
    try:
        with open(os.open(LEASE_FILE, os.O_RDONLY | os.O_NOFOLLOW, dir_fd=directory)) as file:
            leases = {
                name: StoredLease(str(holder), float(taken_at), float(expires_at))
                for name, (holder, taken_at, expires_at) in json.load(file).items()
            }
    except FileNotFoundError:
        return {}
    except (ValueError, TypeError, AttributeError):
        # Only a crash of the machine makes the replacement incomplete, and no lease is valid after
        # that.
        text = "lease file unreadable, assuming that all locks are free"
        logger.warning(text, exc_info=True, extra={"event": "leases_unreadable"})
        return {}
    return {
        name: lease for name, lease in leases.items() if lease.taken_at <= now < lease.expires_at
    }


def _write(directory: int, leases: dict[str, StoredLease]) -> None:
    # One name is enough: the directory is locked. A file left by a crash is overwritten.
    new = f"{LEASE_FILE}.new"
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
    with open(os.open(new, flags, mode=0o600, dir_fd=directory), "w") as file:
        json.dump(leases, file)
    os.replace(new, LEASE_FILE, src_dir_fd=directory, dst_dir_fd=directory)
