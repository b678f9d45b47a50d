"""The rows that a request may see, as the project decides it by ``DCRON_REST_QUERYSET``.

The setting names a function of the request and a queryset, which answers the visible rows of that queryset. It is asked for jobs, runs, attempts,
calendars and nodes; ``queryset.model`` tells which. By default all rows are visible.

Invariants:

- Every view reads its rows from ``View.scope``. A hidden row is answered as one that doesn't exist: 404.
- The runs that the function gets are those of visible jobs, and the attempts those of visible runs.
- Nobody saves a row that they couldn't see afterwards.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.db import transaction
from django.db.models import Model, QuerySet
from django.utils.module_loading import import_string
from django.utils.translation import gettext as _
from rest_framework.exceptions import PermissionDenied
from rest_framework.request import Request

from django_dcron.conf import settings
from django_dcron.models import Attempt, Run
from django_dcron.models.database import alias_for
from django_dcron.observability.scope import EVERYTHING, Scope, is_narrowed


def scope_of(request: Request) -> Scope:
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
def kept_in_sight(row: Model, scope: Scope) -> Iterator[None]:
    """Around the saving of ``row``. Raises ``PermissionDenied``, and nothing is saved, if it is out of sight then."""
    if not scope.narrows(type(row)):
        yield
        return
    with transaction.atomic(using=alias_for(type(row))):
        yield
        if not scope.sees(row):
            raise PermissionDenied(_("You may not see a row with these values, so you may not save it."))
