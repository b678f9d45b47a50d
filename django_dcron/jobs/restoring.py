"""Undo the deletion of a job: create the job again from the audit log.

Invariants:

- The restored job has all values of the deleted one, or nothing is created.
- It is a new job with a new id: it has no occurrence before its creation. The history of the
  deleted job stays with the deleted row, because no run may start again.
"""

from __future__ import annotations

from collections.abc import Sequence

from django.db.models import Q

from django_dcron.db.routing import alias_for
from django_dcron.exceptions import NotPossible
from django_dcron.jobs.audit.differences import whole_value
from django_dcron.jobs.deletion import LOST_FIELDS
from django_dcron.jobs.representation import JOB_FIELDS
from django_dcron.jobs.row_arguments import require_row
from django_dcron.jobs.saving import save_for
from django_dcron.models import AuditAction, AuditEntry, AuditKind, Job
from django_dcron.models.audit_entry import AuditEntryQuerySet
from django_dcron.utils.messages import all_of
from django_dcron.utils.messages import gettext_noop as _
from django_dcron.utils.time_format import format_time_to_store


def deletions() -> AuditEntryQuerySet:
    """Return the entries of deleted jobs."""
    entries = AuditEntry.objects.using(alias_for(AuditEntry))
    return entries.filter(kind=AuditKind.JOB, action=AuditAction.DELETE)


def deletion_of(label: str) -> AuditEntry | None:
    """Return the latest deletion of a job with this label or number, if the audit log has one."""
    named = Q(label=label)
    if label.isdecimal() and len(label) <= 18:
        named |= Q(job_id=int(label))
    return deletions().filter(named).order_by("pk").last()


def deleted_row_of(entry: AuditEntry) -> Job | None:
    """Return the row of the deleted job, which has its history; None if it was removed."""
    rows = Job.with_deleted.using(alias_for(Job))
    return rows.filter(pk=entry.object_id, deleted_at__isnull=False).first()


def restore(entry: AuditEntry) -> Job:
    """Create a deleted job again, with the values of its deletion's audit entry.

    Long values and secrets, which the log doesn't have, are those of the deleted row, if its
    history is still stored. The job is enabled or paused as it was. Its history stays with the
    deleted job, and jobs that followed the deleted job don't follow the new one.

    Raises ``NotPossible`` if the entry isn't the deletion of a job, or if a whole value isn't
    stored anymore. Raises ``ValidationError`` by field if a value isn't valid anymore, for example
    because another job has the name. Then nothing is created.
    """
    require_row(entry, AuditEntry)
    if (entry.kind, entry.action) != (AuditKind.JOB, AuditAction.DELETE):
        raise NotPossible(
            _("“%(entry)s” isn't the deletion of a job."), entry=str(entry), code="not_a_deletion"
        )
    row, job, incomplete = deleted_row_of(entry), Job(), []
    for name, field in JOB_FIELDS.items():
        if not field.writable:
            continue
        if row is not None and name not in LOST_FIELDS:
            setattr(job, field.attname, field.value_of(row))
        elif name in entry.before:  # other fields have their defaults
            try:
                setattr(job, field.attname, whole_value(field, entry.before[name]))
            except ValueError:
                incomplete.append(name)
    if incomplete:
        raise _incomplete(entry, incomplete)
    author = entry.actor or entry.via
    text = f"restores job {entry.job_id} ({author}, {format_time_to_store(entry.at)})"
    return save_for(job, text)


def _incomplete(entry: AuditEntry, names: Sequence[str]) -> NotPossible:
    return NotPossible(
        _(
            "The deletion of %(job)s can't be undone, because the whole values of %(fields)s "
            "aren't stored. The audit log shortens long values and masks secrets. Create the job "
            "yourself."
        ),
        job=entry.label,
        fields=all_of(names),
        code="incomplete",
    )
