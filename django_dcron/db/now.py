"""The time of the database: in SQL, and read in one round trip."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import cache
from typing import Any

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models.functions import Now
from django.db.models.sql import Query

from django_dcron.db import clock

FIXED_TIME_SQL = {
    "postgresql": "CAST(%s AS timestamp with time zone)",
    "mysql": "CAST(%s AS datetime(6))",
}
"""The SQL of a fixed test time, for databases that need an explicit type."""


class UtcNow(Now):
    """Django's ``Now``, but in UTC on MariaDB, and in Django's own format on SQLite.

    On MariaDB, Django's function returns the time in the session's time zone. Sessions may have
    different time zones, and their times jump at daylight saving changes.

    On SQLite, times are texts. Django writes ``12:00:00`` and ``12:00:00.052000`` for values from
    Python, but its function returns ``12:00:00.000`` and ``12:00:00.052``. A filter by a time that
    was read would then miss its row.
    """

    def as_sqlite(self, compiler: Any, connection: BaseDatabaseWrapper, **context: Any) -> Any:
        text = "STRFTIME('%%%%Y-%%%%m-%%%%d %%%%H:%%%%M:%%%%f000', 'NOW')"
        return self.as_sql(
            compiler, connection, template=f"REPLACE({text}, '.000000', '')", **context
        )

    def as_mysql(self, compiler: Any, connection: BaseDatabaseWrapper, **context: Any) -> Any:
        return self.as_sql(compiler, connection, template="UTC_TIMESTAMP(6)", **context)

    def as_sql(self, compiler: Any, connection: BaseDatabaseWrapper, **context: Any) -> Any:  # type: ignore[override]
        at = clock.fixed_at
        if at is None:
            return super().as_sql(compiler, connection, **context)
        return FIXED_TIME_SQL.get(connection.vendor, "%s"), (
            connection.ops.adapt_datetimefield_value(at),
        )


_NOW = UtcNow()


@cache
def _select_now(using: str, vendor: str) -> str:
    """Return the statement that reads the time of the database."""
    sql, _ = Query(None).get_compiler(using).compile(_NOW)
    return f"SELECT {sql}"


def database_now(using: str) -> datetime:
    """Return the time of database ``using``, aware UTC, in one round trip."""
    if (at := clock.fixed_at) is not None:
        return at
    connection = connections[using]
    with connection.cursor() as cursor:
        cursor.execute(_select_now(using, connection.vendor), ())
        value: Any = cursor.fetchone()[0]
    for converter in connection.ops.get_db_converters(_NOW):
        value = converter(value, _NOW, connection)
    return value.astimezone(UTC)  # type: ignore[no-any-return]  # converters are untyped
