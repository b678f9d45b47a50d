"""Several prepared changes in one transaction: one statement on PostgreSQL."""

from __future__ import annotations

from datetime import timedelta
from math import ceil
from typing import Any, NamedTuple

from django.db import connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from django_dcron.db.statements import (
    CompiledStatement,
    Insert,
    RowChange,
    RowChangeResult,
    Statement,
    Update,
)


class FirstPossible(NamedTuple):
    """Executes ``change``. If ``change`` matches no row, executes ``otherwise`` instead."""

    change: Update
    otherwise: Insert


class ChangeSequence(Statement):
    """Changes in one transaction, each made only if the previous one has matched a row.

    PostgreSQL executes the changes in one statement and one round trip, without BEGIN and COMMIT.
    Each change reads the row that the last plain change before it returns, so rows are locked in
    the order of the plain changes. A ``FirstPossible`` always changes a row, and later changes
    don't depend on it. See "Data-Modifying Statements in WITH" in PostgreSQL's manual. Other
    databases use a transaction.
    """

    def __init__(
        self,
        first: RowChange,
        *others: RowChange | FirstPossible,
        lock_timeout: timedelta | None = None,
    ) -> None:
        """Create a sequence of changes.

        ``lock_timeout``: how long each change waits for a locked row before failing as contention.
        None keeps the connection's limit. SQLite ignores this value.
        """
        super().__init__(first.model)
        self._changes = (first, *others)
        self._lock_timeout = lock_timeout

    def execute(self, **values: Any) -> bool:
        """Execute the changes. Return whether the first one has matched a row."""
        return self._execute(values) is not None

    def insert(self, **values: Any) -> int | None:
        """Execute the changes, the last of which is an ``Insert``, and return its row's key.

        Returns None if the first change has matched no row.
        """
        return self._execute(values)

    def _execute(self, values: dict[str, Any]) -> int | None:
        """Return the key of the row that the last change inserted, or 1 if it is an ``Update``.

        Returns None if the first change has matched no row.
        """
        connection = connections[self.using]
        in_one_statement = connection.vendor == "postgresql"
        if in_one_statement and not connection.in_atomic_block:
            return self._execute_statement(connection, values)
        with transaction.atomic(using=connection.alias):
            if in_one_statement:
                return self._execute_statement(connection, values)
            key: int | None = None
            prefix = self._limiting_prefix(connection)
            for position, change in enumerate(self._changes):
                rows, key = _execute_change(change, prefix, values, connection)
                if not rows:
                    return None if position == 0 else 1
        return key if isinstance(self._changes[-1], Insert) else 1

    def _limiting_prefix(self, connection: BaseDatabaseWrapper) -> str:
        """Return the SQL that limits the waits of one statement on MariaDB; otherwise nothing."""
        if self._lock_timeout is None or connection.vendor != "mysql":
            return ""
        seconds = ceil(self._lock_timeout / timedelta(seconds=1))
        return f"SET STATEMENT innodb_lock_wait_timeout={seconds} FOR "

    def _execute_statement(
        self, connection: BaseDatabaseWrapper, values: dict[str, Any]
    ) -> int | None:
        with self.compiled_for(connection).execute(connection, values) as cursor:
            row: tuple[int] | None = cursor.fetchone()
        return None if row is None else row[0]

    def _compile(self, connection: BaseDatabaseWrapper) -> CompiledStatement:
        steps: list[str] = []
        parameters: list[Any] = []
        previous, last = "", len(self._changes) - 1
        if self._lock_timeout is not None:
            # The first step reads this row, so the limit is set before any row is locked. The limit
            # ends with the transaction.
            previous = "lock_limit"
            steps.append(f"lock_limit AS ({lock_timeout_query(self._lock_timeout)})")
        for at, change in enumerate(self._changes):
            step, otherwise = f"step_{at}", None
            if isinstance(change, FirstPossible):
                change, otherwise = change
            compiled = change.compile_after(previous, connection)
            returned = self._key(connection) if at == last else "1"
            steps.append(f"{step} AS ({compiled.sql} RETURNING {returned} AS key)")
            parameters += compiled.parameters
            if otherwise is None:
                previous = step
                continue
            # A relation with a row if the previous step has matched one and this step hasn't.
            unmatched = (
                f"(SELECT 1 FROM {previous} WHERE NOT EXISTS (SELECT 1 FROM {step})) AS locked"  # noqa: S608 (names of our columns)  # nosec B608
            )
            compiled = otherwise.compile_after(unmatched, connection)
            steps.append(f"otherwise_{at} AS ({compiled.sql})")
            parameters += compiled.parameters
        # An insert adds a row whenever the step before it has matched one.
        answer = f"step_{last}" if isinstance(self._changes[last], Insert) else "step_0"
        return CompiledStatement(f"WITH {', '.join(steps)} SELECT key FROM {answer}", parameters)  # noqa: S608 (as above)  # nosec B608

    def _key(self, connection: BaseDatabaseWrapper) -> str:
        """Return what the last step returns on PostgreSQL: the key of the row that it inserts."""
        last = self._changes[-1]
        return last.key(connection) if isinstance(last, Insert) else "1"


def lock_timeout_query(timeout: timedelta) -> str:
    """Return the query that limits PostgreSQL's waits for locks until the transaction ends."""
    limit = timeout // timedelta(milliseconds=1)
    return f"SELECT set_config('lock_timeout', '{limit}ms', true)"


def _execute_change(
    change: RowChange | FirstPossible,
    prefix: str,
    values: dict[str, Any],
    connection: BaseDatabaseWrapper,
) -> RowChangeResult:
    if isinstance(change, FirstPossible):
        done = _execute_change(change.change, prefix, values, connection)
        return done if done.rows else _execute_change(change.otherwise, prefix, values, connection)
    names = change.compiled_for(connection).names
    return change.execute_limited(prefix, {name: values[name] for name in names})
