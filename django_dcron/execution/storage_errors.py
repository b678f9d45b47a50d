"""Classify why a database refuses to store an outcome: temporarily, or always because of its texts.

A full disk, a read-only server or a lost answer is temporary: the outcome is stored later with its
texts. A character that the table's encoding lacks, or a packet beyond the server's limit, is always
refused.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Any, cast

from django.db import DataError, InterfaceError, InternalError, OperationalError, connections
from django.db.utils import Error

from django_dcron.runs.completion import Ending


class Refusal(Enum):
    TEMPORARY = auto()
    """The database can't store anything now, or can't store anything that needs space."""
    TEXTS = auto()
    """The database can never store these texts."""
    UNKNOWN = auto()


TEXTS_STATES = ("22", "54")
"""SQLSTATE classes of PostgreSQL: data exception, program limit exceeded."""
TEMPORARY_STATES = (
    "08",  # connection
    "25",  # transaction state, for example read-only
    "28",  # authorization
    "40",  # rollback
    "42501",  # no permission
    "42703",  # no such column: a migration is running
    "42P01",  # no such table: a migration is running
    "53",  # resources, for example a full disk
    "55",  # wrong state of an object, for example locked
    "57",  # intervention: shutdown, statement timeout
    "58",  # system error
)
"""SQLSTATEs of PostgreSQL, or the classes that they begin with."""
TEXTS_NUMBERS = frozenset({1118, 1153, 1300, 1301, 1366, 1406, 3988})
"""Errors of MariaDB: row too large, packet too large, invalid characters, data too long."""
TEMPORARY_NUMBERS = frozenset(
    {1020, 1021, 1026, 1030, 1036, 1040, 1044, 1045, 1053, 1054, 1114, 1142, 1146}
    | {1158, 1159, 1160, 1161, 1180, 1203, 1205, 1213, 1226, 1290, 1317, 1792, 1836}
    | {1927, 1969, 3024}
)
"""Contention, disk or table full, storage engine, read-only, too many connections, no access,
shutdown, no such column or table, network, killed, timeout."""
CLIENT_NUMBERS = range(2000, 3000)
"""Errors of MariaDB's client: the connection was lost, couldn't be opened, or is out of sync."""
TEXTS_CODES = frozenset({18})
"""Error code of SQLite: too big."""
TEMPORARY_CODES = frozenset({3, 5, 6, 7, 8, 10, 11, 13, 14, 15})
"""Permission, busy, locked, out of memory, read-only, I/O error, corrupt, full, can't open, locking
protocol."""


def refusal_of(error: Exception, ending: Ending, using: str) -> Refusal:
    """Return why the database that raised ``error`` didn't store ``ending``."""
    wrapped = isinstance(error, Error)
    # Django doesn't wrap exceptions of MySQLdb's ``cursor.close()``.
    of_driver = wrapped or isinstance(error, cast(Any, connections[using]).Database.Error)
    if not of_driver or isinstance(error, DataError):
        return Refusal.TEXTS  # the driver couldn't send the texts, or the server can't store them
    cause = error.__cause__ if wrapped else error  # the driver's exception
    state = getattr(cause, "sqlstate", None) or getattr(cause, "pgcode", None)
    if state:
        return _refusal(state.startswith(TEXTS_STATES), state.startswith(TEMPORARY_STATES))
    if (code := getattr(cause, "sqlite_errorcode", None)) is not None:
        return _refusal(code & 0xFF in TEXTS_CODES, code & 0xFF in TEMPORARY_CODES)
    number = error.args[0] if error.args else None
    if isinstance(number, int):
        # If the server rejects a packet as too large, the client reports a lost connection.
        if number in CLIENT_NUMBERS:
            return Refusal.TEXTS if _exceeds_packet(ending, using) else Refusal.TEMPORARY
        return _refusal(number in TEXTS_NUMBERS, number in TEMPORARY_NUMBERS)
    if cause is not None and isinstance(error, (OperationalError, InterfaceError)):
        return Refusal.TEMPORARY  # no answer from the server: the connection was lost
    return (
        Refusal.TEMPORARY if isinstance(error, (InterfaceError, InternalError)) else Refusal.UNKNOWN
    )


def _refusal(because_of_texts: bool, temporary: bool) -> Refusal:
    if because_of_texts:
        return Refusal.TEXTS
    return Refusal.TEMPORARY if temporary else Refusal.UNKNOWN


def _exceeds_packet(ending: Ending, using: str) -> bool:
    """Return whether the texts exceed the server's packet limit. Raises the database's errors."""
    connection = connections[using]
    if connection.vendor != "mysql":
        return False
    connection.close()
    with connection.cursor() as cursor:
        cursor.execute("SELECT @@max_allowed_packet")
        limit = int(cursor.fetchone()[0])
    texts = (value for value in ending.columns().values() if isinstance(value, str))
    # Escaping may double the size.
    return sum(len(text.encode(errors="replace")) for text in texts) > limit // 2
