"""Say what to do about a database error that ended a command."""

from __future__ import annotations

import re

from django_dcron.db.errors import in_one_line
from django_dcron.utils.messages import with_full_stop

MISSING = re.compile(
    r"no such (table|column)"  # SQLite
    r"|(relation|column) .* does not exist"  # PostgreSQL
    r"|Table '.*' doesn't exist|Unknown column",  # MariaDB
    re.DOTALL,
)


def with_remedy(error: Exception) -> str:
    """Return the error's text in one line, followed by what to do about it."""
    return f"{with_full_stop(in_one_line(error))} {_remedy_for(error)}"


def _remedy_for(error: Exception) -> str:
    """Return what to do about a missing table or an unreachable database, in one sentence."""
    if MISSING.search(str(error)):
        return "Run manage.py migrate."
    return "Check that the database is running and that its settings are correct."
