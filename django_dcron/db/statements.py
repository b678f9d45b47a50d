"""Prepared statements: compiled by Django once per database, executed with new values.

For short statements, the ORM takes longer to build the SQL than the database takes to execute it.
These are the frequent statements of workers and nodes. They are written with the ORM, with
``Placeholder`` in place of each value, and compiled at first use.

Invariants:

- The SQL is the output of Django's compiler for that database.
- At every execution, each value is converted by its field, as in the ORM.
- The values must match the placeholders of the SQL. Otherwise, ``TypeError`` is raised.
- Compiled statements belong to no connection, and threads share them. On PostgreSQL, a
  persistent connection keeps their plans, too (``plan_cache``).
- On PostgreSQL, constants such as states are literals in the SQL. A kept plan knows nothing about
  parameters: it would expect half of the runs to be in a state that hardly any run is in, and read
  the whole table to find none.
- No statement is kept that was compiled while a test had set the time.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, cast
from uuid import UUID
from weakref import ref

from django.db import connections, models
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.utils import CursorWrapper
from django.db.models.expressions import Expression, RawSQL
from django.db.models.sql import InsertQuery, UpdateQuery

from django_dcron.db import clock
from django_dcron.db.plan_cache import execute_with_cached_plan
from django_dcron.db.routing import alias_for

Converter = Callable[[Any, Any, BaseDatabaseWrapper], Any]
UNCHANGED_TYPES: dict[type, type] = {
    models.CharField: str,
    models.TextField: str,
    models.UUIDField: UUID,
}
"""The type of value that a field doesn't convert (UUIDs: where the database has such a type)."""
REFERENCES = (models.ForeignKey, models.OneToOneField)
PLAIN_TEXT = re.compile("[A-Za-z0-9_ .:-]*")
"""Texts that are SQL literals between quotes, without any escapes."""


class Placeholder(Expression):
    """The placeholder of a value of the field ``name`` of ``model``."""

    def __init__(self, model: type[models.Model], name: str) -> None:
        self.name = name
        field: Any = model._meta.get_field(name)
        super().__init__(output_field=field)
        self._unchanged_type = UNCHANGED_TYPES.get(
            type(field.target_field if type(field) in REFERENCES else field)
        )

    def prepare(self, value: Any, connection: BaseDatabaseWrapper) -> Any:
        """Return the value as its field converts it for the driver."""
        if type(value) is self._unchanged_type and (
            self._unchanged_type is str or connection.features.has_native_uuid_field
        ):
            return value
        return self.output_field.get_db_prep_save(value, connection)

    def as_sql(self, compiler: Any, connection: BaseDatabaseWrapper) -> tuple[str, tuple[Any, ...]]:
        return "%s", (self,)  # the placeholder itself, because there is no value yet


class ConvertedColumn(NamedTuple):
    """A column of a SELECT whose values the database or the field converts."""

    position: int
    expression: Any
    converters: list[Converter] | None
    """The converters in their order. None if they belong to a connection: see ``converted_by``."""

    def converted_by(self, connection: BaseDatabaseWrapper) -> ConvertedColumn:
        """Return the column with the converters for this connection."""
        converters = self.converters or _converters(self.expression, connection)
        return self._replace(converters=converters)

    def convert(self, value: Any, connection: BaseDatabaseWrapper) -> Any:
        """Convert a value that the driver has returned."""
        for converter in self.converters or ():
            value = converter(value, self.expression, connection)
        return value


class CompiledStatement:
    """The SQL of a statement, with its parameters and the placeholders among them."""

    def __init__(
        self, sql: str, parameters: Sequence[Any], columns: Sequence[ConvertedColumn] = ()
    ) -> None:
        self.sql = sql
        self.parameters = tuple(parameters)
        """Converted values for the driver, and a ``Placeholder`` for each value given later."""
        self.names = frozenset(each.name for each in parameters if isinstance(each, Placeholder))
        self.columns = tuple(columns)
        """The columns of a SELECT that need conversion."""
        self._latest: tuple[Any, list[ConvertedColumn]] = (lambda: None), []
        """The latest connection, as a weak reference, and ``columns_of`` for it."""

    def with_literals(self) -> CompiledStatement:
        """Return the statement with its constants as literals in the SQL, where that is safe."""
        remaining: list[Any] = []
        given = iter(self.parameters)

        def write(found: re.Match[str]) -> str:
            if found[1] != "s":
                return found[0]
            value = next(given)
            literal = _literal(value)
            if literal is None:
                remaining.append(value)
            return literal or found[0]

        sql = re.sub("%(.)", write, self.sql)
        return CompiledStatement(sql, remaining, self.columns)

    def execute(
        self, connection: BaseDatabaseWrapper, values: dict[str, Any], prefix: str = ""
    ) -> AbstractContextManager[CursorWrapper]:
        """Return a context manager that executes the statement and yields its cursor."""
        if values.keys() != self.names:
            raise TypeError(
                f"Expected the values {sorted(self.names)}, got {sorted(values)}: {self.sql}"
            )
        parameters = [
            each.prepare(values[each.name], connection) if isinstance(each, Placeholder) else each
            for each in self.parameters
        ]
        return execute_with_cached_plan(connection, prefix + self.sql, parameters)

    def convert(self, rows: list[list[Any]], connection: BaseDatabaseWrapper) -> None:
        """Convert the values that the driver has returned, in place."""
        for column in self.columns_of(connection):
            for row in rows:
                row[column.position] = column.convert(row[column.position], connection)

    def columns_of(self, connection: BaseDatabaseWrapper) -> list[ConvertedColumn]:
        """Return the columns that need conversion, with the converters for this connection."""
        latest, columns = self._latest  # read once, because another thread may replace it
        if latest() is not connection:
            columns = [column.converted_by(connection) for column in self.columns]
            self._latest = ref(connection), columns
        return columns


def _literal(value: Any) -> str | None:
    """Return the SQL of a constant that needs no quoting by the driver, or None."""
    if isinstance(value, bool):
        return "TRUE" if value else "FALSE"
    if isinstance(value, int):
        return str(value) if value >= 0 else None
    if isinstance(value, str) and PLAIN_TEXT.fullmatch(value):
        return f"'{value!s}'"
    return None


class Statement(ABC):
    def __init__(self, model: type[models.Model]) -> None:
        self.model = model
        self._compiled: dict[tuple[str, type[BaseDatabaseWrapper]], CompiledStatement] = {}

    @property
    def using(self) -> str:
        return alias_for(self.model)

    def compiled_for(self, connection: BaseDatabaseWrapper) -> CompiledStatement:
        key, time_is_real = (connection.alias, type(connection)), clock.fixed_at is None
        if time_is_real and (cached := self._compiled.get(key)) is not None:
            return cached
        compiled = self._compile(connection)
        if connection.vendor == "postgresql":
            compiled = compiled.with_literals()
        # A test time is a value in the SQL, so this statement isn't cached.
        if time_is_real and clock.fixed_at is None:
            # Threads that compile at the same time get equal results.
            self._compiled[key] = compiled
        return compiled

    @abstractmethod
    def _compile(self, connection: BaseDatabaseWrapper) -> CompiledStatement: ...


class RowChangeResult(NamedTuple):
    rows: int
    """The number of matched rows."""
    key: int | None
    """The key of the inserted row. PostgreSQL's driver doesn't return it."""


class RowChange(Statement):
    """An UPDATE or INSERT, alone or as a step of a ``ChangeSequence``."""

    def execute(self, **values: Any) -> int:
        """Execute the statement and return the number of matched rows."""
        return self.execute_limited("", values).rows

    def execute_limited(self, prefix: str, values: dict[str, Any]) -> RowChangeResult:
        """Execute the statement. ``prefix`` is SQL that limits its wait for locks."""
        connection = connections[self.using]
        with self.compiled_for(connection).execute(connection, values, prefix) as cursor:
            return RowChangeResult(cursor.rowcount, getattr(cursor, "lastrowid", None))

    def _compile(self, connection: BaseDatabaseWrapper) -> CompiledStatement:
        return self.compile_after("", connection)

    @abstractmethod
    def compile_after(self, step: str, connection: BaseDatabaseWrapper) -> CompiledStatement:
        """Compile the statement so that it changes rows only if the relation ``step`` has a row.

        ``step`` is the SQL of that relation. If it is empty, there is no such condition.
        """


class Update(RowChange):
    """The prepared form of ``build().update(**columns)``."""

    def __init__(
        self, model: type[models.Model], build: Callable[[], models.QuerySet[Any]], **columns: Any
    ) -> None:
        super().__init__(model)
        self._build = build
        self._columns = columns

    def compile_after(self, step: str, connection: BaseDatabaseWrapper) -> CompiledStatement:
        rows = self._rows(step, connection)
        query = cast(UpdateQuery, rows.query.chain(UpdateQuery))
        query.add_update_values(self._columns)
        return CompiledStatement(*query.get_compiler(connection.alias).as_sql())

    def _rows(self, step: str, connection: BaseDatabaseWrapper) -> models.QuerySet[Any]:
        return self._build().filter(_exists(step)) if step else self._build()


class UpdateUnlocked(Update):
    """An ``Update`` of the row with the primary key ``key``, if no other transaction locks it."""

    def __init__(
        self,
        model: type[models.Model],
        key: Placeholder,
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


class Insert(RowChange):
    """The prepared form of ``build().save(force_insert=True)`` for a row without a primary key.

    ``ChangeSequence.insert`` returns the new key.
    """

    def __init__(self, model: type[models.Model], build: Callable[[], models.Model]) -> None:
        super().__init__(model)
        self._build = build

    def compile_after(self, step: str, connection: BaseDatabaseWrapper) -> CompiledStatement:
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
            return CompiledStatement(sql, parameters)
        values = [
            compiler.prepare_value(field, compiler.pre_save_val(field, row)) for field in fields
        ]
        (expressions,), (parameters,) = compiler.assemble_as_sql(fields, [values])
        quote = connection.ops.quote_name
        columns = ", ".join(quote(cast(str, field.column)) for field in fields)
        return CompiledStatement(
            f"INSERT INTO {quote(options.db_table)} ({columns}) "  # noqa: S608 - names of our columns  # nosec B608
            f"SELECT {', '.join(expressions)} FROM {step}",
            parameters,
        )

    def key(self, connection: BaseDatabaseWrapper) -> str:
        """Return the quoted name of the primary key."""
        return connection.ops.quote_name(cast(str, self.model._meta.pk.column))


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
        """Execute the statement and return its first row, or None."""
        return next(iter(self.rows(**values)), None)

    def rows(self, **values: Any) -> list[list[Any]]:
        """Execute the statement and return its rows, with converted values."""
        connection = connections[self.using]
        compiled = self.compiled_for(connection)
        with compiled.execute(connection, values) as cursor:
            rows = [list(row) for row in cursor.fetchall()]
        compiled.convert(rows, connection)
        return rows

    def compile(self, connection: BaseDatabaseWrapper) -> CompiledStatement:
        return self._compile(connection)

    def _compile(self, connection: BaseDatabaseWrapper) -> CompiledStatement:
        compiler = self._build().query.get_compiler(connection.alias)
        sql, parameters = compiler.as_sql()
        columns = []
        for position, (expression, _, _) in enumerate(compiler.select):
            if converters := _converters(expression, connection):
                of_connection = connection.ops.get_db_converters(expression)
                columns.append(
                    ConvertedColumn(position, expression, None if of_connection else converters)
                )
        return CompiledStatement(sql, parameters, columns)


def _converters(expression: Any, connection: BaseDatabaseWrapper) -> list[Converter]:
    """Return the converters of the database and then of the field, in the ORM's order."""
    return [
        *connection.ops.get_db_converters(expression),
        *expression.get_db_converters(connection),
    ]


def _exists(step: str) -> RawSQL:
    return RawSQL(f"EXISTS (SELECT 1 FROM {step})", (), output_field=models.BooleanField())  # noqa: S608, S611 (as above)  # nosec B608, B611
