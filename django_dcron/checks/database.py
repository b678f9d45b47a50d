"""Check that the database is one that django-dcron supports."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from django.apps import AppConfig
from django.core.checks import CheckMessage, Tags, register
from django.db import DatabaseError, InterfaceError, connections
from django.db.migrations.loader import MigrationLoader

from django_dcron.checks.reporting import node_start_problem, node_starts, with_docs_link
from django_dcron.db.support import REMEDY, unsupported_database


@register(Tags.database)
def check_database(
    app_configs: Sequence[AppConfig] | None, databases: Sequence[str] | None = None, **options: Any
) -> list[CheckMessage]:
    """Check the database of django-dcron's tables, for ``check --database`` and ``migrate``."""
    from django_dcron.db.routing import alias_for
    from django_dcron.models import Job

    using = alias_for(Job)
    return [*map(with_docs_link, _problems(using))] if using in (databases or ()) else []


def check_database_at_node_start() -> Iterator[CheckMessage]:
    """Check the database where a node starts. Other commands don't connect to check it."""
    from django_dcron.db.routing import alias_for
    from django_dcron.models import Job

    if node_starts():
        try:
            yield from _problems(alias_for(Job))
        except (DatabaseError, InterfaceError):
            return  # The node reports an unreachable database itself.


def has_current_tables(using: str) -> bool:
    """Return whether the database has the tables of this release.

    ``migrate`` runs the checks before it creates or changes the tables.
    """
    from django_dcron.models import Job

    connection = connections[using]
    if Job._meta.db_table not in connection.introspection.table_names():
        return False
    loader = MigrationLoader(connection)
    latest = loader.graph.leaf_nodes(Job._meta.app_label)
    return all(migration in loader.applied_migrations for migration in latest)


def _problems(using: str) -> Iterator[CheckMessage]:
    if name := unsupported_database(using):
        yield node_start_problem(
            "E011", f"The database {using!r} is {name}, which isn't supported.", REMEDY
        )
