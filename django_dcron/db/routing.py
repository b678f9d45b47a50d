"""The databases of the models: their aliases, names and tables."""

from __future__ import annotations

from django.db import DatabaseError, InterfaceError, connections, models, router


def alias_for(model: type[models.Model]) -> str:
    """Return the database that rows of ``model`` are written to.

    Reads that lead to decisions use it too, not a replica.
    """
    return router.db_for_write(model)


def database_name(using: str) -> str:
    """Return the database for display: ``database default (postgresql shop on db1:5432)``.

    The text contains no user or password.
    """
    connection = connections[using]
    settings = connection.settings_dict
    # The name is empty if a PostgreSQL service defines it.
    name = f" {settings['NAME']}" if settings["NAME"] else ""
    address = ":".join(str(settings[part]) for part in ("HOST", "PORT") if settings.get(part))
    return f"database {using} ({connection.vendor}{name}{' on ' if address else ''}{address})"


def lacks_table(model: type[models.Model], using: str) -> bool:
    """Return whether the database answers but lacks the model's table: no migration was applied."""
    connection = connections[using]
    if connection.in_atomic_block and connection.needs_rollback:
        return False
    try:
        return model._meta.db_table not in connection.introspection.table_names()
    except (DatabaseError, InterfaceError):
        return False
