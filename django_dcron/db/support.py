"""Databases that django-dcron supports, and how they must store times."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from django.conf import settings
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


class TimeZoneProblem(NamedTuple):
    """A setting that makes the database store local times, some of which occur twice a year."""

    setting: str
    consequence: str
    remedy: str


def time_zone_problem(using: str) -> TimeZoneProblem | None:
    """Return why the database would store local times, or None. Doesn't connect."""
    if not settings.USE_TZ:
        return TimeZoneProblem(
            "USE_TZ is False", "Jobs can be neither saved nor run.", "Set USE_TZ = True."
        )
    connection = connections[using]
    zone = connection.settings_dict["TIME_ZONE"]
    if zone is None or connection.features.supports_timezones:
        return None
    try:
        is_utc = ZoneInfo(zone).utcoffset(None) == timedelta()
    except (ZoneInfoNotFoundError, ValueError):
        return None  # Django reports an unknown zone when it connects.
    if is_utc:
        return None
    return TimeZoneProblem(
        f"TIME_ZONE of the database {using!r} is {zone!r}",
        "Jobs would run at wrong times.",
        "Remove TIME_ZONE from this database in DATABASES, or route only the tables of "
        "django-dcron to another one with DATABASE_ROUTERS.",
    )
