"""The freezes that a reader may see."""

from __future__ import annotations

from django_dcron.db.routing import alias_for
from django_dcron.diagnosis.scope import Scope
from django_dcron.models import Freeze, Job
from django_dcron.models.freeze import FreezeQuerySet
from django_dcron.policies.freezing import ALL_NAMESPACES


def visible_freezes(scope: Scope) -> FreezeQuerySet:
    """Return the freezes of all namespaces, and those of namespaces with visible jobs."""
    freezes = Freeze.objects.using(alias_for(Freeze))
    if not scope.narrows(Job):
        return freezes
    namespaces = scope.jobs.order_by().values_list("namespace", flat=True).distinct()
    return freezes.filter(namespace__in=[ALL_NAMESPACES, *namespaces])
