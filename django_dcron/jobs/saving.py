"""Save jobs: one, or many in few statements.

``batch`` writes a batch of jobs. ``placement`` decides about their cursors.

Invariants:

- A job's row and its cursor change in one transaction. The same transaction deletes runs that were
  claimed ahead from the old definition.
- A change made while no node was running loses no occurrence (``placement``).
- A save names the version of the job that it read. If the row has another version, the save raises
  ``Conflict`` and writes nothing.
- A save of a stored job keeps its origin: the source, key and values that only an import writes.
- ``jobs.cursors`` finds definitions that were written without this module.
- A save fails if it would leave an enabled job without any possible run.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from django.core.exceptions import ValidationError
from django.db import IntegrityError, transaction

from django_dcron.db.contention import despite_contention
from django_dcron.db.routing import alias_for
from django_dcron.exceptions import BulkSaveError
from django_dcron.jobs.batch import OriginalState, restore_originals, save_batch
from django_dcron.jobs.batch_reading import JobToSave, keys_of
from django_dcron.jobs.batching import BatchResult, OnProgress, change_in_batches
from django_dcron.jobs.locking import lock_all
from django_dcron.jobs.row_arguments import require_row, require_rows
from django_dcron.models import Job

SAVED_AT_ONCE = 500
"""The maximum number of jobs in a batch."""
TAKEN = frozenset({"unique", "unique_together"})
"""The codes of errors about a name or another unique value that another row has."""


def save(job: Job, *, expected_version: int | None = None) -> Job:
    """Validate and save ``job``, and move its cursor if its occurrences change.

    The fields accept the values that ``@cron`` accepts, such as a number of seconds, an exception
    class, or a task as ``target``. The instance gets the stored values.

    ``expected_version`` is the version that the change is based on, by default the instance's. A
    paused job keeps the end of its pause unless ``paused_until`` changes. Raises
    ``ValidationError`` by field, or ``Conflict`` if the row has another version; then nothing is
    saved.
    """
    require_row(job, Job)
    return save_change(JobToSave(job, expected_version))


def save_change(change: JobToSave) -> Job:
    """Save a job as ``save`` does, in the way that the change describes."""
    using = alias_for(Job)
    despite_contention(lambda: _save_one(change, using), using)
    return change.job


def _save_one(change: JobToSave, using: str) -> None:
    try:
        save_batch([change], using)
    except IntegrityError:
        change.job.full_clean()  # another process may have taken the name
        raise


def save_many(
    jobs: Iterable[Job],
    *,
    expected_versions: Iterable[int | None] | None = None,
    keep_going: bool = False,
    on_progress: OnProgress | None = None,
) -> dict[int, Exception]:
    """Save jobs in order, in few statements. The results are those of ``save`` for each job.

    By default, one transaction saves all jobs. If a job is refused, nothing is saved, and
    ``BulkSaveError`` is raised with the error of each refused job. With ``keep_going``, the other
    jobs are saved, each batch in a transaction, and the errors are returned by the positions of
    their jobs.

    ``expected_versions`` has the ``expected_version`` of ``save`` for each job. ``on_progress`` is
    called after each batch with the number of jobs that are done.
    """
    jobs = require_rows(jobs, Job)
    versions = [None] * len(jobs) if expected_versions is None else list(expected_versions)
    changes = [JobToSave(*each) for each in zip(jobs, versions, strict=True)]
    return save_changes(
        changes, keep_going=keep_going, on_progress=on_progress or (lambda done: None)
    )


def save_changes(
    changes: Iterable[JobToSave],
    *,
    keep_going: bool = False,
    on_progress: OnProgress = lambda done: None,
) -> dict[int, Exception]:
    """Save jobs as ``save_many`` does, in the way that each change describes."""
    changes, using = list(changes), alias_for(Job)
    if keep_going:
        return _save_in_batches(changes, using, on_progress)
    despite_contention(lambda: _save_all(changes, using, on_progress), using)
    return {}


def _save_all(changes: list[JobToSave], using: str, on_progress: OnProgress) -> None:
    originals = [OriginalState.of(change.job) for change in changes]
    try:
        with transaction.atomic(using=using):
            lock_all(keys_of(changes), using)
            if errors := _save_in_batches(changes, using, on_progress):
                raise BulkSaveError(errors)
    except BaseException as error:
        restore_originals(originals)
        if isinstance(error, IntegrityError):  # at the commit
            _raise_invalid(changes)
        raise


def _raise_invalid(changes: list[JobToSave]) -> None:
    """Raise ``BulkSaveError`` if a job is invalid now, because its name is taken, for example."""
    errors: dict[int, Exception] = {}
    for position, change in enumerate(changes):
        try:
            change.job.full_clean()
        except ValidationError as error:
            errors[position] = error
    if errors:
        raise BulkSaveError(errors)


def _save_in_batches(
    changes: list[JobToSave], using: str, on_progress: OnProgress
) -> dict[int, Exception]:
    return change_in_batches(
        changes, lambda batch: _save_in_one_batch(batch, using), using, on_progress, SAVED_AT_ONCE
    )


def _save_in_one_batch(batch: Sequence[JobToSave], using: str) -> BatchResult:
    if len(batch) > 1:
        return despite_contention(lambda: save_batch(batch, using), using)
    despite_contention(lambda: _save_one(batch[0], using), using)
    return BatchResult(1, {})
