"""Summarize several sets of rows in one statement: counts, sums and first times.

Invariants:

- Each set is read once, as a derived table with its own limit and index.
- One statement is sent to each database; with one database, there is one round trip.
- A set without rows yields zero, and None as its first time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.core.exceptions import EmptyResultSet
from django.db import connections
from django.db.models import DateTimeField, F, QuerySet, Value

_TIME = Value(None, output_field=DateTimeField())
"""Selects the converters of a datetime that raw SQL returns."""


@dataclass(frozen=True, slots=True)
class SummaryQuery:
    """A queryset to summarize.

    ``counted``, ``distinct``, ``also_distinct``, ``total`` and ``first`` are names of columns, or
    expressions. Those that are None aren't computed.
    """

    rows: QuerySet[Any]
    limit: int | None = None
    """The maximum number of rows to read."""
    counted: Any = None
    """Count the rows in which this isn't null."""
    distinct: Any = None
    """Count the distinct values, without null."""
    also_distinct: Any = None
    """Count the distinct values of a second column."""
    total: Any = None
    """Add up the values."""
    first: Any = None
    """Find the earliest time."""


@dataclass(frozen=True, slots=True)
class Summary:
    number: int = 0
    """The number of rows, at most the limit."""
    counted: int = 0
    distinct: int = 0
    also_distinct: int = 0
    total: int = 0
    first: datetime | None = None


_FUNCTIONS = {
    "counted": "COUNT({})",
    "distinct": "COUNT(DISTINCT {})",
    "also_distinct": "COUNT(DISTINCT {})",
    "total": "COALESCE(SUM({}), 0)",
    "first": "MIN({})",
}


def summarize(*sets: SummaryQuery) -> list[Summary]:
    """Return the summary of each set, in the same order."""
    by_database: defaultdict[str, list[int]] = defaultdict(list)
    for index, each in enumerate(sets):
        by_database[each.rows.db].append(index)
    found = [Summary()] * len(sets)
    for using, indexes in by_database.items():
        summaries = _read(using, [sets[index] for index in indexes])
        for index, summary in zip(indexes, summaries, strict=True):
            found[index] = summary
    return found


def _read(using: str, sets: Sequence[SummaryQuery]) -> Iterator[Summary]:
    columns: list[tuple[int, str]] = []
    selected, tables, values = [], [], []
    quote = connections[using].ops.quote_name
    for index, each in enumerate(sets):
        names = [name for name in _FUNCTIONS if getattr(each, name) is not None]
        try:
            sql, params = _compiled(each, names, using)
        except EmptyResultSet:
            continue
        functions = [_FUNCTIONS[name].format(quote(f"dcron_{name}")) for name in names]
        pairs = zip(["number", *names], ["COUNT(*)", *functions], strict=True)
        outer = ", ".join(f"{function} AS {quote(f's{index}_{name}')}" for name, function in pairs)
        table = f"(SELECT {outer} FROM ({sql}) {quote(f'r{index}')})"  # noqa: S608  # nosec B608
        tables.append(f"{table} {quote(f't{index}')}")
        selected += [quote(f"s{index}_{name}") for name in ("number", *names)]
        columns += [(index, name) for name in ("number", *names)]
        values += params
    found: list[dict[str, Any]] = [{} for _ in sets]
    if tables:
        with connections[using].cursor() as cursor:
            # The names and the compiled querysets contain no values.
            sql = f"SELECT {', '.join(selected)} FROM {' CROSS JOIN '.join(tables)}"  # noqa: S608  # nosec B608
            cursor.execute(sql, values)
            row = cursor.fetchone()
        for (index, name), value in zip(columns, row, strict=True):
            found[index][name] = _time(value, using) if name == "first" else int(value)
    return (Summary(**each) for each in found)


def _compiled(each: SummaryQuery, names: Sequence[str], using: str) -> tuple[str, list[Any]]:
    """Return the SQL of the rows with one column for each of ``names``."""
    expressions = {
        f"dcron_{name}": F(of) if isinstance(of := getattr(each, name), str) else of
        for name in names
    }
    expressions = expressions or {"dcron_number": Value(1)}
    rows = each.rows.annotate(**expressions).values(*expressions)
    sql, params = rows[: each.limit].query.get_compiler(using).as_sql()
    return sql, list(params)


def _time(value: Any, using: str) -> datetime | None:
    for convert in connections[using].ops.get_db_converters(_TIME):
        value = convert(value, _TIME, connections[using])
    return value  # type: ignore[no-any-return]  # converters are untyped
