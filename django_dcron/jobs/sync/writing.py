"""Apply a plan to the jobs that still have the compared versions.

The jobs are saved in batches. Jobs to disable, and jobs that a batch refuses, are written one by
one, because other processes may be applying the same plan.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from django.core.exceptions import ValidationError
from django.db import IntegrityError, OperationalError

from django_dcron.db.routing import alias_for
from django_dcron.exceptions import Conflict
from django_dcron.jobs import pausing, saving
from django_dcron.jobs.audit.entries import SYNCED
from django_dcron.jobs.batch_reading import JobToSave
from django_dcron.jobs.locking import batches_of_keys
from django_dcron.jobs.sync.changes import ChangeKind, SyncChange, messages_of
from django_dcron.jobs.sync.comparison import assign, plan
from django_dcron.models import Job
from django_dcron.models.job_states import NO_LONGER_DECLARED
from django_dcron.policies.chains import in_dependency_order
from django_dcron.policies.job_labels import split_label

MAX_TRIES = 5
"""Maximum number of tries to write a job that other processes write at the same time."""


def apply(
    changes: Iterable[SyncChange], on_progress: Callable[[int, int], object] | None = None
) -> list[SyncChange]:
    """Apply a plan. Returns the changes that were applied, kept or refused.

    Changes that another process applied in the meantime are omitted. ``on_progress`` is called
    with the number of jobs that are written and their total.
    """
    ordered = _in_dependency_order(list(changes))
    total = sum(change.is_difference for change in ordered)
    show = on_progress or (lambda done, total: None)
    saved = _save_together(
        [change for change in ordered if change.is_difference], lambda done: show(done, total)
    )
    applied = []
    for change in ordered:
        if not change.is_difference or change.key in saved:
            applied.append(change)
        else:
            applied += _apply_alone(change)
    show(total, total)
    return applied


def _save_together(
    changes: Sequence[SyncChange], on_progress: Callable[[int], object]
) -> set[tuple[str, str]]:
    """Save the jobs that still have the compared version.

    Returns the namespaces and names of the saved jobs.
    """
    rows = {
        job.pk: job
        for keys in batches_of_keys({change.pk for change in changes if change.pk})
        for job in Job.objects.using(alias_for(Job)).filter(pk__in=keys)
    }
    jobs: dict[tuple[str, str], Job] = {}
    for change in changes:
        if change.kind is ChangeKind.CREATE:
            jobs[change.key] = _new(change)
        elif change.kind is not ChangeKind.DISABLE:
            row = rows.get(change.pk)
            if row is not None and row.version == change.version:
                assign(row, change.values)
                jobs[change.key] = row
    to_save = [JobToSave(job, reason=SYNCED) for job in jobs.values()]
    errors = saving.save_changes(to_save, keep_going=True, on_progress=on_progress)
    return {key for position, key in enumerate(jobs) if position not in errors}


def _new(change: SyncChange) -> Job:
    namespace, name = change.key
    return Job(namespace=namespace, name=name, **change.values)


def _in_dependency_order(changes: list[SyncChange]) -> list[SyncChange]:
    """Order the changes so that a job is created before the jobs that follow it."""
    before: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for change in changes:
        before.setdefault(change.key, []).extend(
            split_label(label) for label in change.values.get("after", ())
        )
    rank = {key: number for number, key in enumerate(in_dependency_order(before))}
    return sorted(changes, key=lambda change: rank[change.key])


def _apply_alone(change: SyncChange) -> list[SyncChange]:
    """Write one job. After a failure, compare it again and write the new difference."""
    last_error: Exception | None = None
    for attempt in range(MAX_TRIES):
        try:
            _write(change)
            return [change]
        except (Conflict, IntegrityError, OperationalError, ValidationError) as error:
            last_error = error
        time.sleep(random.uniform(0, 0.05 * attempt))  # noqa: S311 (spreads nodes that started together)
        replanned = plan(only=change.key)
        differences = [other for other in replanned if other.is_difference]
        if not differences:  # another process applied the change, or it has become impossible
            return [other for other in replanned if other.is_problem]
        change = differences[0]
    details: tuple[str, ...] = (f"not saved after {MAX_TRIES} tries: {last_error}",)
    if isinstance(last_error, ValidationError):
        details = messages_of(last_error)
    return [replace(change, kind=ChangeKind.INVALID, details=details)]


def _write(change: SyncChange) -> None:
    if change.kind is ChangeKind.CREATE:
        saving.save_change(JobToSave(_new(change), reason=SYNCED))
        return
    job = Job.objects.using(alias_for(Job)).filter(pk=change.pk, version=change.version).first()
    if job is None:
        raise Conflict(f"{change.job} was changed or deleted by another process.")
    if change.kind is ChangeKind.DISABLE:  # without validation, because its target may be missing
        # A person's pause keeps its reason, but must no longer end automatically.
        pausing.pause(job, NO_LONGER_DECLARED if job.enabled else job.pause_reason)
        return
    assign(job, change.values)
    saving.save_change(JobToSave(job, reason=SYNCED))
