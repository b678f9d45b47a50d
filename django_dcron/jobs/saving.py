"""Save, change and delete the definitions of jobs and calendars, and move the cursors.

``batch`` saves jobs, one or many. ``placement`` decides about their cursors.

Invariants:

- A job's row and its cursor change in one transaction. The same transaction deletes runs that were
  claimed ahead from the old definition.
- A change made while no node was running loses no occurrence (``placement``).
- A save names the version of the job that it read. If the row has another version, the save raises
  ``Conflict`` and writes nothing.
- This module never writes columns that belong to the scheduler or the workers.
- ``move_outdated_cursors`` finds definitions that were written without this module by comparing
  rows.
- No enabled job can be left without any possible run. A save that would do so fails. When the last
  job that a job follows is deleted, the follower is disabled if it has no schedule.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime
from functools import partial

from django.core.exceptions import ValidationError
from django.db import DataError, IntegrityError, OperationalError, connections, transaction
from django.db.models import F, Q

from django_dcron.db.contention import (
    despite_contention,
    is_contention,
    isolating_errors,
)
from django_dcron.db.now import database_now
from django_dcron.db.routing import alias_for
from django_dcron.exceptions import BulkSaveError, Conflict, NotPossible
from django_dcron.jobs import chains
from django_dcron.jobs.batch import JobToSave, Original, keys_of, restore, save_batch
from django_dcron.jobs.locking import lock, lock_all, lock_cursors, lock_jobs, lock_version
from django_dcron.jobs.placement import place_cursor, runs_without_schedule
from django_dcron.models import Calendar, Cursor, DeletedImport, Job, Run
from django_dcron.models.cursor import same_definition
from django_dcron.models.job import JobQuerySet
from django_dcron.utils.messages import gettext_noop as _

EXHAUSTED = _("its schedule has no further occurrence")
SAVED_AT_ONCE = 500
MOVED_AT_ONCE = 500
DELETED_AT_ONCE = 1_000
NOT_STORABLE = (DataError, ValueError, TypeError, OverflowError, RecursionError)
"""Exceptions for values that pass validation but that the database or its driver can't store."""
REFUSALS = (ValidationError, Conflict, IntegrityError, *NOT_STORABLE)
"""Exceptions that concern one job."""


def save(job: Job, *, expected_version: int | None = None) -> Job:
    """Validate and save ``job``, and move its cursor if its occurrences change.

    ``expected_version`` is the version that the change is based on, by default the instance's. A
    paused job keeps the end of its pause unless ``paused_until`` changes. Raises
    ``ValidationError`` by field, or ``Conflict`` if the row has another version; then nothing is
    saved.
    """
    using, change = alias_for(Job), JobToSave(job, expected_version)
    despite_contention(lambda: _save_one(change, using), using)
    return job


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
    on_progress: Callable[[int], object] | None = None,
) -> dict[int, Exception]:
    """Save jobs in their order, with the same results as ``save`` of each, in few statements.

    By default, all jobs are saved in one transaction, or none: raises ``BulkSaveError`` with the
    error of each refused job. With ``keep_going``, the other jobs are saved, and the errors are
    returned by the position of the job in ``jobs``. Then each batch of jobs is a transaction.

    ``expected_versions``: for each job, the ``expected_version`` of ``save``. ``on_progress`` is
    called after each batch with the number of jobs that are done.
    """
    using, jobs = alias_for(Job), list(jobs)
    versions = [None] * len(jobs) if expected_versions is None else list(expected_versions)
    changes = [JobToSave(*each) for each in zip(jobs, versions, strict=True)]
    on_progress = on_progress or (lambda done: None)
    if keep_going:
        return _save_in_batches(changes, using, on_progress)
    despite_contention(lambda: _save_all(changes, using, on_progress), using)
    return {}


def _save_all(changes: list[JobToSave], using: str, on_progress: Callable[[int], object]) -> None:
    originals = [Original.of(change.job) for change in changes]
    try:
        with transaction.atomic(using=using):
            lock_all(keys_of(changes), using)
            if errors := _save_in_batches(changes, using, on_progress):
                raise BulkSaveError(errors)
    except BaseException as error:
        restore(originals)
        if isinstance(error, IntegrityError):  # at the commit
            _raise_invalid(changes)
        raise


def _raise_invalid(changes: list[JobToSave]) -> None:
    errors: dict[int, Exception] = {}
    for position, change in enumerate(changes):
        try:
            change.job.full_clean()
        except ValidationError as error:
            errors[position] = error
    if errors:
        raise BulkSaveError(errors)


def _save_in_batches(
    changes: list[JobToSave], using: str, on_progress: Callable[[int], object]
) -> dict[int, Exception]:
    """Save batch by batch. If the database refuses a batch, save smaller ones to find the job."""
    refused: dict[int, Exception] = {}
    position, size = 0, SAVED_AT_ONCE
    while position < len(changes):
        batch = changes[position : position + size]
        try:
            done, errors = _save_some(batch, using)
        except Exception as error:
            if len(batch) > 1 and not isinstance(error, OperationalError):
                size = len(batch) // 2
                continue
            if not isinstance(error, REFUSALS) and not _is_temporary(error, using):
                raise
            done, errors = len(batch), dict.fromkeys(range(len(batch)), error)
        refused |= {position + number: error for number, error in errors.items()}
        position, size = position + done, min(SAVED_AT_ONCE, 2 * done)
        on_progress(position)
    return refused


def _save_some(batch: list[JobToSave], using: str) -> tuple[int, dict[int, Exception]]:
    if len(batch) > 1:
        return despite_contention(lambda: save_batch(batch, using), using)
    despite_contention(lambda: _save_one(batch[0], using), using)
    return 1, {}


def _is_temporary(error: Exception, using: str) -> bool:
    """Return whether the next batch may succeed, because only other transactions were in the way.

    Such an error has broken a surrounding transaction.
    """
    return is_contention(error) and not connections[using].in_atomic_block


def save_calendar(calendar: Calendar, *, expected_version: int | None = None) -> Calendar:
    """Validate and save ``calendar``, and move the cursors of its jobs if its dates change.

    The cursors move after the commit of the surrounding transaction. From then on, nodes don't use
    the old dates. ``expected_version`` and the exceptions are those of ``save``.
    """
    using = alias_for(Calendar)
    calendar.full_clean()
    is_new, version = calendar._state.adding, calendar.version
    try:
        with transaction.atomic(using=using):
            if not is_new:
                expected = version if expected_version is None else expected_version
                _lock_calendar(calendar.pk, expected, using)
                calendar.version = expected + 1
            calendar.save(using=using, force_insert=is_new)
            # If there are many jobs, or this process dies here, nodes move the other cursors.
            transaction.on_commit(
                partial(_move_cursors_of_calendar, calendar.pk, using), using=using, robust=True
            )
    except BaseException as error:
        calendar.version, calendar._state.adding = version, is_new
        if isinstance(error, IntegrityError):
            calendar.full_clean()  # another process may have taken the name
        raise
    return calendar


def delete_calendar(calendar: Calendar, *, expected_version: int | None = None) -> None:
    """Delete ``calendar``.

    ``expected_version`` is that of ``delete``. Raises ``Conflict``, or ``NotPossible`` if a job
    names the calendar.
    """
    using = alias_for(Calendar)
    despite_contention(lambda: _delete_calendar(calendar, expected_version, using), using)


def _delete_calendar(calendar: Calendar, expected_version: int | None, using: str) -> None:
    with transaction.atomic(using=using):
        _lock_calendar(calendar.pk, expected_version, using)
        # A save of a job that is about to name the calendar waits for this lock and then fails.
        named_by = Job.objects.using(using).filter(calendar=calendar.pk).first()
        if named_by is not None:
            raise NotPossible(
                _("%(calendar)s can't be deleted, because %(job)s uses it."),
                calendar=str(calendar),
                job=str(named_by),
                code="in_use",
            )
        Calendar.objects.using(using).filter(pk=calendar.pk).delete()


def _lock_calendar(name: str, expected_version: int | None, using: str) -> None:
    row = Calendar.objects.using(using).select_for_update().filter(pk=name).first()
    if row is None:
        raise Conflict(_("The calendar has been deleted. Nothing was saved."), code="deleted")
    if expected_version is not None and row.version != expected_version:
        raise Conflict(
            _("%(job)s was changed by someone else. Nothing was saved. Reload it and try again."),
            job=row.name,
            code="changed",
        )


def _move_cursors_of_calendar(name: str, using: str) -> None:
    move_outdated_cursors(database_now(using), Job.objects.using(using).filter(calendar=name))


def disable_exhausted(exhausted: Iterable[int], using: str) -> None:
    """Disable jobs without further occurrences, unless they run without a schedule.

    The caller has locked their cursors.
    """
    jobs = Job.objects.using(using).filter(pk__in=exhausted)
    to_disable = [job.pk for job in jobs if not runs_without_schedule(job)]
    Job.objects.using(using).filter(pk__in=to_disable, enabled=True).update(
        enabled=False, pause_reason=EXHAUSTED, paused_until=None, version=F("version") + 1
    )
    Cursor.objects.using(using).filter(pk__in=to_disable).update(enabled=False)


def delete(job: Job, *, expected_version: int | None = None) -> None:
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
            lock_jobs(chains.connected([job.pk], chains.read_edges(using)), using)
        # The cursor and the job are locked first, so that no further run is claimed or triggered.
        row = lock_version(job.pk, expected_version, using)
        if chains.is_linked(row, using):
            # Nodes disable a follower that was linked meanwhile: its cursor isn't locked here.
            followers = [key for key in chains.followers(row, using) if key in locked]
            chains.forget(row, using)
            _disable_exhausted_followers(followers, using)
        Cursor.objects.using(using).filter(pk=job.pk).delete()
        while run_ids := list(
            runs.order_by("scheduled_at").values_list("pk", flat=True)[:DELETED_AT_ONCE]
        ):
            runs.filter(pk__in=run_ids).delete()
        if row.import_key is not None:
            _remember_deleted_import(row, using)
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


def move_outdated_cursors(now: datetime, jobs: JobQuerySet) -> int:
    """Move the cursors of the ``jobs`` that are new or were changed without ``save``.

    Returns their number.
    """
    outdated = jobs.filter(Q(cursor=None) | ~same_definition("cursor__", "")).values_list(
        "pk", flat=True
    )
    return _move_each_cursor(list(outdated[:MOVED_AT_ONCE]), now, jobs.db)


def retry_quarantined(now: datetime, jobs: JobQuerySet) -> int:
    """Try quarantined ``jobs`` again: this node may accept them, or the cause may be corrected.

    If the next occurrence is known, the claim decides from there. Returns the number of jobs tried.
    """
    quarantined = jobs.filter(enabled=True, cursor__problem__gt="").values_list("pk", flat=True)
    placed = list(quarantined.exclude(cursor__next_at=None)[:MOVED_AT_ONCE])
    unplaced = list(quarantined.filter(cursor__next_at=None)[:MOVED_AT_ONCE])
    tried = Cursor.objects.using(jobs.db).filter(pk__in=placed).update(problem="")
    return tried + _move_each_cursor(unplaced, now, jobs.db)


def _move_each_cursor(job_ids: list[int], now: datetime, using: str) -> int:
    moved = 0
    for job_id in job_ids:
        with isolating_errors(f"the change of job {job_id}", using):
            moved += _move_cursor(job_id, now, using)
    return moved


def _move_cursor(job_id: int, now: datetime, using: str) -> bool:
    with transaction.atomic(using=using):
        job = lock(job_id, using, nowait=True)
        if job is None:
            return False
        if job.enabled and job.paused_until:  # otherwise it would end a later pause
            Job.objects.using(using).filter(pk=job_id).update(paused_until=None)
        # The caller read ``now`` some time ago. Occurrences that fell due since then must be kept.
        cursor = place_cursor(job, max(now, database_now(using)), using)
        if job.enabled and cursor.next_at is None and not cursor.problem:
            disable_exhausted([job_id], using)
    return True
