"""Limits for waits and for idle transactions, per session and per transaction.

Invariants:

- Limits of a session are set only on MariaDB, and on a direct connection to PostgreSQL that no pool
  hands on. This is decided before anything is set.
- On a session of PostgreSQL that a pool shares, each transaction has its own limits
  (``transaction_limits``). Other clients of the pool, such as migrations, never get them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from math import ceil
from typing import Any

from django.db import DatabaseError, InterfaceError, connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from django_dcron.db.connection_sockets import enable_keepalive
from django_dcron.db.transaction_limits import (
    TransactionLimits,
    is_shared_session,
    local_limits_query,
)

READ_TIMEOUT = timedelta(minutes=1)
"""How long a process may be idle between two reads of ``limited_lock_waits``."""
READ_LOCK_TIMEOUT = timedelta(seconds=2)
"""How long the reads of ``limited_lock_waits`` wait for a locked table."""


class WaitLimits:
    """Limits of a thread that owns its connection, until ``lift``.

    - A statement waits for a lock only for a limited time, because the lock's holder may be
      suspended. Then it fails as contention.
    - If the thread is idle in a transaction for too long, the database ends the transaction and the
      connection.
    - Over TCP, the kernel ends a connection on which the database has been silent for too long.

    On SQLite, only its option ``timeout`` limits the wait for a lock.
    """

    def __init__(self, using: str) -> None:
        self._using = using
        self._connection: Any = None
        """The driver's connection that the limits apply to."""
        self._previous: tuple[Any, ...] = ()
        """The session's limits before."""
        self._of_transactions: TransactionLimits | None = None

    def impose(self, *, lock: timedelta, silence: timedelta) -> None:
        """Set the limits, once per connection.

        ``lock``: how long a statement may wait for a lock. ``silence``: how long the thread may be
        idle in a transaction, and how long the database may be silent.
        """
        connection = connections[self._using]
        connection.ensure_connection()
        if connection.connection is self._connection:
            return
        self._forget()
        enable_keepalive(connection, silence)
        if connection.vendor == "postgresql":
            self._impose_on_postgresql(connection, lock, silence)
        elif connection.vendor == "mysql":
            self._previous = self._read("@@SESSION.{}")
            self._set(tuple(ceil(limit / timedelta(seconds=1)) for limit in (lock, silence, lock)))
        self._connection = connection.connection

    def _impose_on_postgresql(
        self, connection: BaseDatabaseWrapper, lock: timedelta, silence: timedelta
    ) -> None:
        *previous, process_id = self._read("current_setting('{}')", "pg_backend_pid()")
        if is_shared_session(connection, process_id):
            limits = dict(zip(self._names(), (lock, silence), strict=True))
            self._of_transactions = TransactionLimits(connection, limits)
            self._of_transactions.start()
        else:
            self._previous = tuple(previous)
            self._set(tuple(f"{limit // timedelta(milliseconds=1)}ms" for limit in (lock, silence)))

    def lift(self) -> None:
        """Restore the previous limits, because the connection may belong to the project."""
        if self._previous and connections[self._using].connection is self._connection:
            with suppress(DatabaseError, InterfaceError):
                self._set(self._previous)
        self._forget()

    def _forget(self) -> None:
        if self._of_transactions is not None:
            self._of_transactions.stop()
        self._connection, self._previous, self._of_transactions = None, (), None

    def _names(self) -> list[str]:
        connection = connections[self._using]
        if connection.vendor == "postgresql":
            return ["lock_timeout", "idle_in_transaction_session_timeout"]
        if connection.vendor != "mysql":
            return []
        return ["innodb_lock_wait_timeout", "idle_transaction_timeout", "lock_wait_timeout"]

    def _read(self, template: str, *others: str) -> tuple[Any, ...]:
        columns = [*(template.format(name) for name in self._names()), *others]
        with connections[self._using].cursor() as cursor:
            cursor.execute(f"SELECT {', '.join(columns)}")
            return tuple(cursor.fetchone())

    def _set(self, values: tuple[Any, ...]) -> None:
        if connections[self._using].vendor == "postgresql":
            verb, template = "SELECT ", "set_config('{}', %s, false)"
        else:
            verb, template = "SET ", "SESSION {} = %s"
        names = self._names()
        with connections[self._using].cursor() as cursor:
            cursor.execute(
                verb + ", ".join(template.format(name) for name in names), values[: len(names)]
            )


@contextmanager
def brief_transaction(
    using: str, timeout: timedelta, *, savepoint: bool = True, lock: timedelta | None = None
) -> Iterator[None]:
    """Open a transaction that the database ends if this process is idle in it for ``timeout``.

    Such a process is suspended or cut off, and other processes need the rows that it has locked.
    ``lock``: how long to wait for a lock before failing as contention; None keeps the connection's
    limit. SQLite has no such limits. Within another transaction, the block becomes a part of that
    transaction, and no limits are set.
    """
    if connections[using].in_atomic_block:
        with transaction.atomic(using=using, savepoint=savepoint):
            yield
        return
    with _mariadb_limits(using, timeout, lock), transaction.atomic(using=using):
        if connections[using].vendor == "postgresql":
            with connections[using].cursor() as cursor:
                limits = {"idle_in_transaction_session_timeout": timeout}
                if lock is not None:
                    limits["lock_timeout"] = lock
                cursor.execute(local_limits_query(limits))
        yield


@contextmanager
def limited_lock_waits(using: str) -> Iterator[None]:
    """Let the reads in the block wait for at most ``READ_LOCK_TIMEOUT`` if a table is locked.

    They then fail as contention. An ``ALTER TABLE``, for example, locks its table. Within a
    transaction, and on SQLite, where a transaction could lock the database, there is no limit.
    """
    if connections[using].in_atomic_block or connections[using].vendor == "sqlite":
        yield
        return
    with brief_transaction(using, READ_TIMEOUT, lock=READ_LOCK_TIMEOUT):
        yield


@contextmanager
def limited_reads(using: str) -> Iterator[None]:
    """Let each statement in the block wait for at most ``READ_LOCK_TIMEOUT`` if a table is locked.

    It then fails as contention. Unlike ``limited_lock_waits``, the block needs no transaction, so
    it may take long. It must not write. Within a transaction, there is no limit, because the failed
    statement would end the caller's transaction.
    """
    if connections[using].in_atomic_block:
        yield
        return
    limits = WaitLimits(using)
    limits.impose(lock=READ_LOCK_TIMEOUT, silence=READ_TIMEOUT)
    try:
        yield
    finally:
        limits.lift()


@contextmanager
def _mariadb_limits(using: str, timeout: timedelta, lock: timedelta | None) -> Iterator[None]:
    """Set MariaDB's session limits and restore them afterwards.

    The connection may belong to the project.
    """
    connection = connections[using]
    if connection.vendor != "mysql":
        yield
        return
    limits = {"idle_transaction_timeout": timeout}
    if lock is not None:
        limits |= {"innodb_lock_wait_timeout": lock, "lock_wait_timeout": lock}
    with connection.cursor() as cursor:
        saved = (f"@dcron_{name} = @@SESSION.{name}" for name in limits)
        new = (
            f"SESSION {name} = {ceil(limit / timedelta(seconds=1))}"
            for name, limit in limits.items()
        )
        cursor.execute(f"SET {', '.join([*saved, *new])}")
    try:
        yield
    finally:
        with suppress(DatabaseError, InterfaceError), connection.cursor() as cursor:
            cursor.execute(f"SET {', '.join(f'SESSION {name} = @dcron_{name}' for name in limits)}")
