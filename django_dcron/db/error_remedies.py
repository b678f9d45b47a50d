"""Say what to do about a database error that ended a command."""

from __future__ import annotations

import re

MISSING = re.compile(
    r"no such (table|column)"  # SQLite
    r"|(relation|column) .* does not exist"  # PostgreSQL
    r"|Table '.*' doesn't exist|Unknown column",  # MariaDB
    re.DOTALL,
)


def remedy_for(error: Exception) -> str:
    """Return what to do about a missing table or an unreachable database, in one sentence."""
    if MISSING.search(str(error)):
        return "Run manage.py migrate."
    return "Check that the database is running and that its settings are correct."
