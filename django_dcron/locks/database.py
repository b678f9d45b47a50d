"""DatabaseLock: one row per lock, in the database that holds the jobs.

A row is free when it has no holder or its time is over. Rows are never deleted, so that renewing, which is all a node
does most of the time, is a single guarded UPDATE; if it changes as many rows as were asked for, all is held and nothing
else need be read. Only when some are missing from that count are the rows read, and absent ones inserted.

Each statement is a transaction of its own: a node that is frozen or dies between two of them leaves no row locked, and
the rows it had already taken expire. (Inserting absent rows, once in a lock's life, is a transaction of Django's, as
brief as can be.) All times are the database's. Rows are asked for in order of their names, and the table has no second
index that could lead to them in another one, so two nodes do not deadlock; should a database nevertheless find they
did, that is ``LockUnavailable`` for one of them, once.

How long an unreachable database keeps us waiting is the project's choice (``connect_timeout`` and the like in
DATABASES); Django has no portable setting for it.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from datetime import timedelta

from django.db import Error, connections, router
from django.db.models import F

from django_dcron.exceptions import LockUnavailable
from django_dcron.locks.base import CLOCK_TICK, Lease, checked_lease, checked_names, checked_text
from django_dcron.models.database import UtcNow
from django_dcron.models.lease import LockLease, LockLeaseQuerySet


class DatabaseLock:
    """The lock kept in database ``using``, by default the one the router chooses for writing.

    It must be called outside a transaction, else ``RuntimeError``: inside, others would not see what is held, and a
    rollback would undo it.
    """

    def __init__(self, using: str | None = None) -> None:
        self.using = using or router.db_for_write(LockLease)

    def hold(self, names: Collection[str], holder: str, lease: timedelta) -> list[Lease]:
        names, holder, lease = checked_names(names), checked_text(holder, "holder"), checked_lease(lease)
        if not names:
            return []
        started = time.monotonic()
        with self._own_transactions():
            expires_at = UtcNow() + (lease + CLOCK_TICK)
            rows = self._rows(names)
            if rows.takeable(holder).update(holder=holder, expires_at=expires_at) == len(names):
                return [Lease(name, holder, started + lease.total_seconds()) for name in names]
            if absent := set(names).difference(rows.values_list("name", flat=True)):
                new = [LockLease(name=name, holder=holder, expires_at=expires_at) for name in sorted(absent)]
                LockLease.objects.using(self.using).bulk_create(new, ignore_conflicts=True)
            mine = rows.held().filter(holder=holder).order_by("name")
            # Another thread of ours may have taken it, for less time: the row says how long it is held.
            return [
                Lease(name, holder, started + min(lease, remaining - CLOCK_TICK).total_seconds())
                for name, remaining in mine.values_list("name", F("expires_at") - UtcNow())
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
                raise RuntimeError("A database lock cannot be used inside a transaction.")
            yield
        except Error as error:
            # Outside a request nobody else does this: without it, a broken connection would stay broken for ever.
            connection.close_if_unusable_or_obsolete()
            raise LockUnavailable(f"The locks in database {self.using!r} cannot be used: {error}") from error
