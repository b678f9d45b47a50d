"""Delete expired entries of the audit log in small batches, oldest first."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime

from django_dcron.conf import settings
from django_dcron.db.routing import alias_for
from django_dcron.db.session_limits import brief_transaction
from django_dcron.models import AuditAction, AuditEntry, AuditKind, Deletion

BATCH_SIZE = 500


def prune_audit_log(now: Callable[[], datetime], *, dry_run: bool = False) -> Iterator[int]:
    """Delete the entries older than ``DCRON_KEEP_AUDIT_FOR``, and what undoes their deletions.

    Yields the number of deleted entries after each batch. The caller may pause between batches or
    stop. With ``dry_run``, nothing is deleted.
    """
    using = alias_for(AuditEntry)
    entries = AuditEntry.objects.using(using)
    expired = entries.filter(at__lt=now() - settings.KEEP_AUDIT_FOR)
    if dry_run:
        yield expired.count()
        return
    oldest_first = expired.order_by("at", "pk").values_list("pk", flat=True)
    while keys := list(oldest_first[:BATCH_SIZE]):
        with brief_transaction(using, settings.LEASE):
            deletions = entries.filter(
                pk__in=keys, kind=AuditKind.JOB, action=AuditAction.DELETE
            ).order_by()
            job_ids = [int(key) for key in deletions.values_list("object_id", flat=True)]
            number = entries.delete_for_retention(keys)
            if job_ids:
                undoable = Deletion.objects.using(using).filter(pk__in=job_ids, entry_id__in=keys)
                undoable.delete()
        yield number
