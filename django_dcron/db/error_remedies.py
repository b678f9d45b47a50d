"""Recognize what a database error means for the user, and say what to do about it."""

from __future__ import annotations

import re
from dataclasses import dataclass

from django_dcron.db.contention import is_contention
from django_dcron.db.errors import code_of, in_one_line
from django_dcron.utils.messages import with_full_stop


@dataclass(frozen=True, slots=True)
class KnownError:
    remedy: str
    codes: frozenset[str | int]
    """PostgreSQL's SQLSTATEs and MariaDB's error numbers."""
    texts: re.Pattern[str]
    """The texts of such errors in English, because some have no code: those of SQLite, of wrapped
    errors, and of servers and poolers that refuse a connection.
    """

    def matches(self, error: Exception) -> bool:
        return code_of(error) in self.codes or bool(self.texts.search(str(error)))


MISSING_TABLE = KnownError(
    "Run manage.py migrate.",
    frozenset({"42P01", "42703", 1054, 1146}),
    re.compile(
        r"no such (table|column)"  # SQLite
        r"|(relation|column) .* does not exist"  # PostgreSQL
        r"|Table '.*' doesn't exist|Unknown column",  # MariaDB
        re.DOTALL,
    ),
)
READ_ONLY = KnownError(
    "Make the database writable, or connect to the primary server.",
    frozenset({"25006", 1036, 1792}),
    # Names of hosts and users may contain "read-only", too.
    re.compile(
        r"readonly database"  # SQLite
        r"|read[- ]only transaction|session is read-only"  # PostgreSQL, MariaDB
        r"|--\S*read[-_]only option|in read-only mode|Table '.*' is read only",  # MariaDB
        re.IGNORECASE,
    ),
)
DISK_FULL = KnownError(
    "Free space on the disk of the database.",
    frozenset({"53100", 1021, 1114}),
    re.compile(r"disk is full|No space left on device|The table .* is full", re.IGNORECASE),
)
NO_CONNECTION_LEFT = KnownError(
    "Close unused connections, or raise the connection limit of the database.",
    frozenset({"53300", 1040, 1203}),
    re.compile(
        r"too many (clients|connections)|too many active connections"
        r"|connection slots are reserved|max_user_connections"
        r"|no more connections allowed",  # PgBouncer
        re.IGNORECASE,
    ),
)
KNOWN_ERRORS = (MISSING_TABLE, READ_ONLY, DISK_FULL, NO_CONNECTION_LEFT)
END_LOCK = (
    "Try again. If it fails again, another session keeps tables of django_dcron locked. Find it "
    "with pg_blocking_pids (PostgreSQL), SHOW FULL PROCESSLIST (MariaDB) or lsof (SQLite); end it "
    "if necessary."
)


def accepts_no_connections(error: Exception) -> bool:
    """Return whether the database refuses a connection because it has reached its limit."""
    return NO_CONNECTION_LEFT.matches(error)


def with_remedy(error: Exception) -> str:
    """Return the error's text in one line, followed by what to do about it."""
    return f"{with_full_stop(in_one_line(error))} {remedy_for(error)}"


def remedy_for(error: Exception) -> str:
    """Return what to do about the error, in one sentence. It quotes nothing from the error."""
    for known in KNOWN_ERRORS:
        if known.matches(error):
            return known.remedy
    if is_contention(error):
        return END_LOCK
    return "Check that the database is running and that its settings are correct."
