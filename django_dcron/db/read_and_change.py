"""Read a row and change the database in the same statement, if the row meets a condition.

Only PostgreSQL can do this. It saves a round trip for each ordinary run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

from django.db import connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models.expressions import RawSQL

from django_dcron.db.change_sequence import lock_timeout_query
from django_dcron.db.statements import CompiledStatement, Insert, Select, Statement, Update

ColumnSql = Callable[[str], str]
"""Returns the SQL for a column of the row that was read, by the column's name."""


class ReadResult(NamedTuple):
    row: list[Any] | None
    """The row as it was before the change. None if it doesn't exist."""
    inserted_key: int | None
    """The key of the inserted row. None if no row was inserted."""


class ReadAndChange(Statement):
    """A ``Select`` of one row; if it meets a condition, an ``Update``; then an ``Insert``.

    All parts see the database as it was when the statement began. The update waits for a locked
    row, and then checks its own conditions again.
    """

    def __init__(
        self,
        select: Select,
        names: Sequence[str],
        condition: Callable[[ColumnSql], str],
        update: Callable[[ColumnSql], Update],
        insert: Callable[[ColumnSql], Insert],
        *,
        lock_timeout: timedelta,
    ) -> None:
        """Create the statement.

        ``names``: the columns of ``select``. ``lock_timeout``: how long the update waits for a
        locked row before failing as contention.
        """
        super().__init__(select.model)
        self._select = select
        self._columns = {name: f"seen.c{at}" for at, name in enumerate(names)}
        self._condition = condition(self._columns.__getitem__)
        self._update = update(self._columns.__getitem__)
        self._insert = insert(self._columns.__getitem__)
        self._lock_timeout = lock_timeout

    def is_supported(self) -> bool:
        return connections[self.using].vendor == "postgresql"

    def execute(self, **values: Any) -> ReadResult:
        """Execute the statement, in the surrounding transaction if there is one."""
        connection = connections[self.using]
        if not connection.in_atomic_block:
            return self._execute(connection, values)
        with transaction.atomic(using=connection.alias):
            return self._execute(connection, values)

    def _execute(self, connection: BaseDatabaseWrapper, values: dict[str, Any]) -> ReadResult:
        compiled = self.compiled_for(connection)
        with compiled.execute(connection, values) as cursor:
            rows = [list(row) for row in cursor.fetchall()]
        if not rows:
            return ReadResult(None, None)
        compiled.convert(rows, connection)
        *row, key = rows[0]
        return ReadResult(row, key)

    def _compile(self, connection: BaseDatabaseWrapper) -> CompiledStatement:
        select = self._select.compile(connection)
        row_to_change = f"lock_limit, seen WHERE {self._condition}"
        update = self._update.compile_after(row_to_change, connection)
        insert = self._insert.compile_after("changed, seen", connection)
        columns = ", ".join(each.removeprefix("seen.") for each in self._columns.values())
        key = self._insert.key(connection)
        sql = (
            f"WITH seen ({columns}) AS ({select.sql}), lock_limit AS ("  # noqa: S608 - names of our columns  # nosec B608
            f"{lock_timeout_query(self._lock_timeout)}), changed AS ({update.sql} RETURNING 1), "
            f"inserted AS ({insert.sql} RETURNING {key} AS key) "
            "SELECT seen.*, inserted.key FROM seen LEFT JOIN inserted ON true"
        )
        parameters = (*select.parameters, *update.parameters, *insert.parameters)
        return CompiledStatement(sql, parameters, select.columns)


def raw_expression(sql: str, field: Any) -> RawSQL:
    """Return the SQL as an expression of the type of ``field``."""
    return RawSQL(sql, (), output_field=field)  # noqa: S611 - names of our columns  # nosec B611
