"""FileLock: one host, several processes, no server.

All leases are in one file, ``leases.json``, in a directory of their own. Whoever reads or writes it holds ``flock`` on
that directory, for microseconds. Why not simply ``flock`` a file per lock for as long as it is held? Because the kernel
frees that when its process ends, but not while the process is frozen, and a lock must expire then. So the file's
leases expire like any other keeper's, after a crash as after a freeze.

- The clock is the host's monotonic one, the same for all its processes and never set. It starts anew with the machine:
  a lease counts only between its beginning and its end, so one that lies in the future is of an earlier life, and void.
- The file is replaced, never written in place: a process that dies half way leaves the old one.
- The directory itself is locked, not a file in it: there is none that a cleaner of temporary files could take away
  under somebody's lock. It belongs to one user, who alone may enter.

Linux, macOS and other POSIX systems; a local disk, not NFS (hosts have different clocks).
"""

from __future__ import annotations

import json
import logging
import os
import tempfile
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from zlib import crc32

from django.core.exceptions import ImproperlyConfigured
from django.db import connections

from django_dcron.exceptions import LockUnavailable
from django_dcron.locks.base import Lease, checked_lease, checked_names, checked_text
from django_dcron.models import LockLease
from django_dcron.models.database import alias_for

try:
    import fcntl
except ImportError as error:
    raise ImproperlyConfigured(
        'Locks in files need a POSIX system; on Windows set DCRON_LOCK = "redis" or "database".'
    ) from error

logger = logging.getLogger(__name__)

LEASES = "leases.json"
"""name -> [holder, taken at, expires at]: seconds on the host's monotonic clock."""

Leases = dict[str, tuple[str, float, float]]


def _own_directory() -> Path:
    """One for each user and database: projects that do not share their jobs do not share their locks either."""
    database = connections[alias_for(LockLease)].settings_dict
    identity = "|".join(str(database[key]) for key in ("ENGINE", "HOST", "PORT", "NAME"))
    return Path(tempfile.gettempdir()) / f"django-dcron-{os.getuid()}-{crc32(identity.encode()):08x}"


class FileLock:
    """The lock kept in ``directory``, by default DCRON_LOCK_DIR; created if absent. Waits ``patience`` for its turn."""

    def __init__(
        self, directory: str | Path | None = None, patience: timedelta = timedelta(seconds=2)
    ) -> None:
        from django_dcron.conf import settings as dcron

        self.directory = Path(directory or dcron.LOCK_DIR or _own_directory())
        self.patience = patience

    def hold(self, names: Collection[str], holder: str, lease: timedelta) -> list[Lease]:
        names, holder = checked_names(names), checked_text(holder, "holder")
        seconds = checked_lease(lease).total_seconds()
        if not names:
            return []
        started = time.monotonic()
        with self._turn() as directory:
            now = _host_clock()
            leases = _read(directory, now)
            held = [name for name in names if name not in leases or leases[name][0] == holder]
            _write(directory, leases | dict.fromkeys(held, (holder, now, now + seconds)))
        return [Lease(name, holder, started + seconds) for name in held]

    def release(self, names: Collection[str], holder: str) -> None:
        names, holder = checked_names(names), checked_text(holder, "holder")
        if not names:
            return
        with self._turn() as directory:
            leases = _read(directory, _host_clock())
            released = {name for name in names if name in leases and leases[name][0] == holder}
            _write(directory, {name: lease for name, lease in leases.items() if name not in released})

    def holders(self, names: Collection[str]) -> dict[str, str]:
        names = checked_names(names)
        if not names:
            return {}
        with self._turn() as directory:
            leases = _read(directory, _host_clock())
        return {name: leases[name][0] for name in names if name in leases}

    @contextmanager
    def _turn(self) -> Iterator[int]:
        """The directory, opened, while nobody else is in it."""
        try:
            directory = self._open()
            try:
                self._wait_for(lambda: fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB))
                yield directory
            finally:
                # Closing would not do if a process was forked meanwhile: it has the directory open too.
                fcntl.flock(directory, fcntl.LOCK_UN)
                os.close(directory)
        except OSError as error:
            raise LockUnavailable(f"The locks in {self.directory} cannot be used: {error}") from error

    def _open(self) -> int:
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        directory = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY)
        owner = os.fstat(directory).st_uid
        if owner != os.geteuid():
            # In a shared temporary directory somebody else may have come first, with no good intent.
            os.close(directory)
            raise PermissionError(f"it belongs to user {owner}, not to this process's user {os.geteuid()}")
        return directory

    def _wait_for(self, attempt: Callable[[], None]) -> None:
        deadline = time.monotonic() + self.patience.total_seconds()
        while True:
            try:
                return attempt()
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise
                time.sleep(0.001)


def _host_clock() -> float:
    # time.monotonic() promises nothing between processes; this does.
    return time.clock_gettime(time.CLOCK_MONOTONIC)


def _read(directory: int, now: float) -> Leases:
    """The leases that count at ``now``."""
    try:
        with open(os.open(LEASES, os.O_RDONLY | os.O_NOFOLLOW, dir_fd=directory)) as file:
            leases: Leases = {
                name: (str(holder), float(taken_at), float(expires_at))
                for name, (holder, taken_at, expires_at) in json.load(file).items()
            }
    except FileNotFoundError:
        return {}
    except (ValueError, TypeError, AttributeError):
        # Replacing a file is atomic but for a machine that stops, and after that no lease counts anyway.
        text = "The lease file is unreadable; all its locks are taken to be free."
        logger.warning(text, exc_info=True, extra={"event": "leases_unreadable"})
        return {}
    return {name: lease for name, lease in leases.items() if lease[1] <= now < lease[2]}


def _write(directory: int, leases: Leases) -> None:
    new = f"{LEASES}.new"  # one name will do: we are alone here; what a crash left is overwritten
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
    with open(os.open(new, flags, mode=0o600, dir_fd=directory), "w") as file:
        json.dump(leases, file)
    os.replace(new, LEASES, src_dir_fd=directory, dst_dir_fd=directory)
