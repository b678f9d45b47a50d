"""The lock: one protocol, whatever keeps it.

You take a lock and hold a lease that expires. A node takes the locks of all its shards in one request and renews
them together, a few times per lease. The locks only save work: that nothing runs twice is the database's promise.

What every backend keeps (``tests/locks/test_conformance.py`` asks it of each, with real servers):

1. While a lease is valid nobody else holds a lease on that name, whatever threads or processes ask at once.
2. Only the holder renews or releases. Releasing what another holds, or what has expired, does nothing.
3. ``hold`` returns exactly what the holder holds, and may be repeated: the lease then counts from the last call.
4. Expiry is judged by the clock of whoever keeps the lock, never by a client's wall clock. The holder's own belief,
   ``Lease.expires_at``, starts before the request leaves, so it ends no later than the keeper's.
5. A lock the keeper forgot (a flushed Redis) is free: whoever asks first takes it.
6. A keeper that cannot be used raises ``LockUnavailable``, within a bounded time, and nothing of its driver's.

``time.monotonic`` runs on while a process is stopped, but not while the machine sleeps: a laptop that wakes may
believe in its leases for up to one lease too long.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol, runtime_checkable

TEXT_LIMIT = 190
"""How many characters a name or a holder may have."""

CLOCK_TICK = timedelta(milliseconds=1)
"""Asked for beyond each lease: keepers whose clock ticks in milliseconds round down, a holder's belief does not."""


@dataclass(frozen=True, slots=True)
class Lease:
    """The lock ``name`` is ``holder``'s until ``expires_at``: seconds on this process's ``time.monotonic()``."""

    name: str
    holder: str
    expires_at: float

    def valid(self, now: float) -> bool:
        """Whether it still holds at ``now``, seconds of ``time.monotonic()``."""
        return now < self.expires_at


@runtime_checkable
class Lock(Protocol):
    """Names, each held by one holder at a time. Threads may share one Lock.

    Names and holders are texts of 1 to 190 characters, compared exactly (case, accents and spaces count); any Unicode
    but NUL and lone surrogates, which are refused with ``ValueError``. Every method raises ``LockUnavailable`` if the
    keeper cannot be used; no names is no request.
    """

    def hold(self, names: Collection[str], holder: str, lease: timedelta) -> list[Lease]:
        """Take each name that is free or expired, renew each that is ``holder``'s; all for ``lease`` from now.

        Returns the leases held, ordered by name; names that others hold are absent. If it raises, some of the names
        may be held nevertheless; they expire.
        """
        ...

    def release(self, names: Collection[str], holder: str) -> None:
        """Let go of those names that ``holder`` still holds."""
        ...

    def holders(self, names: Collection[str]) -> dict[str, str]:
        """Who holds what now: name -> holder; free names are absent."""
        ...


def checked_names(names: Collection[str]) -> list[str]:
    """Each name once, in order (so that whoever locks rows one by one never deadlocks); ``ValueError`` if one is unfit."""
    if isinstance(names, str):
        raise TypeError(f"names must be a collection of names, not the text {names!r}")
    return sorted({checked_text(name, "lock name") for name in names})


def checked_text(text: str, what: str) -> str:
    storable = "\0" not in text and not any("\ud800" <= character <= "\udfff" for character in text)
    if not (storable and 1 <= len(text) <= TEXT_LIMIT):
        raise ValueError(
            f"{what} {text!r} is not allowed: 1 to {TEXT_LIMIT} characters, without NUL and lone surrogates"
        )
    return text


def checked_lease(lease: timedelta) -> timedelta:
    if lease <= timedelta(0):
        raise ValueError(f"lease {lease!r} is not allowed: it must be longer than zero")
    return lease
