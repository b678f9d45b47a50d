"""Lock the rows of jobs for a change, and check the version that the change is based on.

Invariants:

- Rows are locked in the order cursors, jobs, runs. The claim uses the same order, so the two never
  deadlock.
- Jobs are locked ``FOR NO KEY UPDATE``, so that nobody waits to insert a run. Only a deletion
  locks its jobs fully.
- Several rows of one table are locked in the order of their keys, so that two changes never
  deadlock.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from django_dcron.db.contention import can_skip_locked_rows, supports_no_key_update
from django_dcron.exceptions import Conflict
from django_dcron.models import Calendar, Cursor, Job, Limit
from django_dcron.utils.batches import in_batches
from django_dcron.utils.messages import gettext_noop as _

LOCKED_AT_ONCE = 1000
"""The maximum number of keys in one statement."""


def lock_job(
    job_id: int, using: str, *, nowait: bool = False, for_deletion: bool = False
) -> Job | None:
    """Lock the cursor, then the job, until the transaction ends. Return None if there is no job.

    With ``for_deletion``, nobody can insert a run of the job.
    """
    Cursor.objects.using(using).select_for_update(nowait=nowait).filter(pk=job_id).first()
    no_key = not for_deletion and supports_no_key_update(using)
    rows = Job.objects.using(using).select_for_update(nowait=nowait, no_key=no_key)
    return rows.filter(pk=job_id).first()


def lock_cursors(
    job_ids: Collection[int], using: str, *, skip_locked: bool = False
) -> dict[int, Cursor]:
    """Lock the cursors of jobs. The result lacks the jobs that have none.

    With ``skip_locked``, it also lacks those that another transaction has locked, if the database
    can skip them.
    """
    skip = skip_locked and can_skip_locked_rows(using)
    rows = Cursor.objects.using(using).select_for_update(skip_locked=skip).order_by("pk")
    return {row.pk: row for keys in batches_of_keys(job_ids) for row in rows.filter(pk__in=keys)}


def lock_jobs(
    job_ids: Collection[int], using: str, *, skip_locked: bool = False, for_deletion: bool = False
) -> dict[int, Job]:
    """Lock jobs whose cursors are locked. The result lacks the jobs that were deleted.

    ``skip_locked``: see ``lock_cursors``. ``for_deletion``: see ``lock_job``.
    """
    skip = skip_locked and can_skip_locked_rows(using)
    rows = Job.objects.using(using).order_by("pk")
    no_key = not for_deletion and supports_no_key_update(using)
    rows = rows.select_for_update(skip_locked=skip, no_key=no_key)
    return {row.pk: row for keys in batches_of_keys(job_ids) for row in rows.filter(pk__in=keys)}


def lock_all(job_ids: Collection[int], using: str) -> None:
    """Lock cursors and jobs, so that the transaction can lock them again in parts, in any order."""
    cursors = Cursor.objects.using(using).select_for_update()
    jobs = Job.objects.using(using).select_for_update(no_key=supports_no_key_update(using))
    for rows in (cursors, jobs):
        locked = rows.order_by("pk").values_list("pk", flat=True)
        for keys in batches_of_keys(job_ids):
            list(locked.filter(pk__in=keys))


def batches_of_keys(job_ids: Collection[int]) -> Iterator[list[int]]:
    """Return the keys in order, in parts for one statement each."""
    return in_batches(sorted(job_ids), LOCKED_AT_ONCE)


def lock_version_for_deletion(job_id: int, expected_version: int | None, using: str) -> Job:
    """Lock the job and check its version: see ``check_version``."""
    return check_version(lock_job(job_id, using, for_deletion=True), expected_version)


def check_version(row: Job | None, expected_version: int | None) -> Job:
    """Check the version of a locked job. None accepts any version.

    Raises ``Conflict`` if the job was deleted or has another version.
    """
    if row is None:
        raise Conflict(_("The job has been deleted. Nothing was saved."), code="deleted")
    if expected_version is not None and row.version != expected_version:
        raise changed_by_another(row)
    return row


def changed_by_another(row: Job | Calendar | Limit) -> Conflict:
    """Return the error for a row whose version isn't the expected one."""
    text = _(
        "%(job)s was changed in another window or by someone else. Nothing was saved. Reload it "
        "and try again."
    )
    return Conflict(text, job=str(row), code="changed")
