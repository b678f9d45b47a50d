"""Drop this thread's connections with transactions that other code has left open."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress

from django.db import DatabaseError, InterfaceError, connections
from django.db.backends.base.base import BaseDatabaseWrapper


@contextmanager
def own_transactions_only() -> Iterator[None]:
    """Drop connections with transactions that the code within leaves open, on any database.

    Otherwise, later writes would become part of those transactions. The code may have turned
    autocommit off, or an exception may have interrupted the begin or end of a transaction.
    """
    before = {
        connection.alias: _transaction_state(connection) for connection in _used_connections()
    }
    try:
        yield
    finally:
        for connection in _used_connections():
            if _transaction_state(connection) != before.get(connection.alias, NO_TRANSACTION):
                _drop(connection)


def drop_idle_connections() -> None:
    """Close this thread's connections, except those in a transaction.

    An exception from another thread may have hit a driver between a request and its response.
    MySQLdb then refuses all statements on that connection.
    """
    for connection in _used_connections():
        if _transaction_state(connection) == NO_TRANSACTION:
            _drop(connection)


def release_connections() -> None:
    """Keep this thread's connections as long as ``CONN_MAX_AGE`` allows, as between requests.

    Connections with an open transaction are dropped.
    """
    for connection in connections.all(initialized_only=True):
        if connection.in_atomic_block:
            _drop(connection)
        else:
            connection.close_if_unusable_or_obsolete()


def _drop(connection: BaseDatabaseWrapper) -> None:
    """Close the connection. The next use of its database creates a new one.

    Django refuses statements on a connection that was closed within a transaction.
    """
    with suppress(DatabaseError, InterfaceError):
        connection.close()
    del connections[connection.alias]


NO_TRANSACTION: tuple[object, ...] = (False, (), True)
"""The state of a connection outside of any transaction."""


def _used_connections() -> list[BaseDatabaseWrapper]:
    """Return this thread's connections that have been used."""
    return [
        connection for connection in connections.all(initialized_only=True) if connection.connection
    ]


def _transaction_state(connection: BaseDatabaseWrapper) -> tuple[object, ...]:
    return connection.in_atomic_block, tuple(connection.savepoint_ids), connection.autocommit
