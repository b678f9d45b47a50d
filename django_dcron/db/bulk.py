"""Statements that read or write thousands of rows, without the ORM's work for each value.

The ORM needs several times as long to prepare the values as the database to store them.

Invariants:

- Values are converted by their fields, as in the ORM. A value that occurs repeatedly in a column is
  converted once, so rows may share an object.
- A column may have any type that the driver can send, except arrays. For the types of this
  package's columns, this module writes the values faster than the driver does.
- A column that isn't given gets the default of its field.
- PostgreSQL gets an array for each column, SQLite executes one prepared statement for all rows, and
  MariaDB gets one list of rows. A column whose values are all equal is sent as one value, except to
  SQLite.
- Names of tables and columns come from the models. All values are parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial
from itertools import chain, repeat
from typing import Any, NamedTuple
from uuid import UUID

from django.db import connections, models
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models.expressions import RawSQL

from django_dcron.db.statements import Select

Columns = Mapping[str, Sequence[Any]]
"""The values of each column, by the attribute name of its field. The key comes first."""


def fetch_rows(query: Select, **values: Any) -> Iterable[tuple[Any, ...]]:
    """Return the rows of a prepared query."""
    connection = connections[query.using]
    compiled = query.compiled_for(connection)
    with compiled.execute(connection, values) as cursor:
        columns: list[Sequence[Any]] = list(zip(*cursor.fetchall(), strict=True))
    if columns:
        for column in compiled.columns_of(connection):
            convert = partial(column.convert, connection=connection)
            columns[column.position] = _each_once(convert, columns[column.position])
    return zip(*columns, strict=True)


def with_keys(rows: models.QuerySet[Any], keys: Sequence[UUID]) -> models.QuerySet[Any]:
    """Return the ``rows`` of one table with these keys.

    The ORM and the driver would convert each key separately, so PostgreSQL gets one text.
    """
    connection = connections[rows.db]
    if connection.vendor != "postgresql":
        return rows.filter(pk__in=keys)
    key = rows.model._meta.pk
    column = f"{_table(rows.model, connection)}.{connection.ops.quote_name(key.column)}"
    array = f"{{{','.join(each.hex for each in keys)}}}"
    condition = f"{column} = ANY(%s::{key.db_type(connection)}[])"
    return rows.filter(RawSQL(condition, [array], output_field=models.BooleanField()))  # noqa: S611 (names of our columns)  # nosec B611


def insert_new(model: type[models.Model], columns: Columns, using: str) -> int:
    """Insert the rows that violate no unique constraint. Return their number."""
    connection = connections[using]
    given = [_Column.of(model, name, values, connection) for name, values in columns.items()]
    number = len(given[0].values)
    written = [column for column in given if not column.is_null] + [
        _Column.of(model, field.attname, [field.get_default()] * number, connection)
        for field in model._meta.local_concrete_fields
        if field.attname not in columns and field.get_default() is not None
    ]
    names = ", ".join(column.name for column in written)
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            arrays, constants = _arrays_and_constants(written)
            names = ", ".join(column.name for column in [*arrays, *constants])
            values = ", ".join(
                [*(f"new.{column.name}" for column in arrays), *map(_parameter, constants)]
            )
            cursor.execute(
                f"INSERT INTO {_table(model, connection)} ({names}) "  # noqa: S608  # nosec B608
                f"SELECT {values} FROM {_unnest(arrays)} ON CONFLICT DO NOTHING",
                [*(column.values[0] for column in constants), *map(_array, arrays)],
            )
        elif connection.vendor == "sqlite":
            cursor.executemany(
                f"INSERT INTO {_table(model, connection)} ({names}) "  # noqa: S608  # nosec B608
                f"VALUES {_placeholders(written)} ON CONFLICT DO NOTHING",
                _rows(written),
            )
        else:
            arrays, constants = _arrays_and_constants(written)
            names = ", ".join(column.name for column in [*arrays, *constants])
            values = ", ".join(
                [*(f"listed.{column.name}" for column in arrays), *repeat("%s", len(constants))]
            )
            cursor.execute(
                f"INSERT IGNORE INTO {_table(model, connection)} ({names}) "  # noqa: S608  # nosec B608
                f"{_listed(arrays)} SELECT {values} FROM listed",
                [*_flat(arrays), *(column.values[0] for column in constants)],
            )
        return int(cursor.rowcount)


def update_by_key(model: type[models.Model], columns: Columns, using: str) -> None:
    """Write the columns after the first one to the rows whose key is in the first one."""
    connection = connections[using]
    key, *changed = given = [
        _Column.of(model, name, values, connection) for name, values in columns.items()
    ]
    table = _table(model, connection)
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            arrays, constants = _arrays_and_constants(given)
            changes = [f"{column.name} = {_parameter(column)}" for column in constants]
            changes += [f"{column.name} = new.{column.name}" for column in arrays[1:]]
            cursor.execute(
                f"UPDATE {table} SET {', '.join(changes)} FROM {_unnest(arrays)} "  # noqa: S608  # nosec B608
                f"WHERE {table}.{key.name} = new.{key.name}",
                [*(column.values[0] for column in constants), *map(_array, arrays)],
            )
        elif connection.vendor == "sqlite":
            changes = [f"{column.name} = %s" for column in changed]
            cursor.executemany(
                f"UPDATE {table} SET {', '.join(changes)} WHERE {key.name} = %s",  # noqa: S608  # nosec B608
                _rows([*changed, key]),
            )
        else:
            arrays, constants = _arrays_and_constants(given)
            changes = [f"{table}.{column.name} = new.{column.name}" for column in arrays[1:]]
            changes += [f"{table}.{column.name} = %s" for column in constants]
            # The list comes first, and each row is found by its key: a scan of the table would wait
            # for rows that other transactions have locked.
            cursor.execute(
                f"UPDATE ({_listed(arrays)} SELECT * FROM listed) AS new "  # noqa: S608  # nosec B608
                f"STRAIGHT_JOIN {table} FORCE INDEX (PRIMARY) "
                f"ON {table}.{key.name} = new.{key.name} SET {', '.join(changes)}",
                [*_flat(arrays), *(column.values[0] for column in constants)],
            )


class _Column(NamedTuple):
    name: str
    """The quoted name."""
    type_name: str
    """The type of a parameter on PostgreSQL."""
    values: Sequence[Any]
    """The values for the driver."""
    is_constant: bool
    is_null: bool
    """Whether all values are null, as they are without the column."""

    @classmethod
    def of(
        cls,
        model: type[models.Model],
        name: str,
        values: Sequence[Any],
        connection: BaseDatabaseWrapper,
    ) -> _Column:
        column: Any = model._meta.get_field(name)
        field = column.target_field if column.remote_field else column  # converts the values
        type_name = str(field.cast_db_type(connection))
        # A cast to a limited length would silently shorten the text.
        type_name = "text" if type_name.startswith("varchar") else type_name
        is_constant = _are_equal(values)
        if is_constant:
            value = field.get_db_prep_save(values[0], connection)
            return cls(
                connection.ops.quote_name(column.column),
                type_name,
                [value] * len(values),
                True,
                value is None,
            )
        prepared = _each_once(lambda value: field.get_db_prep_save(value, connection), values)
        return cls(connection.ops.quote_name(column.column), type_name, prepared, False, False)


def _are_equal(values: Sequence[Any]) -> bool:
    """Return whether the values are equal and of one type. In JSON, ``True`` isn't ``1``.

    Containers may have elements of different types, so only the same object or an empty one counts.
    """
    first = values[0]
    if first and isinstance(first, (list, tuple, dict)):
        return all(value is first for value in values)
    return not any(value is not first and value != first for value in values) and (
        len({*map(type, values)}) == 1
    )


def _each_once(convert: Callable[[Any], Any], values: Sequence[Any]) -> list[Any]:
    """Return the converted values. Equal values are converted once."""
    try:
        distinct = set(values)
    except TypeError:  # not hashable, for example a list
        return [convert(value) for value in values]
    types = {*map(type, values)} - {type(None)}
    if len(distinct) == len(values) or len(types) > 1 or tuple in types:
        return [convert(value) for value in values]
    converted = {value: convert(value) for value in distinct}
    return [converted[value] for value in values]


def _table(model: type[models.Model], connection: BaseDatabaseWrapper) -> str:
    return connection.ops.quote_name(model._meta.db_table)


def _rows(columns: Sequence[_Column]) -> list[tuple[Any, ...]]:
    return list(zip(*(column.values for column in columns), strict=True))


def _placeholders(columns: Sequence[_Column], rows: int = 1) -> str:
    row = f"({', '.join(repeat('%s', len(columns)))})"
    return ", ".join(repeat(row, rows))


def _arrays_and_constants(columns: Sequence[_Column]) -> tuple[list[_Column], list[_Column]]:
    """Return the columns to send as arrays or lists, and those to send as one value.

    The key is an array, even of one element.
    """
    key, *others = columns
    arrays = [column for column in others if not column.is_constant]
    return [key, *arrays], [column for column in others if column.is_constant]


# --- MariaDB --------------------------------------------------------------------------------------


def _listed(columns: Sequence[_Column]) -> str:
    """Return a WITH clause that defines ``listed``: the table of these columns' values."""
    names = ", ".join(column.name for column in columns)
    return f"WITH listed ({names}) AS (VALUES {_placeholders(columns, len(columns[0].values))})"


def _flat(columns: Sequence[_Column]) -> Iterable[Any]:
    """Return the parameters of ``_listed``."""
    return chain.from_iterable(_rows(columns))


# --- PostgreSQL -----------------------------------------------------------------------------------


def _parameter(column: _Column) -> str:
    return f"%s::{column.type_name}"


def _unnest(columns: Sequence[_Column]) -> str:
    """Return a FROM item that defines ``new``: the table of these columns' values."""
    arrays = ", ".join(f"%s::{column.type_name}[]" for column in columns)
    names = ", ".join(column.name for column in columns)
    return f"unnest({arrays}) AS new ({names})"


def _array(column: _Column) -> str | list[Any]:
    """Return the values as the text of an array, or as a list if their type isn't known here.

    The driver takes ten times as long for a list.
    """
    own_type, *others = {*map(type, column.values)} - {type(None)} or {str}
    # A subclass counts, too: Django passes integers to psycopg as subclasses of ``int``.
    writers = (write for kind, write in _ELEMENTS.items() if issubclass(own_type, kind))
    write = next(writers, None)
    if others or write is None:
        return list(column.values)
    texts = _each_once(lambda value: "NULL" if value is None else write(value), column.values)
    return f"{{{','.join(texts)}}}"


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


_ELEMENTS: dict[type, Callable[[Any], str]] = {
    UUID: lambda value: value.hex,
    bool: str,
    datetime: datetime.isoformat,
    int: int.__repr__,
    str: _quoted,
}
"""How to write an element of an array, by its type."""
