"""Whether this process can use the database: it answers, and has the tables that this release reads."""

from __future__ import annotations

import pkgutil
from functools import lru_cache
from importlib import import_module

from django.db import connections
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.recorder import MigrationRecorder

from django_dcron.models import Run
from django_dcron.models.database import alias_for


def missing_migration() -> str | None:
    """The latest migration, if it is not applied. Raises the database's errors, also if nothing was ever migrated."""
    latest = _latest()
    if latest is None:  # the project has switched our migrations off
        Run.objects.using(alias_for(Run)).order_by("pk").first()
        return None
    applied = MigrationRecorder(connections[alias_for(Run)]).migration_qs
    return None if applied.filter(app=Run._meta.app_label, name=latest).exists() else latest


@lru_cache(maxsize=1)
def _latest() -> str | None:
    """By its name, which begins with a number. (Django's loader would read those of all apps.)"""
    path, _ = MigrationLoader.migrations_module(Run._meta.app_label)
    if path is None:
        return None
    return max(module.name for module in pkgutil.iter_modules(import_module(path).__path__))
