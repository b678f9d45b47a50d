"""Delete jobs. Their history stays until retention prunes it, unless it is erased.

Invariants:

- No run is claimed or triggered after the deletion has begun: the cursor and the job are locked
  first. If another transaction inserts a run meanwhile, the run is cancelled instead of started
  (``policies.start_decision``).
- A deleted job has no unfinished run, so that nothing but its history remains.
- A deleted job's name, import key, calendar and limit are free at once.
- No enabled job is left without any possible run. When the last job that a job follows is deleted,
  the follower is disabled if it has no schedule.
- Runs are locked before their places in limits are deleted, in the same order as at the end of a
  run (``runs.limits``). Otherwise, a run that ends could give its place to a run whose place is
  being deleted, and both transactions would wait for each other. Nodes give the free places to
  other runs (``scheduler.limit_lines``).
- An import doesn't create a deleted job again (``DeletedImport``).
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any
from uuid import UUID

from django.db import transaction
from django.db.models import Exists, OuterRef

from django_dcron.conf import settings
from django_dcron.db.contention import despite_contention
from django_dcron.db.now import UtcNow, database_now
from django_dcron.db.routing import alias_for
from django_dcron.db.session_limits import brief_transaction
from django_dcron.jobs import chains
from django_dcron.jobs.audit.entries import FOLLOWED_DELETED, entries_of
from django_dcron.jobs.audit.recording import record_deletion, record_saves
from django_dcron.jobs.batch_reading import ORIGIN
from django_dcron.jobs.cursors import disable_exhausted
from django_dcron.jobs.locking import lock_cursors, lock_jobs, lock_version_for_deletion
from django_dcron.jobs.pausing import is_left_to_source
from django_dcron.jobs.representation import JOB_FIELDS
from django_dcron.jobs.row_arguments import require_row
from django_dcron.models import (
    AlertCheck,
    Attempt,
    AuditAction,
    Cursor,
    Definition,
    DeletedImport,
    Deletion,
    Incident,
    Job,
    LimitPlace,
    PendingCount,
    Run,
    Statistics,
)
from django_dcron.models.run import JOB_DELETED, RunQuerySet
from django_dcron.policies.lifecycle import UNFINISHED, Outcome, State
from django_dcron.runs.deliveries import delete_claimed_ahead
from django_dcron.runs.endings import final_columns
from django_dcron.utils.json_values import same_json

BATCH_SIZE = 1_000
"""Runs that are cancelled or erased at once."""
_FREED: dict[str, Any] = {
    "enabled": False,
    "paused_until": None,
    "pause_reason": "",
    "calendar": None,
    "limit": None,
    "after": {},
    "import_key": None,
}
LOST_FIELDS = frozenset({"name", *_FREED})
"""The fields whose values the row of a deleted job doesn't keep."""
STORED_FIELDS = tuple(
    field for name, field in JOB_FIELDS.items() if field.writable or name in ("declared", *ORIGIN)
)
"""The fields that the undoing of a deletion sets."""


def delete_job(job: Job, *, expected_version: int | None = None, erase: bool = False) -> None:
    """Delete ``job``. Its unfinished runs are cancelled, also those in progress.

    The finished runs stay until their retention ends. With ``erase``, all runs are deleted at once.

    ``expected_version`` is the version of the job as it was read; by default, any version is
    deleted. Raises ``Conflict`` if the job has another version or has been deleted.
    """
    require_row(job, Job)
    using = alias_for(Job)
    despite_contention(lambda: _delete(job, expected_version, using, erase=erase), using)


def _delete(job: Job, expected_version: int | None, using: str, *, erase: bool) -> None:
    locked: list[int] = []
    with transaction.atomic(using=using):
        if chains.is_linked(job, using):
            locked = [job.pk, *chains.followers(job, using)]
            lock_cursors(locked, using)
            connected = chains.connected_jobs([job.pk], chains.read_edges(using))
            lock_jobs(connected, using, for_deletion=True)
        # The cursor and the job are locked first, so that no further run is claimed or triggered.
        row = lock_version_for_deletion(job.pk, expected_version, using)
        if chains.is_linked(row, using):
            # Nodes disable a follower that was linked meanwhile: its cursor isn't locked here.
            followers = [key for key in chains.followers(row, using) if key in locked]
            unlinked = chains.delete_links(row, using)
            record_saves(unlinked, using, {job.pk: FOLLOWED_DELETED for job, _before in unlinked})
            _disable_exhausted_followers(followers, using)
        cursors = Cursor.objects.using(using).filter(pk=row.pk)
        cursor = cursors.first()
        cursors.delete()
        if row.import_key is not None:
            _remember_deleted_import(row, using)
        record_deletion(row, using)
        _store_definition(row, cursor, using)
        delete_claimed_ahead([row.pk], database_now(using), using)
        runs = Run.objects.using(using).filter(job=row.pk)
        if erase or not runs.exists():
            _erase(row, runs, using)
        else:
            _cancel_unfinished(runs, using)
            _keep_for_history(row, using)


def _erase(job: Job, runs: RunQuerySet, using: str) -> None:
    while run_ids := list(runs.order_by("scheduled_at").values_list("pk", flat=True)[:BATCH_SIZE]):
        _lock(runs, run_ids)
        runs.filter(pk__in=run_ids).delete()
    Definition.objects.using(using).filter(job_id=job.pk).delete()
    job.delete(using=using)


def _cancel_unfinished(runs: RunQuerySet, using: str) -> None:
    """Cancel the unfinished runs. A worker that executes one stops it at its next heartbeat."""
    unfinished = runs.filter(state__in=UNFINISHED)
    while run_ids := list(unfinished.order_by("pk").values_list("pk", flat=True)[:BATCH_SIZE]):
        _lock(runs, run_ids)
        cancelled = final_columns(State.CANCELLED, JOB_DELETED) | {"limited": False}
        unfinished.filter(pk__in=run_ids).update(**cancelled)
        LimitPlace.objects.using(using).filter(run__in=run_ids).delete()
        attempts = Attempt.objects.using(using).filter(run__in=run_ids, outcome="")
        attempts.update(outcome=Outcome.CANCELLED, message=JOB_DELETED, finished_at=UtcNow())


def _lock(runs: RunQuerySet, run_ids: Collection[UUID]) -> None:
    locked = runs.filter(pk__in=run_ids).select_for_update().order_by("pk")
    list(locked.values_list("pk", flat=True))


def _keep_for_history(job: Job, using: str) -> None:
    """Keep the row of the job, and free what other jobs may need."""
    for model in (Statistics, PendingCount, AlertCheck, Incident):
        model.objects.using(using).filter(job=job.pk).delete()
    Job.objects.using(using).filter(pk=job.pk).update(
        **_FREED,
        name=deleted_name(job),
        version=job.version + 1,
        deleted_at=UtcNow(),
    )


def deleted_name(job: Job) -> str:
    """Return the name of a deleted job. No other job has the same number."""
    suffix = f" (deleted {job.pk})"
    longest = Job._meta.get_field("name").max_length or 0
    return f"{job.name[: longest - len(suffix)]}{suffix}"


def remove_jobs_without_history(job_ids: Collection[int]) -> None:
    """Remove the rows of deleted jobs whose runs have been pruned."""
    using = alias_for(Job)
    runs = Run.objects.filter(job=OuterRef("pk"))
    deleted = Job.with_deleted.using(using).filter(pk__in=job_ids, deleted_at__isnull=False)
    removable = list(deleted.exclude(Exists(runs)).order_by("pk").values_list("pk", flat=True))
    if removable:
        with brief_transaction(using, settings.LEASE):
            Definition.objects.using(using).filter(job_id__in=removable).delete()
            deleted.filter(pk__in=removable).delete()


def _store_definition(job: Job, cursor: Cursor | None, using: str) -> None:
    """Store what the undoing of the deletion needs."""
    documents = ((field, field.json_of(job)) for field in STORED_FIELDS)
    values = {
        field.name: json_value
        for field, json_value in documents
        if same_json(field.redacted(json_value), json_value)
    }
    phase = (cursor.previous_at or cursor.next_at) if cursor is not None else None
    entry = entries_of(job).filter(action=AuditAction.DELETE).only("pk").latest("pk")
    Deletion.objects.using(using).update_or_create(
        job_id=job.pk,
        defaults={
            "entry_id": entry.pk,
            "label": str(job),
            "deleted_at": database_now(using),
            "values": values,
            "phase": phase,
            "restored_job_id": None,
        },
    )


def forget_deleted_import(job: Job, using: str) -> None:
    """Let an import find ``job``, which was created again with the origin of a deleted job."""
    if job.import_key is not None:
        DeletedImport.objects.using(using).filter(
            import_source=job.import_source, import_key=job.import_key
        ).delete()


def _remember_deleted_import(job: Job, using: str) -> None:
    DeletedImport.objects.using(using).update_or_create(
        import_source=job.import_source,
        import_key=job.import_key,
        defaults={
            "entry_name": (job.imported or {}).get("name", job.name),
            "deleted_at": database_now(using),
            "left_to_source": is_left_to_source(job),
        },
    )


def _disable_exhausted_followers(job_ids: list[int], using: str) -> None:
    """Disable the jobs that can never run again.

    For an outdated cursor, the node that moves it decides.
    """
    exhausted = Cursor.objects.using(using).filter(
        pk__in=job_ids, enabled=True, next_at=None, problem=""
    )
    disable_exhausted(list(exhausted.current().values_list("pk", flat=True)), using)
