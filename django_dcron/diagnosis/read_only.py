"""Detect whether a database refuses writes, without writing to it."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Any

from django.db import DatabaseError, connections

MARIADB = ("@@global.read_only", "@@session.tx_read_only", "@@session.transaction_read_only")
"""The last two are the same variable in different releases of MariaDB."""


def refuses_writes(using: str) -> bool:
    """Return whether the session of ``using`` is read-only; False if this is unknown."""
    connection = connections[using]
    match connection.vendor:
        case "postgresql":
            return _is_on(
                connection,
                "SELECT pg_is_in_recovery() OR current_setting('transaction_read_only') = 'on'",
            )
        case "mysql":
            return any(_is_on(connection, f"SELECT {variable}") for variable in MARIADB)
        case "sqlite":
            return _is_on(connection, "PRAGMA query_only") or _is_write_protected(connection)
    return False


def _is_on(connection: Any, sql: str) -> bool:
    """Return whether the statement yields a true value; False if it fails."""
    with suppress(DatabaseError), connection.cursor() as cursor:
        cursor.execute(sql)
        row = cursor.fetchone()
        return bool(row and row[0] not in (0, "0", "OFF", "off"))
    return False


def _is_write_protected(connection: Any) -> bool:
    """Return whether this process's user can't write SQLite's file or its directory.

    SQLite keeps its journal in the directory.
    """
    name = str(connection.settings_dict["NAME"])
    if name.startswith("file:"):
        return "mode=ro" in name or "immutable=1" in name
    if not os.path.exists(name):  # in memory
        return False
    return not (os.access(name, os.W_OK) and os.access(os.path.dirname(name) or ".", os.W_OK))
