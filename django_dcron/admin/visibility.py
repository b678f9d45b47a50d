"""Decide which rows a request may see, as the site's own admin classes define it.

Invariants:

- Every list, number, chart, filter and link shows rows from ``admin_scope`` or from the
  ``get_queryset`` of the registered admin class. No page bypasses them.
- The runs of a hidden job are hidden, and so are the attempts of a hidden run. A project that
  narrows the jobs (limits ``get_queryset`` of ``JobAdmin``) thereby narrows all rows of jobs.
- Deleted jobs have no page and are in no list, but their runs are visible to those who could see
  the job.
- A page or an action for one row also checks object permissions: ``has_view_permission(request,
  obj)`` and the action's own permission.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any

from django.contrib import admin
from django.db.models import Model, QuerySet
from django.http import HttpRequest

from django_dcron.admin.display import may_view
from django_dcron.diagnosis import cluster
from django_dcron.diagnosis.scope import M, Scope, is_narrowed
from django_dcron.diagnosis.start_caution import node_cautions
from django_dcron.models import Job, Node, Run


def admin_scope(request: HttpRequest, site: admin.AdminSite) -> Scope:
    """Return the rows that the admin classes of ``site`` show to this request, without a query."""
    return Scope(partial(_visible_rows, request, site))


def filter_by_visible_jobs(
    rows: QuerySet[M], job: str, request: HttpRequest, site: admin.AdminSite
) -> QuerySet[M]:
    """Keep the ``rows`` whose job is visible. ``job`` is the name of the field with the job."""
    return admin_scope(request, site).of_jobs(rows, job)


def filter_by_visible_runs(
    rows: QuerySet[M], run: str, request: HttpRequest, site: admin.AdminSite
) -> QuerySet[M]:
    """Keep the ``rows`` whose run is visible. ``run`` is the name of the field with the run."""
    if not site.is_registered(Run):
        return filter_by_visible_jobs(rows, f"{run}__job", request, site)
    return admin_scope(request, site).of_runs(rows, run)


def visible_node_cautions(job: Job, request: HttpRequest, site: admin.AdminSite) -> list[str]:
    """Return that no live node serves the job, if the user may see all nodes."""
    if not may_view(request, Node, site) or admin_scope(request, site).narrows(Node):
        return []
    return node_cautions(job, cluster.live_namespaces())


_includes_deleted_jobs = ContextVar("includes_deleted_jobs", default=False)


@contextmanager
def deleted_jobs_included() -> Iterator[None]:
    """Let ``without_deleted_jobs`` return the deleted jobs, too, because their runs are visible."""
    token = _includes_deleted_jobs.set(True)
    try:
        yield
    finally:
        _includes_deleted_jobs.reset(token)


def without_deleted_jobs(jobs: QuerySet[Job]) -> QuerySet[Job]:
    """Return the jobs without deleted ones, except within ``deleted_jobs_included``."""
    return jobs if _includes_deleted_jobs.get() else jobs.filter(deleted_at=None)


def visible_nodes(scope: Scope) -> Callable[[Node], bool]:
    """Return a predicate that is true for visible nodes.

    Callers get a predicate instead of rows, because they compute each node's share of the shards
    from all nodes. The database is queried only if the nodes are narrowed.
    """
    if not scope.narrows(Node):
        return lambda node: True
    keys = set(scope.rows(Node).values_list("pk", flat=True))
    return lambda node: node.pk in keys


def may_view_row(request: HttpRequest, row: Model, site: admin.AdminSite) -> bool:
    """Check the permissions on ``row``, which must be one of the visible rows."""
    model = type(row)
    return site.is_registered(model) and site.get_model_admin(model).has_view_permission(
        request, row
    )


def is_hidden(request: HttpRequest, row: Model, site: admin.AdminSite) -> bool:
    """Return whether a user who may view this model may not view this row.

    The rows that belong to it are hidden as well.
    """
    return may_view(request, type(row), site) and not may_view_row(request, row, site)


def _visible_rows(
    request: HttpRequest, site: admin.AdminSite, model: type[Model]
) -> QuerySet[Any] | None:
    """Return the visible rows of ``model``, or None if all of them are visible."""
    if not site.is_registered(model):
        return None
    with deleted_jobs_included():
        rows: QuerySet[Any] = site.get_model_admin(model).get_queryset(request)
    return rows if is_narrowed(rows) else None
