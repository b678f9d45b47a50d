"""The rows that a request may see, which the project decides with ``DCRON_REST_QUERYSET``.

The setting names a function that gets the request and a queryset and returns the visible rows. It
is called for jobs, runs, attempts, calendars, limits, nodes and audit entries. The model is
``queryset.model``. By default, all rows are visible.

Invariants:

- Every view reads its rows from ``View.scope``. A hidden row gets the same response as a missing
  one: 404.
- The function gets only runs of visible jobs, and only attempts of visible runs.
- Nobody saves a row that they couldn't see afterwards.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from django.db import transaction
from django.db.models import Model, QuerySet
from django.utils.module_loading import import_string
from django.utils.translation import gettext as _
from rest_framework.exceptions import PermissionDenied
from rest_framework.request import Request

from django_dcron.conf import settings
from django_dcron.db.routing import alias_for
from django_dcron.diagnosis.scope import EVERYTHING, Scope, is_narrowed
from django_dcron.models import Attempt, Run


def rest_scope(request: Request) -> Scope:
    if not settings.REST_QUERYSET:
        return EVERYTHING
    narrow = import_string(settings.REST_QUERYSET)

    def visible(model: type[Model]) -> QuerySet[Any] | None:
        rows: QuerySet[Any] = model._default_manager.all()
        if model is Run:
            rows = scope.of_jobs(rows, "job")
        elif model is Attempt:
            rows = scope.of_runs(rows, "run")
        rows = narrow(request, rows)
        return rows if is_narrowed(rows) else None

    scope = Scope(visible)
    return scope


@contextmanager
def require_visible_after(row: Model, scope: Scope) -> Iterator[None]:
    """Raise ``PermissionDenied`` if the user can't see ``row`` after the block has saved it.

    The transaction of the block is then rolled back.
    """
    if not scope.narrows(type(row)):
        yield
        return
    with transaction.atomic(using=alias_for(type(row))):
        yield
        check_visible([row], scope)


def check_visible(rows: Sequence[Model], scope: Scope) -> None:
    """Raise ``PermissionDenied`` if the user can't see one of ``rows``, which have one model."""
    if not scope.sees_all(rows):
        raise PermissionDenied(
            _(
                "You don't have permission to view an object with these values, so you "
                "can't save it."
            )
        )
