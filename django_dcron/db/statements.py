"""Prepared statements: compiled by Django once per database, executed with new values.

For short statements, the ORM takes longer to build the SQL than the database takes to execute it.
These are the frequent statements of workers and nodes. They are written with the ORM, with
``Given`` in place of each value, and compiled at first use.

Invariants:

- The SQL is the output of Django's compiler for that database.
- At every execution, each value is converted by its field, like in the ORM.
- The values must match the placeholders of the SQL. Otherwise, ``TypeError`` is raised.
- Compiled statements belong to no connection, and threads share them. On PostgreSQL, a
  persistent connection keeps their plans, too (``plan_cache``).
- No statement is kept that was compiled while a test had set the time.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from datetime import timedelta
from math import ceil
from typing import Any, NamedTuple, cast
from weakref import ref

from django.db import connections, models, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.utils import CursorWrapper
from django.db.models.expressions import Expression, RawSQL
from django.db.models.sql import InsertQuery, UpdateQuery

from django_dcron.db import clock
from django_dcron.db.plan_cache import executed
from django_dcron.db.routing import alias_for

Converter = Callable[[Any, Any, BaseDatabaseWrapper], Any]


class Given(Expression):
    """The placeholder of a value of the field ``name`` of ``model``."""

    def __init__(self, model: type[models.Model], name: str) -> None:
        self.name = name
        super().__init__(output_field=cast("models.Field[Any, Any]", model._meta.get_field(name)))

    def as_sql(self, compiler: Any, connection: BaseDatabaseWrapper) -> tuple[str, tuple[Any, ...]]:
        return "%s", (self,)  # the placeholder itself, because there is no value yet


class Compiled:
    def __init__(self, sql: str, parameters: Sequence[Any], columns: Sequence[Any] = ()) -> None:
        self.sql = sql
        self.parameters = tuple(parameters)
        """Converted values for the driver, and ``Given`` placeholders."""
        self.names = frozenset(each.name for each in parameters if isinstance(each, Given))
        self.columns = tuple(columns)
        """The SELECT's columns that need conversion: position, expression and converters. None: the
        converters belong to a connection.
        """
        self._latest: tuple[Any, list[tuple[int, Any, list[Converter]]]] = (lambda: None), []
        """The latest connection, as a weak reference, and its columns."""

    def executed(
        self, connection: BaseDatabaseWrapper, values: dict[str, Any], prefix: str = ""
    ) -> AbstractContextManager[CursorWrapper]:
        """Return a context manager that executes the statement and yields its cursor."""
        if values.keys() != self.names:
            raise TypeError(
                f"Expected the values {sorted(self.names)}, got {sorted(values)}: {self.sql}"
            )
        parameters = [
            each.output_field.get_db_prep_save(values[each.name], connection)
            if isinstance(each, Given)
            else each
            for each in self.parameters
        ]
        return executed(connection, prefix + self.sql, parameters)

    def convert(self, rows: list[list[Any]], connection: BaseDatabaseWrapper) -> None:
        """Convert the values that the driver has returned, in place."""
        for column, expression, converters in self.converters(connection):
            for convert in converters:
                for row in rows:
                    row[column] = convert(row[column], expression, connection)

    def converters(self, connection: BaseDatabaseWrapper) -> list[tuple[int, Any, list[Converter]]]:
        """Return the columns that need conversion: position, expression and converters."""
        latest, columns = self._latest  # read once, because another thread may replace it
        if latest() is not connection:
            columns = [
                (column, expression, converters or _converters(expression, connection))
                for column, expression, converters in self.columns
            ]
            self._latest = ref(connection), columns
        return columns


class Statement(ABC):
    def __init__(self, model: type[models.Model]) -> None:
        self.model = model
        self._compiled: dict[tuple[str, type[BaseDatabaseWrapper]], Compiled] = {}

    @property
    def using(self) -> str:
        return alias_for(self.model)

    def compiled_for(self, connection: BaseDatabaseWrapper) -> Compiled:
        key, time_is_real = (connection.alias, type(connection)), clock.fixed_at is None
        if time_is_real and (cached := self._compiled.get(key)) is not None:
            return cached
        compiled = self._compile(connection)
        # A test time is a value in the SQL, so this statement isn't cached.
        if time_is_real and clock.fixed_at is None:
            # Threads that compile at the same time get equal results.
            self._compiled[key] = compiled
        return compiled

    @abstractmethod
    def _compile(self, connection: BaseDatabaseWrapper) -> Compiled: ...


class _Changed(NamedTuple):
    rows: int
    """The number of matched rows."""
    key: int | None
    """The key of the inserted row. PostgreSQL's driver doesn't return it."""


class _Change(Statement):
    def execute(self, **values: Any) -> int:
        """Execute the statement and return the number of matched rows."""
        return self.execute_limited("", values).rows

    def execute_limited(self, prefix: str, values: dict[str, Any]) -> _Changed:
        """Execute the statement. ``prefix`` is SQL that limits it."""
        connection = connections[self.using]
        with self.compiled_for(connection).executed(connection, values, prefix) as cursor:
            return _Changed(cursor.rowcount, getattr(cursor, "lastrowid", None))

    def _compile(self, connection: BaseDatabaseWrapper) -> Compiled:
        return self.compile_after("", connection)

    @abstractmethod
    def compile_after(self, step: str, connection: BaseDatabaseWrapper) -> Compiled:
        """Compile the statement so that it changes rows only if the relation ``step`` has a row.

        Without a ``step``, there is no such condition.
        """


class Update(_Change):
    """The prepared form of ``build().update(**columns)``."""

    def __init__(
        self, model: type[models.Model], build: Callable[[], models.QuerySet[Any]], **columns: Any
    ) -> None:
        super().__init__(model)
        self._build = build
        self._columns = columns

    def compile_after(self, step: str, connection: BaseDatabaseWrapper) -> Compiled:
        rows = self._rows(step, connection)
        query = cast(UpdateQuery, rows.query.chain(UpdateQuery))
        query.add_update_values(self._columns)
        return Compiled(*query.get_compiler(connection.alias).as_sql())

    def _rows(self, step: str, connection: BaseDatabaseWrapper) -> models.QuerySet[Any]:
        return self._build().filter(_exists(step)) if step else self._build()


class UpdateUnlocked(Update):
    """An ``Update`` of the row with the primary key ``key``, if no other transaction locks it."""

    def __init__(
        self,
        model: type[models.Model],
        key: Given,
        build: Callable[[], models.QuerySet[Any]],
        **columns: Any,
    ) -> None:
        super().__init__(model, build, **columns)
        self._key = key

    def _rows(self, step: str, connection: BaseDatabaseWrapper) -> models.QuerySet[Any]:
        rows = super()._rows(step, connection).filter(pk=self._key)
        if not connection.features.has_select_for_update_skip_locked:
            return rows
        options, quote = self.model._meta, connection.ops.quote_name
        table, column = quote(options.db_table), quote(cast(str, options.pk.column))
        lock = "FOR NO KEY UPDATE" if connection.vendor == "postgresql" else "FOR UPDATE"
        # The row isn't locked before the rows of ``step``.
        after = f" AND EXISTS (SELECT 1 FROM {step})" if step else ""  # noqa: S608 (as below)  # nosec B608
        # MariaDB reads the table that it updates only in such a derived table.
        unlocked = (
            f"{table}.{column} = (SELECT {column} FROM (SELECT {column} FROM {table} "  # noqa: S608 (as below)  # nosec B608
            f"WHERE {column} = %s{after} {lock} SKIP LOCKED) AS unlocked)"
        )
        return rows.filter(RawSQL(unlocked, (self._key,), output_field=models.BooleanField()))  # noqa: S611 (as below)  # nosec B611


class Insert(_Change):
    """The prepared form of ``build().save(force_insert=True)`` for a row without a primary key.

    ``ChangeSequence.insert`` returns the new key.
    """

    def __init__(self, model: type[models.Model], build: Callable[[], models.Model]) -> None:
        super().__init__(model)
        self._build = build

    def compile_after(self, step: str, connection: BaseDatabaseWrapper) -> Compiled:
        options = self.model._meta
        query = InsertQuery(self.model)
        fields = [
            field for field in options.local_concrete_fields if field is not options.auto_field
        ]
        row = self._build()
        query.insert_values(fields, [row])
        compiler = query.get_compiler(connection.alias)
        if not step:
            ((sql, parameters),) = compiler.as_sql()
            return Compiled(sql, parameters)
        values = [
            compiler.prepare_value(field, compiler.pre_save_val(field, row)) for field in fields
        ]
        (expressions,), (parameters,) = compiler.assemble_as_sql(fields, [values])
        quote = connection.ops.quote_name
        columns = ", ".join(quote(cast(str, field.column)) for field in fields)
        return Compiled(
            f"INSERT INTO {quote(options.db_table)} ({columns}) "  # noqa: S608 - names of our columns  # nosec B608
            f"SELECT {', '.join(expressions)} FROM {step}",
            parameters,
        )

    def key(self, connection: BaseDatabaseWrapper) -> str:
        """Return the quoted name of the primary key."""
        return connection.ops.quote_name(cast(str, self.model._meta.pk.column))


class FirstPossible(NamedTuple):
    """Makes ``otherwise`` if ``change`` has matched no row."""

    change: Update
    otherwise: Insert


class Select(Statement):
    """The prepared form of ``build()``, a ``values_list``."""

    def __init__(
        self,
        model: type[models.Model],
        build: Callable[[], models.QuerySet[Any, tuple[Any, ...]]],
    ) -> None:
        super().__init__(model)
        self._build = build

    def first(self, **values: Any) -> list[Any] | None:
        return next(iter(self.rows(**values)), None)

    def rows(self, **values: Any) -> list[list[Any]]:
        connection = connections[self.using]
        compiled = self.compiled_for(connection)
        with compiled.executed(connection, values) as cursor:
            rows = [list(row) for row in cursor.fetchall()]
        compiled.convert(rows, connection)
        return rows

    def compile(self, connection: BaseDatabaseWrapper) -> Compiled:
        return self._compile(connection)

    def _compile(self, connection: BaseDatabaseWrapper) -> Compiled:
        compiler = self._build().query.get_compiler(connection.alias)
        sql, parameters = compiler.as_sql()
        columns = []
        for column, (expression, _, _) in enumerate(compiler.select):
            if converters := _converters(expression, connection):
                of_connection = connection.ops.get_db_converters(expression)
                columns.append((column, expression, None if of_connection else converters))
        return Compiled(sql, parameters, columns)


def _converters(expression: Any, connection: BaseDatabaseWrapper) -> list[Converter]:
    """Return the converters of the database and then of the field, in the ORM's order."""
    return [
        *connection.ops.get_db_converters(expression),
        *expression.get_db_converters(connection),
    ]


class ChangeSequence(Statement):
    """Changes in one transaction, each made only if the previous one has matched a row.

    PostgreSQL executes them in one statement and one round trip, without BEGIN and COMMIT. A step
    that reads the rows of the previous step is executed after it, which keeps the order of the
    locks. See "Data-Modifying Statements in WITH" in PostgreSQL's manual. Other databases use a
    transaction.
    """

    def __init__(
        self,
        first: _Change,
        *others: _Change | FirstPossible,
        lock_timeout: timedelta | None = None,
    ) -> None:
        """Create a chain of changes.

        ``lock_timeout``: how long each change waits for a locked row before failing as contention.
        None leaves the connection's limit. SQLite has its own limit.
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
        at_once = connection.vendor == "postgresql"
        if at_once and not connection.in_atomic_block:
            return self._execute_at_once(connection, values)
        with transaction.atomic(using=connection.alias):
            if at_once:
                return self._execute_at_once(connection, values)
            key: int | None = None
            limit = self._limit(connection)
            for at, change in enumerate(self._changes):
                rows, key = _make(change, limit, values, connection)
                if not rows:
                    return 1 if at else None
        return key if isinstance(self._changes[-1], Insert) else 1

    def _limit(self, connection: BaseDatabaseWrapper) -> str:
        if self._lock_timeout is None or connection.vendor != "mysql":
            return ""
        seconds = ceil(self._lock_timeout / timedelta(seconds=1))
        return f"SET STATEMENT innodb_lock_wait_timeout={seconds} FOR "

    def _execute_at_once(
        self, connection: BaseDatabaseWrapper, values: dict[str, Any]
    ) -> int | None:
        with self.compiled_for(connection).executed(connection, values) as cursor:
            row: tuple[int] | None = cursor.fetchone()
        return None if row is None else row[0]

    def _compile(self, connection: BaseDatabaseWrapper) -> Compiled:
        steps: list[str] = []
        parameters: list[Any] = []
        previous, last = "", len(self._changes) - 1
        if self._lock_timeout is not None:
            # The first step reads this row, so the limit is set before any row is locked. The limit
            # ends with the transaction.
            previous = "lock_limit"
            steps.append(f"lock_limit AS ({limiting_locks(self._lock_timeout)})")
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
            without = (
                f"(SELECT 1 FROM {previous} WHERE NOT EXISTS (SELECT 1 FROM {step})) AS locked"  # noqa: S608 (as above)  # nosec B608
            )
            compiled = otherwise.compile_after(without, connection)
            steps.append(f"otherwise_{at} AS ({compiled.sql})")
            parameters += compiled.parameters
        # An insert adds a row whenever the step before it has matched one.
        answer = f"step_{last}" if isinstance(self._changes[last], Insert) else "step_0"
        return Compiled(f"WITH {', '.join(steps)} SELECT key FROM {answer}", parameters)  # noqa: S608 (as above)  # nosec B608

    def _key(self, connection: BaseDatabaseWrapper) -> str:
        """Return what the last step returns on PostgreSQL: the key of the row that it inserts."""
        last = self._changes[-1]
        return last.key(connection) if isinstance(last, Insert) else "1"


def limiting_locks(timeout: timedelta) -> str:
    """Return the query that limits PostgreSQL's waits for locks until the transaction ends."""
    limit = timeout // timedelta(milliseconds=1)
    return f"SELECT set_config('lock_timeout', '{limit}ms', true)"


def _make(
    change: _Change | FirstPossible,
    limit: str,
    values: dict[str, Any],
    connection: BaseDatabaseWrapper,
) -> _Changed:
    if isinstance(change, FirstPossible):
        done = _make(change.change, limit, values, connection)
        return done if done.rows else _make(change.otherwise, limit, values, connection)
    names = change.compiled_for(connection).names
    return change.execute_limited(limit, {name: values[name] for name in names})


def _exists(step: str) -> RawSQL:
    return RawSQL(f"EXISTS (SELECT 1 FROM {step})", (), output_field=models.BooleanField())  # noqa: S608, S611 (as above)  # nosec B608, B611
