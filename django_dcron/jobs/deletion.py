"""Delete jobs with their runs.

Invariants:

- No run is claimed or triggered after the deletion has begun: the cursor and the job are locked
  first.
- No enabled job is left without any possible run. When the last job that a job follows is deleted,
  the follower is disabled if it has no schedule.
- Runs are locked before their places in limits are deleted, in the same order as at the end of a
  run (``runs.limits``). Otherwise, a run that ends could give its place to a run whose place is
  being deleted, and both transactions would wait for each other.
- An import doesn't create a deleted job again (``DeletedImport``).
"""

from __future__ import annotations

from django.db import transaction

from django_dcron.db.contention import despite_contention
from django_dcron.db.now import database_now
from django_dcron.db.routing import alias_for
from django_dcron.jobs import chains
from django_dcron.jobs.audit.recording import record_deletion
from django_dcron.jobs.cursors import disable_exhausted
from django_dcron.jobs.locking import lock_cursors, lock_jobs, lock_version_for_deletion
from django_dcron.models import Cursor, Definition, DeletedImport, Job, Run

DELETED_AT_ONCE = 1_000


def delete_job(job: Job, *, expected_version: int | None = None) -> None:
    """Delete ``job`` with its runs, in batches.

    ``expected_version`` is the version of the job as it was read; by default, any version is
    deleted. Raises ``Conflict``.
    """
    using = alias_for(Job)
    despite_contention(lambda: _delete(job, expected_version, using), using)


def _delete(job: Job, expected_version: int | None, using: str) -> None:
    runs = Run.objects.using(using).filter(job=job.pk)
    locked: list[int] = []
    with transaction.atomic(using=using):
        if chains.is_linked(job, using):
            locked = [job.pk, *chains.followers(job, using)]
            lock_cursors(locked, using)
            connected = chains.connected([job.pk], chains.read_edges(using))
            lock_jobs(connected, using, for_deletion=True)
        # The cursor and the job are locked first, so that no further run is claimed or triggered.
        row = lock_version_for_deletion(job.pk, expected_version, using)
        if chains.is_linked(row, using):
            # Nodes disable a follower that was linked meanwhile: its cursor isn't locked here.
            followers = [key for key in chains.followers(row, using) if key in locked]
            chains.delete_links(row, using)
            _disable_exhausted_followers(followers, using)
        Cursor.objects.using(using).filter(pk=job.pk).delete()
        while run_ids := list(
            runs.order_by("scheduled_at").values_list("pk", flat=True)[:DELETED_AT_ONCE]
        ):
            batch = runs.filter(pk__in=run_ids)
            list(batch.select_for_update().order_by("pk").values_list("pk", flat=True))
            batch.delete()
        Definition.objects.using(using).filter(job_id=job.pk).delete()
        if row.import_key is not None:
            _remember_deleted_import(row, using)
        record_deletion(row, using)
        job.delete(using=using)


def _remember_deleted_import(job: Job, using: str) -> None:
    DeletedImport.objects.using(using).update_or_create(
        import_source=job.import_source,
        import_key=job.import_key,
        defaults={
            "entry_name": (job.imported or {}).get("name", job.name),
            "deleted_at": database_now(using),
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
