"""The viewer of the dashboard: site, permissions, visible rows and filter.

Invariants:

- Viewers with the same ``key`` see the same content. The key contains everything that the content
  depends on: permissions, visible rows, filter, site, URL prefix, language, time zone and database.
- Viewers whose rows are narrowed have separate keys, even if their querysets are the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from hashlib import blake2b

from django.contrib import admin
from django.core.exceptions import EmptyResultSet
from django.db import connections
from django.db.models import Model
from django.http import HttpRequest
from django.urls import get_script_prefix
from django.utils.timezone import get_current_timezone_name
from django.utils.translation import get_language

from django_dcron.admin.dashboard.filter import selection_of
from django_dcron.admin.display import may_view
from django_dcron.admin.visibility import admin_scope
from django_dcron.db.now import database_now
from django_dcron.db.routing import alias_for
from django_dcron.diagnosis.job_filters.selection import JobSelection
from django_dcron.diagnosis.scope import Scope
from django_dcron.models import Attempt, Incident, Job, Node, Run

SHOWN: tuple[type[Model], ...] = (Job, Run, Attempt, Node, Incident)


@dataclass(frozen=True)
class Viewer:
    site: admin.AdminSite
    sees: frozenset[str]
    """The names of the models that the viewer may view."""
    adds_jobs: bool
    narrowed: str
    """Identifies the user and the narrowed rows. Empty if the viewer sees all rows."""
    chosen: JobSelection
    """The jobs that the filter above the charts selects."""
    scope: Scope

    @classmethod
    def of(cls, request: HttpRequest, site: admin.AdminSite) -> Viewer:
        scope = admin_scope(request, site)
        narrowed = [model for model in SHOWN if scope.narrows(model)]
        conditions = [_condition(scope, model) for model in narrowed]
        return cls(
            site=site,
            sees=frozenset(model.__name__ for model in SHOWN if may_view(request, model, site)),
            adds_jobs=site.is_registered(Job)
            and site.get_model_admin(Job).has_add_permission(request),
            narrowed=_digest([request.user.pk, *conditions]) if narrowed else "",
            chosen=selection_of(request),
            scope=scope,
        )

    def may_view(self, *models: type[Model]) -> bool:
        return all(model.__name__ in self.sees for model in models)

    @cached_property
    def now(self) -> datetime:
        """The database's time, which all sections of a response share."""
        return database_now(alias_for(Run))

    def key(self, section: str, *, is_filtered: bool) -> str:
        """Return the key of a section's content. Viewers with the same key see the same content."""
        return _digest(
            [
                section,
                self.chosen if is_filtered else "",
                self.site.name,
                sorted(self.sees),
                self.adds_jobs,
                self.narrowed,
                get_script_prefix(),
                get_language(),
                get_current_timezone_name(),
                *_database(),
            ]
        )


def _condition(scope: Scope, model: type[Model]) -> str:
    try:
        return f"{model.__name__}: {scope.rows(model).query}"
    except EmptyResultSet:
        return f"{model.__name__}: none"


def _database() -> list[str]:
    """Return values that identify the database and, if tenants share it, the tenant's schema."""
    connection = connections[alias_for(Run)]
    settings = connection.settings_dict
    schema = getattr(connection, "schema_name", "")
    return [str(settings.get(part)) for part in ("HOST", "PORT", "NAME", "OPTIONS")] + [schema]


def _digest(parts: list[object]) -> str:
    return blake2b(repr(parts).encode(), digest_size=16).hexdigest()
