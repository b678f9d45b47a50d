"""The freezes and the incidents that a reader may see."""

from __future__ import annotations

from django.db.models import Exists, OuterRef, QuerySet

from django_dcron.db.routing import alias_for
from django_dcron.diagnosis.scope import Scope
from django_dcron.models import Freeze, Incident, Job, Run
from django_dcron.models.freeze import FreezeQuerySet
from django_dcron.policies.freezing import ALL_NAMESPACES


def visible_freezes(scope: Scope) -> FreezeQuerySet:
    """Return the freezes of all namespaces, and those of namespaces with visible jobs."""
    freezes = Freeze.objects.using(alias_for(Freeze))
    if not scope.narrows(Job):
        return freezes
    namespaces = scope.jobs.order_by().values_list("namespace", flat=True).distinct()
    return freezes.filter(namespace__in=[ALL_NAMESPACES, *namespaces])


def visible_incidents(rows: QuerySet[Incident], scope: Scope) -> QuerySet[Incident]:
    """Return the incidents of visible jobs, except those whose latest failed run is hidden.

    An incident has the message of that run. A deleted run hides nothing.
    """
    rows = scope.of_jobs(rows, "job")
    if not scope.narrows(Run):
        return rows
    latest = {"pk": OuterRef("last_run")}
    stored = Run.objects.filter(**latest)
    return rows.filter(Exists(scope.runs.using(None).filter(**latest)) | ~Exists(stored))
