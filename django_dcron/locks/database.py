"""DatabaseLock: one row per lock, in the database of the jobs.

Invariants:

- A row is free if it has no holder or its lease has expired. All times are the database's.
- Rows are never deleted, so renewing is a single UPDATE of the rows that are free or belong to the
  holder. If it changes as many rows as requested, the holder has all locks. Otherwise, the rows are
  read, and missing ones are inserted.
- Each statement is a separate transaction. A node that is suspended or dies between two statements
  leaves no row locked, and its leases expire.
- Inserting missing rows, once in a lock's life, is a short Django transaction.
- Rows are requested in the order of their names, and no second index could change that order. Two
  nodes therefore don't deadlock. If the database still reports a deadlock, one node gets
  ``LockUnavailable`` once.

The project limits how long an unreachable database blocks, for example with ``connect_timeout`` in
``DATABASES``. Django has no portable setting for it.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from datetime import timedelta

from django.db import Error, connections, router
from django.db.models import F

from django_dcron.db.now import UtcNow
from django_dcron.exceptions import LockUnavailable
from django_dcron.locks.base import CLOCK_TICK, Lease, checked_lease, checked_names, checked_text
from django_dcron.models.lease import LockLease, LockLeaseQuerySet


def holders_in_database() -> dict[str, str]:
    """Return the holder of each lease in the database. Also allowed inside a transaction."""
    rows = LockLease.objects.using(router.db_for_write(LockLease))
    return dict(rows.held().values_list("name", "holder"))


class DatabaseLock:
    """Locks in database ``using``, by default the database that the router chooses for writes.

    Must be called outside a transaction; otherwise, ``RuntimeError`` is raised. Other nodes would
    not see leases that a transaction hasn't committed, and a rollback would undo them.
    """

    def __init__(self, using: str | None = None) -> None:
        self.using = using or router.db_for_write(LockLease)

    def hold(self, names: Collection[str], holder: str, lease: timedelta) -> list[Lease]:
        names, holder, lease = (
            checked_names(names),
            checked_text(holder, "holder"),
            checked_lease(lease),
        )
        if not names:
            return []
        started = time.monotonic()
        with self._own_transactions():
            expires_at = UtcNow() + (lease + CLOCK_TICK)
            rows = self._rows(names)
            if rows.takeable(holder).update(holder=holder, expires_at=expires_at) == len(names):
                return [Lease(name, holder, started + lease.total_seconds()) for name in names]
            if absent := set(names).difference(rows.values_list("name", flat=True)):
                new = [
                    LockLease(name=name, holder=holder, expires_at=expires_at)
                    for name in sorted(absent)
                ]
                LockLease.objects.using(self.using).bulk_create(new, ignore_conflicts=True)
            own = rows.held().filter(holder=holder).order_by("name")
            # Another thread of this holder may have taken the lock for a shorter time, so the row's
            # expiry counts.
            return [
                Lease(name, holder, started + min(lease, remaining - CLOCK_TICK).total_seconds())
                for name, remaining in own.values_list("name", F("expires_at") - UtcNow())
            ]

    def release(self, names: Collection[str], holder: str) -> None:
        names, holder = checked_names(names), checked_text(holder, "holder")
        if not names:
            return
        with self._own_transactions():
            self._rows(names).filter(holder=holder).update(holder="", expires_at=UtcNow())

    def holders(self, names: Collection[str]) -> dict[str, str]:
        names = checked_names(names)
        if not names:
            return {}
        with self._own_transactions():
            return dict(self._rows(names).held().values_list("name", "holder"))

    def _rows(self, names: Collection[str]) -> LockLeaseQuerySet:
        return LockLease.objects.using(self.using).filter(name__in=names)

    @contextmanager
    def _own_transactions(self) -> Iterator[None]:
        connection = connections[self.using]
        try:
            if not connection.get_autocommit():
                raise RuntimeError("Can't use a database lock inside a transaction.")
            yield
        except Error as error:
            # Outside a request, Django doesn't close broken connections.
            connection.close_if_unusable_or_obsolete()
            raise LockUnavailable(
                f"Can't use the locks in database {self.using!r}: {error}"
            ) from error
