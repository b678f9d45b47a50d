"""Summarize several sets of rows in one statement: counts, sums and first times.

Invariants:

- Each set is read once, as a derived table with its own limit and index.
- One statement is sent to each database; with one database, there is one round trip.
- A set without rows yields zeros, and None as its first time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from django.core.exceptions import EmptyResultSet
from django.db import connections
from django.db.models import DateTimeField, F, QuerySet, Value

_TIME = Value(None, output_field=DateTimeField())
"""Selects the converters of a datetime that raw SQL returns."""
_ROWS = "rows"
_FIRST = "first"
"""The columns of the number of rows and of the earliest time."""


@dataclass(frozen=True, slots=True)
class Aggregate:
    """An SQL function of all rows of a set."""

    sql: str
    """The function, with ``{}`` in place of the column."""
    of: Any
    """The name of a column, or an expression."""


def count(of: Any) -> Aggregate:
    """Count the rows in which ``of`` isn't null."""
    return Aggregate("COUNT({})", of)


def count_distinct(of: Any) -> Aggregate:
    """Count the distinct values, without null."""
    return Aggregate("COUNT(DISTINCT {})", of)


def total(of: Any) -> Aggregate:
    """Add up the values."""
    return Aggregate("COALESCE(SUM({}), 0)", of)


@dataclass(frozen=True, slots=True)
class SummaryQuery:
    """A queryset to summarize."""

    rows: QuerySet[Any]
    limit: int | None = None
    """The maximum number of rows to read."""
    numbers: Mapping[str, Aggregate] = field(default_factory=dict)
    """The numbers to compute besides the number of rows, by name."""
    first: Any = None
    """The name of a column, or an expression, whose earliest time to find."""

    @property
    def aggregates(self) -> dict[str, Aggregate]:
        first = {} if self.first is None else {_FIRST: Aggregate("MIN({})", self.first)}
        return {**self.numbers, **first}


@dataclass(frozen=True, slots=True)
class Summary:
    number: int = 0
    """The number of rows, at most the limit."""
    numbers: Mapping[str, int] = field(default_factory=dict)
    first: datetime | None = None


def summarize(*sets: SummaryQuery) -> list[Summary]:
    """Return the summary of each set, in the same order."""
    by_database: defaultdict[str, list[int]] = defaultdict(list)
    for index, each in enumerate(sets):
        by_database[each.rows.db].append(index)
    found: dict[int, Summary] = {}
    for using, indexes in by_database.items():
        summaries = _read(using, [sets[index] for index in indexes])
        found |= zip(indexes, summaries, strict=True)
    return [found[index] for index in range(len(sets))]


def _read(using: str, sets: Sequence[SummaryQuery]) -> Iterator[Summary]:
    columns: list[tuple[int, str]] = []
    selected, tables, values = [], [], []
    quote = connections[using].ops.quote_name
    for index, each in enumerate(sets):
        try:
            sql, params = _compiled(each, using)
        except EmptyResultSet:
            continue
        functions = {_ROWS: "COUNT(*)"} | {
            name: aggregate.sql.format(quote(f"dcron_{name}"))
            for name, aggregate in each.aggregates.items()
        }
        outer = ", ".join(
            f"{function} AS {quote(f's{index}_{name}')}" for name, function in functions.items()
        )
        table = f"(SELECT {outer} FROM ({sql}) {quote(f'r{index}')})"  # noqa: S608  # nosec B608
        tables.append(f"{table} {quote(f't{index}')}")
        selected += [quote(f"s{index}_{name}") for name in functions]
        columns += [(index, name) for name in functions]
        values += params
    found: list[dict[str, Any]] = [{_ROWS: 0, **dict.fromkeys(each.numbers, 0)} for each in sets]
    if tables:
        with connections[using].cursor() as cursor:
            # The names and the compiled querysets contain no values.
            sql = f"SELECT {', '.join(selected)} FROM {' CROSS JOIN '.join(tables)}"  # noqa: S608  # nosec B608
            cursor.execute(sql, values)
            row = cursor.fetchone()
        for (index, name), value in zip(columns, row, strict=True):
            found[index][name] = _time(value, using) if name == _FIRST else int(value)
    return (
        Summary(values.pop(_ROWS), first=values.pop(_FIRST, None), numbers=values)
        for values in found
    )


def _compiled(each: SummaryQuery, using: str) -> tuple[str, list[Any]]:
    """Return the SQL of the rows with one column for each of their aggregates."""
    expressions: dict[str, Any] = {
        f"dcron_{name}": F(of) if isinstance(of := aggregate.of, str) else of
        for name, aggregate in each.aggregates.items()
    }
    expressions = expressions or {f"dcron_{_ROWS}": Value(1)}
    rows = each.rows.annotate(**expressions).values(*expressions)
    sql, params = rows[: each.limit].query.get_compiler(using).as_sql()
    return sql, list(params)


def _time(value: Any, using: str) -> datetime | None:
    for convert in connections[using].ops.get_db_converters(_TIME):
        value = convert(value, _TIME, connections[using])
    return value  # type: ignore[no-any-return]  # converters are untyped
