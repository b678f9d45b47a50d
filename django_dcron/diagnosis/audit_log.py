"""Read the audit log for lists and exports: the entries that a reader may see, and their JSON."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.db.models import Model, Q

from django_dcron.diagnosis.scope import Scope
from django_dcron.diagnosis.visible_rows import visible_freezes
from django_dcron.jobs.representation import to_json
from django_dcron.models import AuditEntry, AuditKind, Calendar, Job, Limit, Run
from django_dcron.models.audit_entry import AuditEntryQuerySet

_MODELS_WITHOUT_JOB: dict[AuditKind, type[Model]] = {
    AuditKind.CALENDAR: Calendar,
    AuditKind.LIMIT: Limit,
}
"""The models of objects that belong to no job. A project narrows them separately."""
COLUMNS = tuple(field.name for field in AuditEntry._meta.concrete_fields)


def visible_entries(entries: AuditEntryQuerySet, scope: Scope) -> AuditEntryQuerySet:
    """Return the entries about rows that the reader may see.

    If jobs or runs are narrowed, entries of deleted ones are hidden, too: nothing shows whether the
    reader could see them.
    """
    if scope.narrows(Run):
        entries = entries.filter(Q(run_id=None) | Q(run_id__in=scope.keys(Run)))
    for kind, model in _MODELS_WITHOUT_JOB.items():
        if scope.narrows(model):
            entries = entries.filter(~Q(kind=kind) | Q(object_id__in=scope.keys(model)))
    if not scope.narrows(Job):
        return entries
    of_jobs = Q(job_id__in=scope.keys(Job))
    freezes = visible_freezes(scope).order_by().values_list("pk", flat=True)
    of_freezes = Q(kind=AuditKind.FREEZE, object_id__in=[str(key) for key in freezes])
    return entries.filter(of_jobs | of_freezes | Q(kind__in=_MODELS_WITHOUT_JOB))


def entries_between(
    entries: AuditEntryQuerySet, since: datetime | None, until: datetime | None
) -> AuditEntryQuerySet:
    """Return the entries from ``since`` (included) to ``until`` (excluded)."""
    entries = entries.filter(at__gte=since) if since else entries
    return entries.filter(at__lt=until) if until else entries


def entry_document(entry: AuditEntry) -> dict[str, Any]:
    """Return the entry as JSON."""
    return {name: to_json(getattr(entry, name)) for name in COLUMNS}
