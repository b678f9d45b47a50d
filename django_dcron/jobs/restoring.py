"""Undo the deletion of a job: create the job again from its stored values.

Invariants:

- The restored job has all values of the deleted one, except a pause that is over, or nothing is
  created.
- If the job's work was left to the source after the deletion, the restored job waits for the next
  handover. Otherwise, the source and the job would do the same work. For the same reason, a pause
  with an end then stays until a person ends it.
- Only the latest deletion of a job is undone, and only once. Otherwise, two enabled jobs could do
  the same work.
- The restored job belongs to the declaration or to the import entry of the deleted job. So a sync
  or an import doesn't take the restored job for another job.
- The restored job has a new id and no occurrence before its creation. ``@every`` keeps its phase.
  The history of the deleted job stays with the deleted row, because no run may start again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.core.exceptions import ValidationError
from django.db import transaction
from django.db.models import QuerySet
from django.utils.translation import gettext

from django_dcron.db.contention import despite_contention
from django_dcron.db.now import database_now
from django_dcron.db.routing import alias_for
from django_dcron.exceptions import NotPossible
from django_dcron.jobs.batch_reading import JobToSave
from django_dcron.jobs.deletion import LOST_FIELDS, STORED_FIELDS, forget_deleted_import
from django_dcron.jobs.pausing import is_left_to_source
from django_dcron.jobs.row_arguments import require_row
from django_dcron.jobs.saving import save_change
from django_dcron.jobs.sync.stored import from_stored
from django_dcron.models import AuditAction, AuditEntry, AuditKind, DeletedImport, Deletion, Job
from django_dcron.models.audit_entry import AuditEntryQuerySet
from django_dcron.models.job_states import HANDED_BACK
from django_dcron.targets.shadow import is_shadow
from django_dcron.utils.messages import all_of
from django_dcron.utils.messages import gettext_noop as _
from django_dcron.utils.time_format import format_time_to_store


def deletions() -> AuditEntryQuerySet:
    """Return the entries of deleted jobs."""
    entries = AuditEntry.objects.using(alias_for(AuditEntry))
    return entries.filter(kind=AuditKind.JOB, action=AuditAction.DELETE)


def deletion_of(label: str) -> AuditEntry | None:
    """Return the latest deletion of a job with this label or number, if the audit log has one."""
    rows = Deletion.objects.using(alias_for(Deletion))
    deletion = rows.filter(label=label).order_by("deleted_at", "job_id").last()
    if deletion is None and label.isdecimal() and len(label) <= 18:
        deletion = rows.filter(pk=int(label)).first()
    if deletion is None:
        return None
    return deletions().filter(pk=deletion.entry_id).first()


def deleted_row_of(entry: AuditEntry) -> Job | None:
    """Return the row of the deleted job, which has its history; None if it was removed."""
    rows = Job.with_deleted.using(alias_for(Job))
    return rows.filter(pk=entry.object_id, deleted_at__isnull=False).first()


@dataclass(frozen=True, slots=True)
class RestoredJob:
    label: str
    number: int


def restored_job_of(entry: AuditEntry) -> RestoredJob | None:
    """Return the job that the undoing of the deletion created; None if it wasn't undone.

    The job may have been renamed, or deleted in turn.
    """
    deletion = _stored(entry).first()
    return _restored_job(deletion) if deletion is not None else None


def _stored(entry: AuditEntry) -> QuerySet[Deletion]:
    """Return the row that undoes the deletion. A later deletion of the job overwrites it."""
    rows = Deletion.objects.using(alias_for(Deletion))
    return rows.filter(pk=int(entry.object_id), entry_id=entry.pk)


def _restored_job(deletion: Deletion) -> RestoredJob | None:
    if deletion.restored_job_id is None:
        return None
    row = Job.with_deleted.using(alias_for(Job)).filter(pk=deletion.restored_job_id).first()
    return RestoredJob(deletion.label if row is None else str(row), deletion.restored_job_id)


def is_undoable(entry: AuditEntry) -> bool:
    """Return whether the deletion wasn't undone, and what undoes it is stored."""
    return _stored(entry).filter(restored_job_id=None).exists()


def require_undoable(entry: AuditEntry, *, lock: bool = False) -> Deletion:
    """Return what undoes the deletion. Raises ``NotPossible`` if it was undone or isn't stored."""
    rows = _stored(entry)
    deletion = (rows.select_for_update() if lock else rows).first()
    if deletion is None:
        raise _not_stored(entry)
    if (restored := _restored_job(deletion)) is not None:
        raise NotPossible(
            _(
                "The deletion of %(job)s was already undone. The restored job is %(restored)s "
                "(number %(number)s)."
            ),
            job=entry.label,
            restored=restored.label,
            number=restored.number,
            code="already_undone",
        )
    return deletion


def has_missed_handover(entry: AuditEntry) -> bool:
    """Return whether the deleted job waits or is a shadow, although its source was handed over.

    Call this function before the job is restored, because the restore forgets the handover.
    """
    deletion = _stored(entry).first()
    if deletion is None:
        return False
    job = Job(**from_stored(deletion.values))
    is_handed_over = _deleted_imports(job, alias_for(Job)).filter(left_to_source=False).exists()
    return is_handed_over and is_left_to_source(job)


def _deleted_imports(job: Job, using: str) -> QuerySet[DeletedImport]:
    rows = DeletedImport.objects.using(using)
    return rows.filter(import_source=job.import_source, import_key=job.import_key)


def restore(entry: AuditEntry, *, check: Callable[[Job], object] = lambda job: None) -> Job:
    """Create a deleted job again from ``entry``, the audit entry of its deletion.

    The job gets its values back, and is enabled or paused as it was. If its pause has ended
    meanwhile, it is enabled. If its work was handed back to its source meanwhile, an enabled job
    waits for the next handover, and a pause has no end. The job's history stays with the deleted
    job, and jobs that followed the deleted job don't follow the new one.

    Raises ``NotPossible`` if the entry isn't the deletion of a job, if the deletion was already
    undone, if the job was deleted again later, if an import has created the job again, or if a
    value isn't stored anymore. A value with secrets is stored only with the history of the deleted
    job. Raises ``ValidationError`` by field if a value isn't valid anymore, for example because
    another job has the name. Then nothing is created.

    ``check`` is called with the job before it is saved, and raises an error if the user may not
    create such a job.
    """
    require_row(entry, AuditEntry)
    if (entry.kind, entry.action) != (AuditKind.JOB, AuditAction.DELETE):
        raise NotPossible(
            _("“%(entry)s” isn't the deletion of a job."), entry=str(entry), code="not_a_deletion"
        )
    using = alias_for(Job)
    return despite_contention(lambda: _restore(entry, check, using), using)


def _restore(entry: AuditEntry, check: Callable[[Job], object], using: str) -> Job:
    author = entry.actor or entry.via
    text = f"restores job {entry.job_id} ({author}, {format_time_to_store(entry.at)})"
    with transaction.atomic(using=using):
        deletion = require_undoable(entry, lock=True)
        job = _deleted_job(entry, deletion.values, using)
        _require_no_new_import(job, using)
        _require_free_name(job, using)
        _wait_for_handover(job, using)
        check(job)
        save_change(JobToSave(job, reason=text, phase=deletion.phase))
        forget_deleted_import(job, using)
        _stored(entry).update(restored_job_id=job.pk)
    return job


def _require_no_new_import(job: Job, using: str) -> None:
    """Raise ``NotPossible`` if an import has created the deleted job again."""
    imported = Job.objects.using(using).filter(
        import_source=job.import_source, import_key=job.import_key, import_key__isnull=False
    )
    if (other := imported.first()) is not None:
        raise NotPossible(
            _(
                "The deletion of %(job)s can't be undone, because an import has created the job "
                "again. It is now the job %(other)s (number %(number)s)."
            ),
            job=str(job),
            other=str(other),
            number=other.pk,
            code="imported_again",
        )


def _require_free_name(job: Job, using: str) -> None:
    """Raise ``ValidationError`` if another job has the name."""
    named = Job.objects.using(using).filter(namespace=job.namespace, name=job.name)
    if (other := named.first()) is not None:
        text = gettext(
            "Another job has the name %(name)s (number %(number)s). Rename or delete it first."
        )
        params = {"name": str(other), "number": other.pk}
        raise ValidationError({"name": ValidationError(text, code="unique", params=params)})


def _wait_for_handover(job: Job, using: str) -> None:
    """Keep the job from starting if its source does the work again.

    A shadow executes nothing, so it stays as it was. A person's pause outlasts the handover.
    """
    may_start = job.enabled or job.paused_until is not None
    if not may_start or is_shadow(job.target):
        return
    if not _deleted_imports(job, using).filter(left_to_source=True).exists():
        return
    if job.enabled:
        job.enabled, job.pause_reason = False, HANDED_BACK
    job.paused_until = None


def _deleted_job(entry: AuditEntry, values: Mapping[str, Any], using: str) -> Job:
    """Return an unsaved job with the values of the deleted one, without a pause that is over."""
    row = deleted_row_of(entry)
    job, incomplete = Job(**from_stored(values)), []
    for field in STORED_FIELDS:
        if field.name in values:
            continue
        if row is None or field.name in LOST_FIELDS:
            incomplete.append(field.name)
        else:
            setattr(job, field.attname, field.value_of(row))
    if incomplete:
        raise _incomplete(entry, incomplete)
    if job.paused_until is not None and job.paused_until <= database_now(using):
        job.enabled, job.pause_reason, job.paused_until = True, "", None
    return job


def _not_stored(entry: AuditEntry) -> NotPossible:
    return NotPossible(
        _(
            "The deletion of %(job)s can't be undone, because the values of the job are no longer "
            "stored. Create the job yourself."
        ),
        job=entry.label,
        code="not_stored",
    )


def _incomplete(entry: AuditEntry, names: Sequence[str]) -> NotPossible:
    return NotPossible(
        _(
            "The deletion of %(job)s can't be undone, because values of %(fields)s with secrets "
            "were deleted with the history of the job. Create the job yourself."
        ),
        job=entry.label,
        fields=all_of(names),
        code="incomplete",
    )
