"""Recognize what a database error means for the user, and say what to do about it."""

from __future__ import annotations

import re

from django_dcron.db.contention import is_contention
from django_dcron.db.errors import in_one_line
from django_dcron.utils.messages import with_full_stop

MISSING = re.compile(
    r"no such (table|column)"  # SQLite
    r"|(relation|column) .* does not exist"  # PostgreSQL
    r"|Table '.*' doesn't exist|Unknown column",  # MariaDB
    re.DOTALL,
)

# Names of hosts and users may contain "read-only", too.
READ_ONLY = re.compile(
    r"readonly database"  # SQLite
    r"|read[- ]only transaction|session is read-only"  # PostgreSQL, MariaDB
    r"|--\S*read[-_]only option|in read-only mode|Table '.*' is read only",  # MariaDB
    re.IGNORECASE,
)
DISK_FULL = re.compile(r"disk is full|No space left on device|The table .* is full", re.IGNORECASE)
NO_CONNECTION_LEFT = re.compile(
    r"too many (clients|connections)|too many active connections"
    r"|connection slots are reserved|max_user_connections"
    r"|no more connections allowed",  # PgBouncer
    re.IGNORECASE,
)
END_LOCK = (
    "Try again. If it fails again, another session keeps tables of django_dcron locked. Find it "
    "with pg_blocking_pids (PostgreSQL), SHOW FULL PROCESSLIST (MariaDB) or lsof (SQLite); end it "
    "if necessary."
)


def accepts_no_connections(error: Exception) -> bool:
    """Return whether the database refuses a connection because it has reached its limit."""
    return bool(NO_CONNECTION_LEFT.search(str(error)))


def with_remedy(error: Exception) -> str:
    """Return the error's text in one line, followed by what to do about it."""
    return f"{with_full_stop(in_one_line(error))} {remedy_for(error)}"


def remedy_for(error: Exception) -> str:
    """Return what to do about the error, in one sentence. It quotes nothing from the error."""
    if MISSING.search(str(error)):
        return "Run manage.py migrate."
    if READ_ONLY.search(str(error)):
        return "Make the database writable, or connect to the primary server."
    if DISK_FULL.search(str(error)):
        return "Free space on the disk of the database."
    if accepts_no_connections(error):
        return "Close unused connections, or raise the connection limit of the database."
    if is_contention(error):
        return END_LOCK
    return "Check that the database is running and that its settings are correct."
