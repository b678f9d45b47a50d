"""Let PostgreSQL keep the plans of the statements that workers and nodes execute all the time.

Django inserts the values into the SQL text, so PostgreSQL plans a statement each time it is
executed. Planning takes twice as long as executing for the statements that start and finish a run.

Invariants:

- A statement is prepared on the server only outside of a transaction. If the server refuses the
  prepared statement, nothing has been executed, and the same statement is executed without it.
- Nothing is prepared through a connection pooler: the server of the next transaction may know
  another statement by the same name, and would execute that one. A project whose pooler supports
  prepared statements can say so with Django's own option, ``OPTIONS["prepare_threshold"]``.
- Other statements of the project are neither prepared nor bound on the server: the connection's
  settings are restored at once.
- A project's own cursor class isn't bypassed: nothing is prepared on its connections.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from django.db import DatabaseError
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.utils import CursorWrapper

USES_BEFORE = 5
"""A connection must have executed this many statements before any is prepared on it.

Celery closes connections after each task unless ``CELERY_DB_REUSE_MAX`` is set. A connection that
serves only one run gains nothing.
"""
EXECUTIONS_BEFORE = 2
"""A statement is prepared at its third execution on a connection."""
REFUSALS = frozenset({"0A000", "26000", "42P05"})
"""SQLSTATEs: the table has changed since the plan was made; unknown or duplicate statement name."""


@dataclass(slots=True)
class _Connection:
    """What is known about a connection of the driver."""

    uses: int = 0
    allowed: bool | None = None
    """None: not checked yet."""


_connections: WeakKeyDictionary[Any, _Connection] = WeakKeyDictionary()


@contextmanager
def executed(
    connection: BaseDatabaseWrapper, sql: str, parameters: Sequence[Any]
) -> Iterator[CursorWrapper]:
    """Execute the statement, and yield its cursor."""
    if _may_prepare(connection):
        with _server_binding_cursor(connection) as cursor:
            try:
                with _preparing(connection.connection):
                    cursor.execute(sql, parameters)
            except DatabaseError as error:
                if getattr(error.__cause__, "sqlstate", None) not in REFUSALS:
                    raise
                _connections[connection.connection].allowed = False
            else:
                yield cursor
                return
    with connection.cursor() as cursor:
        cursor.execute(sql, parameters)
        yield cursor


def _may_prepare(connection: BaseDatabaseWrapper) -> bool:
    in_transaction = connection.in_atomic_block or not connection.autocommit
    if connection.vendor != "postgresql" or in_transaction:
        return False
    driver = connection.connection
    if driver is None or not hasattr(driver, "prepare_threshold"):
        return False  # not connected yet, or psycopg2
    if driver.cursor_factory.__module__ != "django.db.backends.postgresql.base":
        return False  # the project's, or that of an instrumentation
    known = _connections.setdefault(driver, _Connection())
    known.uses += 1
    if known.uses <= USES_BEFORE:
        return False
    if known.allowed is None:
        known.allowed = driver.prepare_threshold is not None or _is_direct(connection)
    return known.allowed


def _is_direct(connection: BaseDatabaseWrapper) -> bool:
    """Return whether no pooler is between this process and the server.

    A pooler reports a process id of its own.
    """
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        (pid,) = cursor.fetchone()
    return bool(pid == connection.connection.info.backend_pid)


def _server_binding_cursor(connection: BaseDatabaseWrapper) -> CursorWrapper:
    """Open a cursor with which the driver sends values apart from the SQL."""
    from django.db.backends.postgresql import base

    driver = connection.connection
    factory, driver.cursor_factory = driver.cursor_factory, base.ServerBindingCursor
    try:
        return connection.cursor()
    finally:
        driver.cursor_factory = factory


@contextmanager
def _preparing(driver: Any) -> Iterator[None]:
    threshold, driver.prepare_threshold = driver.prepare_threshold, EXECUTIONS_BEFORE
    try:
        yield
    finally:
        driver.prepare_threshold = threshold
