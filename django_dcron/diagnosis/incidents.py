"""The incidents that a reader may see."""

from __future__ import annotations

from django.db.models import Exists, OuterRef, QuerySet

from django_dcron.diagnosis.scope import Scope
from django_dcron.models import Incident, Run


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
