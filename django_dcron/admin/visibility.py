"""What a request may see, as the site's own admin classes decide it: by ``get_queryset`` and by their permissions.

Invariants:

- Every list, figure, picture, filter and link shows rows of ``scope_of`` or of the ``get_queryset`` of the registered admin class. No page
  reads a table past it.
- The runs of a hidden job are hidden, and so are the attempts of a hidden run: a project that narrows ``JobAdmin`` alone has narrowed all.
- A page or a verb of one row also asks the object permissions: ``has_view_permission(request, obj)`` and the verb's own.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from django.contrib import admin
from django.db.models import Model, QuerySet
from django.http import HttpRequest

from django_dcron.admin.display import may_view
from django_dcron.models import Node, Run
from django_dcron.observability.scope import M, Scope, is_narrowed


def scope_of(request: HttpRequest, site: admin.AdminSite) -> Scope:
    """The rows that the admin classes of ``site`` show to this request. No query."""
    return Scope(partial(_narrowed, request, site))


def of_visible_jobs(rows: QuerySet[M], job: str, request: HttpRequest, site: admin.AdminSite) -> QuerySet[M]:
    """Those of ``rows`` whose job is visible. ``job``: the field that names it."""
    return scope_of(request, site).of_jobs(rows, job)


def of_visible_runs(rows: QuerySet[M], run: str, request: HttpRequest, site: admin.AdminSite) -> QuerySet[M]:
    """Those of ``rows`` whose run is visible. ``run``: the field that names it."""
    if not site.is_registered(Run):
        return of_visible_jobs(rows, f"{run}__job", request, site)
    return scope_of(request, site).of_runs(rows, run)


def visible_nodes(request: HttpRequest, site: admin.AdminSite) -> Callable[[Node], bool]:
    """Tells the visible nodes from the others: shares of shards are counted with all of them. A query if they're narrowed."""
    scope = scope_of(request, site)
    if not scope.narrows(Node):
        return lambda node: True
    keys = set(scope.rows(Node).values_list("pk", flat=True))
    return lambda node: node.pk in keys


def may_view_row(request: HttpRequest, row: Model, site: admin.AdminSite) -> bool:
    """``row``: a visible one."""
    model = type(row)
    return site.is_registered(model) and site.get_model_admin(model).has_view_permission(request, row)


def is_withheld(request: HttpRequest, row: Model, site: admin.AdminSite) -> bool:
    """Whether this very row is refused to a user who may view others of its model. What belongs to it is refused then, too."""
    return may_view(request, type(row), site) and not may_view_row(request, row, site)


def _narrowed(request: HttpRequest, site: admin.AdminSite, model: type[Model]) -> QuerySet[Any] | None:
    """None: all rows."""
    if not site.is_registered(model):
        return None
    rows: QuerySet[Any] = site.get_model_admin(model).get_queryset(request)
    return rows if is_narrowed(rows) else None
