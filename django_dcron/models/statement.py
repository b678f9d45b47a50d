"""Statements that Django compiles once for each database, to be executed with ever new values.

For the short statements of a worker, and those with which a node finds that there is nothing to do, building the SQL takes
the ORM longer than the database takes to execute it. Here they are still written with the ORM, with ``Given`` in the place of each value that changes, and compiled at first use.

Invariants:

- The SQL is what Django's compiler for that very database makes of the query.
- Each value goes through its field, as the ORM's do, at every execution.
- The values given are exactly those the SQL has places for; anything else is a ``TypeError``.
- What is kept belongs to no connection: threads share it. Nothing is kept that was compiled while a test had set the time.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, cast

from django.db import connections, models, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.utils import CursorWrapper
from django.db.models.expressions import Expression, RawSQL
from django.db.models.sql import InsertQuery, UpdateQuery

from django_dcron.domain import clock
from django_dcron.models.database import alias_for

Converter = Callable[[Any, Any, BaseDatabaseWrapper], Any]


class Given(Expression):
    """The place of a value, named like the field of ``model`` that it is a value of."""

    def __init__(self, model: type[models.Model], name: str) -> None:
        self.name = name
        super().__init__(output_field=cast("models.Field[Any, Any]", model._meta.get_field(name)))

    def as_sql(self, compiler: Any, connection: BaseDatabaseWrapper) -> tuple[str, tuple[Any, ...]]:
        return "%s", (self,)  # no value yet: itself


class _Compiled:
    def __init__(self, sql: str, parameters: Sequence[Any], columns: Sequence[Any] = ()) -> None:
        self.sql = sql
        self.parameters = tuple(parameters)
        """Values as the driver takes them, and ``Given``."""
        self.names = frozenset(each.name for each in parameters if isinstance(each, Given))
        self.columns = tuple(columns)
        """Those of a SELECT that are not used as the driver returns them: position and expression."""

    def execute(self, cursor: CursorWrapper, values: dict[str, Any]) -> None:
        if values.keys() != self.names:
            raise TypeError(f"given {sorted(values)}, wanted {sorted(self.names)}: {self.sql}")
        parameters = [
            each.output_field.get_db_prep_save(values[each.name], cursor.db)
            if isinstance(each, Given)
            else each
            for each in self.parameters
        ]
        cursor.execute(self.sql, parameters)


class _Statement(ABC):
    def __init__(self, model: type[models.Model]) -> None:
        self.model = model
        self._compiled: dict[tuple[str, type[BaseDatabaseWrapper]], _Compiled] = {}

    @property
    def using(self) -> str:
        return alias_for(self.model)

    def on(self, connection: BaseDatabaseWrapper) -> _Compiled:
        key, goes_on = (connection.alias, type(connection)), clock.stands_at is None
        if goes_on and (kept := self._compiled.get(key)) is not None:
            return kept
        compiled = self._compile(connection)
        if goes_on and clock.stands_at is None:  # a time that was set is a value in the SQL, not to be kept
            self._compiled[key] = compiled  # threads that come at once compile the same
        return compiled

    @abstractmethod
    def _compile(self, connection: BaseDatabaseWrapper) -> _Compiled: ...


class _Change(_Statement):
    def execute(self, **values: Any) -> int:
        """Returns the number of rows that matched."""
        connection = connections[self.using]
        with connection.cursor() as cursor:
            self.on(connection).execute(cursor, values)
            matched: int = cursor.rowcount
        return matched

    def _compile(self, connection: BaseDatabaseWrapper) -> _Compiled:
        return self.compile_after("", connection)

    @abstractmethod
    def compile_after(self, step: str, connection: BaseDatabaseWrapper) -> _Compiled:
        """``step``: a relation that has to have a row, or nothing is changed; "": no such condition."""


class Update(_Change):
    """``written().update(**columns)``."""

    def __init__(
        self, model: type[models.Model], written: Callable[[], models.QuerySet[Any]], **columns: Any
    ) -> None:
        super().__init__(model)
        self._written = written
        self._columns = columns

    def compile_after(self, step: str, connection: BaseDatabaseWrapper) -> _Compiled:
        rows = self._written()
        if step:
            rows = rows.filter(_exists(step))
        query = cast(UpdateQuery, rows.query.chain(UpdateQuery))
        query.add_update_values(self._columns)
        return _Compiled(*query.get_compiler(connection.alias).as_sql())


class Insert(_Change):
    """``written().save(force_insert=True)`` of a row that has no key yet; nobody learns its key."""

    def __init__(self, model: type[models.Model], written: Callable[[], models.Model]) -> None:
        super().__init__(model)
        self._written = written

    def compile_after(self, step: str, connection: BaseDatabaseWrapper) -> _Compiled:
        options = self.model._meta
        query = InsertQuery(self.model)
        fields = [field for field in options.local_concrete_fields if field is not options.auto_field]
        query.insert_values(fields, [self._written()])
        ((sql, parameters),) = query.get_compiler(connection.alias).as_sql()
        if step:
            columns, row = sql.split(" VALUES (")
            sql = f"{columns} SELECT {row.removesuffix(')')} FROM {step}"  # noqa: S608 (none of it is anybody's input)
        return _Compiled(sql, parameters)


class Select(_Statement):
    """``written()``, a ``values_list``."""

    def __init__(
        self, model: type[models.Model], written: Callable[[], models.QuerySet[Any, tuple[Any, ...]]]
    ) -> None:
        super().__init__(model)
        self._written = written

    def first(self, **values: Any) -> list[Any] | None:
        return next(iter(self.rows(**values)), None)

    def rows(self, **values: Any) -> list[list[Any]]:
        connection = connections[self.using]
        compiled = self.on(connection)
        with connection.cursor() as cursor:
            compiled.execute(cursor, values)
            rows = [list(row) for row in cursor.fetchall()]
        for column, expression in compiled.columns:
            for convert in _converters(expression, connection):
                for row in rows:
                    row[column] = convert(row[column], expression, connection)
        return rows

    def _compile(self, connection: BaseDatabaseWrapper) -> _Compiled:
        compiler = self._written().query.get_compiler(connection.alias)
        sql, parameters = compiler.as_sql()
        columns = enumerate(expression for expression, _, _ in compiler.select)
        return _Compiled(sql, parameters, [each for each in columns if _converters(each[1], connection)])


def _converters(expression: Any, connection: BaseDatabaseWrapper) -> list[Converter]:
    """The database's, then the field's own: as the ORM has them."""
    return [*connection.ops.get_db_converters(expression), *expression.get_db_converters(connection)]


class Chain(_Statement):
    """Changes of which each is made if the one before has matched a row; all of that happens, or nothing.

    PostgreSQL does it in one statement, so in one round trip instead of one for each, for BEGIN and for COMMIT. A step
    that asks for the rows of the one before comes after it, which keeps the order of the locks. (PostgreSQL's manual,
    "Data-Modifying Statements in WITH".) Elsewhere it is a transaction.
    """

    def __init__(self, *changes: _Change) -> None:
        super().__init__(changes[0].model)
        self._changes = changes

    def execute(self, **values: Any) -> bool:
        """Whether the first one has matched a row."""
        connection = connections[self.using]
        at_once = connection.vendor == "postgresql"
        if at_once and not connection.in_atomic_block:
            return self._execute_at_once(connection, values)
        with transaction.atomic(using=connection.alias):
            if at_once:
                return self._execute_at_once(connection, values)
            for at, change in enumerate(self._changes):
                names = change.on(connection).names
                if not change.execute(**{name: values[name] for name in names}):
                    return at > 0
        return True

    def _execute_at_once(self, connection: BaseDatabaseWrapper, values: dict[str, Any]) -> bool:
        with connection.cursor() as cursor:
            self.on(connection).execute(cursor, values)
            return cursor.fetchone() is not None

    def _compile(self, connection: BaseDatabaseWrapper) -> _Compiled:
        steps: list[str] = []
        parameters: list[Any] = []
        for at, change in enumerate(self._changes):
            compiled = change.compile_after(f"step_{at - 1}" if at else "", connection)
            steps.append(f"step_{at} AS ({compiled.sql} RETURNING 1)")
            parameters += compiled.parameters
        return _Compiled(f"WITH {', '.join(steps)} SELECT 1 FROM step_0", parameters)  # noqa: S608 (as above)


def _exists(step: str) -> RawSQL:
    return RawSQL(f"EXISTS (SELECT 1 FROM {step})", (), output_field=models.BooleanField())  # noqa: S608, S611 (as above)
