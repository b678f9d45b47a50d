"""Check that the database is reachable and has the tables of this release."""

from __future__ import annotations

import pkgutil
from functools import lru_cache
from importlib import import_module

from django.db import connections
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.recorder import MigrationRecorder

from django_dcron.db.routing import alias_for
from django_dcron.models import Run


def missing_migration() -> str | None:
    """Return the name of the latest migration if it isn't applied.

    Raises the database's errors, also if no migration was ever applied.
    """
    latest = _latest()
    if latest is None:  # the project has disabled the app's migrations
        Run.objects.using(alias_for(Run)).order_by("pk").first()
        return None
    applied = MigrationRecorder(connections[alias_for(Run)]).migration_qs
    return None if applied.filter(app=Run._meta.app_label, name=latest).exists() else latest


@lru_cache(maxsize=1)
def _latest() -> str | None:
    """Return the name of the latest migration, or None if the project has disabled migrations.

    Names start with a number, so the greatest name is that of the latest migration. Django's loader
    would read the migrations of all apps. Like the loader, this function leaves out modules whose
    names begin with an underscore.
    """
    path, _ = MigrationLoader.migrations_module(Run._meta.app_label)
    if path is None:
        return None
    names = (module.name for module in pkgutil.iter_modules(import_module(path).__path__))
    return max(name for name in names if not name.startswith("_"))
