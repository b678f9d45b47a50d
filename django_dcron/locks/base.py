"""The lock: one protocol for all backends.

A holder takes a lock and gets a lease that expires. A node takes the locks of all its shards in one
request and renews them together, a few times per lease. Locks only save work: the database
guarantees that no run starts twice.

Invariants of every backend (``tests/locks/test_conformance.py`` checks them with real servers):

1. While a lease is valid, no other holder has a lease on that name, even if threads or processes
   request it at once.
2. Only the holder renews or releases a lock. Releasing an expired lock, or the lock of another
   holder, does nothing.
3. ``hold`` returns exactly the holder's leases and may be repeated. The lease then counts from the
   last call.
4. The backend's clock decides about expiry, never a client's wall clock. ``Lease.expires_at``
   counts from before the request, so it ends no later than the backend's lease.
5. A lock that the backend has lost, for example because Redis was flushed, is free.
6. If the backend is unavailable, every method raises ``LockUnavailable`` within a limited time, and
   never an error of its driver.

``time.monotonic`` continues while a process is stopped, but not while the machine sleeps. After
waking, a laptop may consider its leases valid for up to one lease too long.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol, runtime_checkable

TEXT_LIMIT = 190
"""The maximum number of characters in a name or a holder."""

CLOCK_TICK = timedelta(milliseconds=1)
"""Added to the lease in backends whose clock may round down to milliseconds. The holder's own clock
doesn't round.
"""


@dataclass(frozen=True, slots=True)
class Lease:
    """The lock ``name`` belongs to ``holder`` until ``expires_at``.

    ``expires_at`` is in seconds of this process's ``time.monotonic()``.
    """

    name: str
    holder: str
    expires_at: float

    def valid(self, now: float) -> bool:
        """Return whether the lease is valid at ``now``, seconds of ``time.monotonic()``."""
        return now < self.expires_at


@runtime_checkable
class Lock(Protocol):
    """Named locks, each with at most one holder. Threads may share a Lock.

    Names and holders have 1 to 190 characters and are compared exactly, including case, accents and
    spaces. NUL and lone surrogates raise ``ValueError``; all other Unicode characters are allowed.
    Every method raises ``LockUnavailable`` if the backend is unavailable. Without names, no request
    is made.
    """

    def hold(self, names: Collection[str], holder: str, lease: timedelta) -> list[Lease]:
        """Take each free or expired name and renew each name of ``holder``, for ``lease`` from now.

        Returns the leases held, ordered by name. Names of other holders are absent. If it raises,
        some names may be held until they expire.
        """
        ...

    def release(self, names: Collection[str], holder: str) -> None:
        """Release the names that ``holder`` still holds."""
        ...

    def holders(self, names: Collection[str]) -> dict[str, str]:
        """Return the current holder by name. Free names are absent."""
        ...


def checked_names(names: Collection[str]) -> list[str]:
    """Return the unique names in order, so that locking rows one by one causes no deadlock.

    Raises ``ValueError`` if a name is invalid.
    """
    if isinstance(names, str):
        raise TypeError(f"names must be a collection of names, not the string {names!r}")
    return sorted({checked_text(name, "lock name") for name in names})


def checked_text(text: str, what: str) -> str:
    storable = "\0" not in text and not any("\ud800" <= character <= "\udfff" for character in text)
    if not (storable and 1 <= len(text) <= TEXT_LIMIT):
        raise ValueError(
            f"invalid {what} {text!r} (allowed: 1 to {TEXT_LIMIT} characters, no NUL, no lone "
            "surrogates)"
        )
    return text


def checked_lease(lease: timedelta) -> timedelta:
    if lease <= timedelta(0):
        raise ValueError(f"invalid lease {lease!r}: it must be longer than zero")
    return lease
