"""Database errors: which of them mean that the database is unavailable, and their text for logs."""

from __future__ import annotations

from django.db import InterfaceError, InternalError, OperationalError

from django_dcron.utils.url_credentials import without_credentials

UNAVAILABLE = (OperationalError, InterfaceError, InternalError)
"""The exceptions of a database that is unreachable, locked or read-only. PostgreSQL raises
InternalError when it is read-only after a failover.
"""


def code_of(error: BaseException) -> str | int | None:
    """Return the SQLSTATE of PostgreSQL or the error number of MariaDB, if the error has one.

    Unlike its text, the code doesn't depend on the server's language.
    """
    cause = error.__cause__  # the driver's error
    if state := getattr(cause, "sqlstate", None) or getattr(cause, "pgcode", None):
        return str(state)
    number = error.args[0] if error.args else None
    return number if isinstance(number, int) else None


def in_one_line(error: BaseException) -> str:
    """Return the error's text in one line for a log or column, without credentials in URLs.

    Texts of database errors have several lines, or none.
    """
    return without_credentials(" ".join(str(error).split())) or type(error).__name__
