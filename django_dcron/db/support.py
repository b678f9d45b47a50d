"""Databases that django-dcron supports."""

from __future__ import annotations

from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.db import connections

REMEDY = (
    "Use PostgreSQL, MariaDB or SQLite. To keep the project's database, route only the tables of "
    "django-dcron to another one with DATABASE_ROUTERS."
)


def unsupported_database(using: str) -> str | None:
    """Return the name and version of a database that django-dcron doesn't support, or None.

    Connects only on MySQL and MariaDB, to distinguish them.
    """
    connection: Any = connections[using]
    if connection.vendor in ("postgresql", "sqlite"):
        return None
    if connection.vendor != "mysql":
        return str(connection.display_name)
    if connection.mysql_is_mariadb:
        return None
    return f"MySQL {connection.mysql_server_info}"


def require_supported_database(using: str) -> None:
    """Raise ``ImproperlyConfigured`` if django-dcron doesn't support the database."""
    if name := unsupported_database(using):
        problem = f"The database {using!r} is {name}, which isn't supported."
        raise ImproperlyConfigured(f"{problem} {REMEDY}")
