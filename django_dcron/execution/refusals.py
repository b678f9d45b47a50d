"""Why a database refuses to store an outcome: because it can't now, or because of texts that it can never store.

A full disk, a read-only server or a lost answer pass, and the outcome is stored with its texts then. A character that the
table's encoding lacks stays refused, as does a packet beyond the server's limit.
"""

from __future__ import annotations

from enum import Enum, auto

from django.db import DataError, InterfaceError, InternalError, OperationalError, connections
from django.db.utils import Error

from django_dcron.conclusion import Ending


class Refusal(Enum):
    NOW = auto()
    """The database can't store anything now, or nothing that takes room."""
    TEXTS = auto()
    """The database can never store these texts."""
    UNKNOWN = auto()


TEXTS_STATES = ("22", "54")
"""PostgreSQL's classes: data exception, program limit exceeded."""
NOW_STATES = ("08", "25", "28", "40", "42501", "42703", "42P01", "53", "55", "57", "58")
"""Connection, transaction state (read-only), authorization, rollback, no permission or no such column or table (a migration is
under way), resources (disk full), wrong state, intervention (shutdown, statement timeout), system error."""
TEXTS_NUMBERS = frozenset({1118, 1153, 1300, 1301, 1366, 1406, 3988})
"""MariaDB's and MySQL's: row too large, packet too large (twice), characters, data too long."""
NOW_NUMBERS = frozenset(
    {1020, 1021, 1026, 1030, 1036, 1040, 1044, 1045, 1053, 1054, 1114, 1142, 1146, 1158, 1159, 1160, 1161}
    | {1180, 1203, 1205, 1213, 1226, 1290, 1317, 1792, 1836, 1927, 1969, 3024}
)
"""Contention, disk or table full, storage engine, read-only, too many connections, no access, shutdown, no such column or table,
network, killed, timeout."""
CLIENT_NUMBERS = range(2000, 3000)
"""Its client's: the connection was lost, or could not be made."""
TEXTS_CODES = frozenset({18})
"""SQLite's: too big."""
NOW_CODES = frozenset({3, 5, 6, 7, 8, 10, 11, 13, 14, 15})
"""Permission, busy, locked, out of memory, read-only, I/O error, corrupt, full, can't open, locking protocol."""


def refusal_of(error: Exception, ending: Ending, using: str) -> Refusal:
    """Why the database that raised ``error`` did not store ``ending``."""
    if not isinstance(error, Error) or isinstance(error, DataError):
        return Refusal.TEXTS  # a driver could not even send it
    cause = error.__cause__  # the driver's own
    state = getattr(cause, "sqlstate", None) or getattr(cause, "pgcode", None)
    if state:
        return _first_of(state.startswith(TEXTS_STATES), state.startswith(NOW_STATES))
    if (code := getattr(cause, "sqlite_errorcode", None)) is not None:
        return _first_of(code & 0xFF in TEXTS_CODES, code & 0xFF in NOW_CODES)
    number = error.args[0] if error.args else None
    if isinstance(number, int):
        if number in CLIENT_NUMBERS:  # also what is seen of a server that hangs up on a packet too large
            return Refusal.TEXTS if _exceeds_packet(ending, using) else Refusal.NOW
        return _first_of(number in TEXTS_NUMBERS, number in NOW_NUMBERS)
    if cause is not None and isinstance(error, (OperationalError, InterfaceError)):
        return Refusal.NOW  # the server has said nothing: it was lost
    return Refusal.NOW if isinstance(error, (InterfaceError, InternalError)) else Refusal.UNKNOWN


def _first_of(texts: bool, now: bool) -> Refusal:
    return Refusal.TEXTS if texts else Refusal.NOW if now else Refusal.UNKNOWN


def _exceeds_packet(ending: Ending, using: str) -> bool:
    """Whether the texts are more than the server takes in one packet. Raises the database's errors."""
    connection = connections[using]
    if connection.vendor != "mysql":
        return False
    connection.close()
    with connection.cursor() as cursor:
        cursor.execute("SELECT @@max_allowed_packet")
        limit = int(cursor.fetchone()[0])
    texts = (value for value in ending.columns().values() if isinstance(value, str))
    return (
        sum(len(text.encode(errors="replace")) for text in texts) > limit // 2
    )  # escaped, it may be twice as long
