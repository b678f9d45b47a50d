"""Let PostgreSQL keep the plans of the statements that workers and nodes execute all the time.

By default, Django inserts the values into the SQL text, so PostgreSQL plans a statement each time
it is executed. For the statements that start and finish a run, planning takes twice as long as
executing.

Invariants:

- A statement is prepared on the server only outside of a transaction. If the server refuses the
  prepared statement, nothing has been executed, and the same statement is executed once more, now
  without preparing it. Nothing is prepared on that connection again.
- A statement that has been executed is never executed again, whatever fails afterwards.
- No other client's statement is executed: the names are random. A name that psycopg chooses may
  mean another statement on another server connection.
- Nothing is prepared through a connection pooler that reports its own process ids (PgBouncer,
  pgcat, PgDog). A pooler that reports the server's process id looks like a direct connection. If
  it changes the server connection, the new one doesn't know the random name and refuses it.
- Nothing is prepared on a connection that gives each statement a transaction of its own
  (``transaction_limits``). There, an error after the execution undoes the statement.
- If the project sets Django's option, the option decides: ``OPTIONS["prepare_threshold"] = None``
  prepares nothing, and a number means that the pooler supports prepared statements.
- Other statements of the project are neither prepared nor bound on the server: the connection's
  settings are restored at once.
- A project's own cursor class isn't bypassed: nothing is prepared on its connections.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import count
from typing import Any
from weakref import WeakKeyDictionary

from django.db import DatabaseError
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.utils import CursorWrapper

from django_dcron.db.transaction_limits import has_transaction_limits

USES_BEFORE = 5
"""A connection must have executed this many statements before any is prepared on it.

Celery closes connections after each task unless ``CELERY_DB_REUSE_MAX`` is set. A connection that
serves only one run gains nothing.
"""
EXECUTIONS_BEFORE = 2
"""A statement is prepared at its third execution on a connection."""
KEPT_ROWS = 100
"""A cursor with more rows isn't kept for the next execution, because it also keeps the rows."""
REFUSALS = frozenset({"0A000", "26000", "42P05"})
"""SQLSTATEs: the table has changed since the plan was made; unknown or duplicate statement name."""


@dataclass(slots=True)
class _Connection:
    """The facts that decide whether statements are prepared on a connection of the driver."""

    uses: int = 0
    allowed: bool | None = None
    """None: not checked yet."""
    refused: bool = False
    """Whether the server has refused a prepared statement."""


_connections: WeakKeyDictionary[Any, _Connection] = WeakKeyDictionary()
_cursors: WeakKeyDictionary[BaseDatabaseWrapper, dict[Any, Any]] = WeakKeyDictionary()
"""The driver's cursors of each connection of Django, by statement and time zone.

With the same cursor, psycopg also remembers how to convert the values of the statement.
"""


@contextmanager
def execute_with_cached_plan(
    connection: BaseDatabaseWrapper, sql: str, parameters: Sequence[Any]
) -> Iterator[CursorWrapper]:
    """Execute the statement, and yield its cursor."""
    connection.close_if_health_check_failed()
    if _may_prepare(connection):
        entry = _connections[connection.connection]
        with _preparing_cursor(connection, sql) as cursor:
            try:
                with _prepare_threshold(connection.connection, EXECUTIONS_BEFORE):
                    cursor.execute(sql, parameters)
            except DatabaseError as error:
                if getattr(error.__cause__, "sqlstate", None) not in REFUSALS:
                    raise
                entry.allowed, entry.refused = False, True
            # There is a result if psycopg failed only to deallocate another statement afterwards.
            if not entry.refused or cursor.pgresult is not None:
                yield cursor
                return
    with connection.cursor() as cursor:
        if _has_refused(connection):
            # The project may prepare statements, too, and psycopg may still know the refused one.
            with _prepare_threshold(connection.connection, None):
                cursor.execute(sql, parameters)
        else:
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
        return False  # a cursor class of the project or of an instrumentation
    if has_transaction_limits(connection):
        return False
    entry = _connections.setdefault(driver, _Connection())
    entry.uses += 1
    if entry.uses <= USES_BEFORE:
        return False
    if entry.allowed is None:
        options = connection.settings_dict["OPTIONS"]
        if "prepare_threshold" in options:
            entry.allowed = options["prepare_threshold"] is not None
        else:
            entry.allowed = _is_direct(connection)
    return entry.allowed


def _has_refused(connection: BaseDatabaseWrapper) -> bool:
    entry = _connections.get(connection.connection) if connection.vendor == "postgresql" else None
    return entry is not None and entry.refused


def _is_direct(connection: BaseDatabaseWrapper) -> bool:
    """Return whether this connection leads directly to the server process that it began with."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        (pid,) = cursor.fetchone()
    return bool(pid == connection.connection.info.backend_pid)


@cache
def _cursor_class() -> type[Any]:
    from django.db.backends.postgresql import base
    from psycopg import RawCursor

    class PreparingCursor(base.CursorMixin, RawCursor):
        """Sends values separately from the SQL, and prepares statements under random names."""

        def execute(self, query: Any, params: Any = None, **options: Any) -> Any:
            # psycopg doesn't remember how it has parsed a statement of more than 4,096 characters.
            return super().execute(_numbered(query), params, **options)

        def _get_prepared(self, *args: Any, **options: Any) -> tuple[Any, bytes]:
            step, name = super()._get_prepared(*args, **options)
            if step.name == "SHOULD":
                name = f"dcron_{secrets.token_hex(8)}".encode()
            return step, name

    return PreparingCursor


@lru_cache(maxsize=64)
def _numbered(sql: str) -> str:
    """Return the statement with PostgreSQL's placeholders (``$1``) instead of ``%s``."""
    numbers = count(1)
    return re.sub("%(.)", lambda found: f"${next(numbers)}" if found[1] == "s" else found[1], sql)


@contextmanager
def _preparing_cursor(connection: BaseDatabaseWrapper, sql: str) -> Iterator[CursorWrapper]:
    """Yield the cursor of the last execution of the statement, or a new one."""
    connection.validate_thread_sharing()
    kept, key = _cursors.setdefault(connection, {}), (sql, connection.timezone)
    cursor = kept.pop(key, None)  # the block may execute the same statement
    if cursor is None or cursor.connection is not connection.connection:
        cursor = _new_preparing_cursor(connection)
    is_logged = connection.queries_logged
    yield (connection.make_debug_cursor if is_logged else connection.make_cursor)(cursor)
    if cursor.rowcount <= KEPT_ROWS:
        kept[key] = cursor
    else:
        cursor.close()


def _new_preparing_cursor(connection: BaseDatabaseWrapper) -> Any:
    driver = connection.connection
    factory, driver.cursor_factory = driver.cursor_factory, _cursor_class()
    try:
        with connection.wrap_database_errors:
            return connection.create_cursor()
    finally:
        driver.cursor_factory = factory


@contextmanager
def _prepare_threshold(driver: Any, number: int | None) -> Iterator[None]:
    threshold, driver.prepare_threshold = driver.prepare_threshold, number
    try:
        yield
    finally:
        driver.prepare_threshold = threshold
