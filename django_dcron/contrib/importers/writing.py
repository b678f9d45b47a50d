"""Apply a comparison: save the jobs in batches, after the calendars.

A job that takes over from the source, or whose import key another job has, is saved on its own.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial

from django.core.exceptions import ValidationError
from django.db import OperationalError, transaction

from django_dcron import control
from django_dcron.contrib.importers.comparison import Move, MoveKind
from django_dcron.contrib.importers.found import unforeseen
from django_dcron.db.contention import despite_contention
from django_dcron.db.routing import alias_for
from django_dcron.exceptions import Conflict
from django_dcron.jobs.saving import REFUSALS, SAVED_AT_ONCE
from django_dcron.jobs.sync.changes import messages_of
from django_dcron.models import Cursor, Job, Run
from django_dcron.policies.chains import in_dependency_order, key_of
from django_dcron.policies.lifecycle import State, Trigger

WITHOUT_CALENDAR = "calendar: the calendar can't be imported"


def without(unwritten: Collection[str], moves: Iterable[Move]) -> list[Move]:
    """Refuse the jobs that name a calendar in ``unwritten``."""
    return [
        replace(move, kind=MoveKind.REFUSED, reasons=(WITHOUT_CALENDAR,), job=None)
        if move.job is not None and move.job.calendar_id in unwritten
        else move
        for move in moves
    ]


def carry_out(moves: Iterable[Move]) -> Iterator[Move]:
    """Save the jobs, and yield each one when its batch is done.

    A job that can no longer be saved is refused.
    """
    ordered = _earlier_first(list(moves))
    for start in range(0, len(ordered), SAVED_AT_ONCE):
        part = ordered[start : start + SAVED_AT_ONCE]
        taken = _taken_keys(part)
        together: list[Move] = []
        for move in part:
            takes_over = move.job is not None and move.ran_until is not None
            if not takes_over and _key_of(move) not in taken:
                together.append(move)
                continue
            yield from _write_together(together)
            together = []
            yield _write(move)
        yield from _write_together(together)


def _key_of(move: Move) -> tuple[str, str | None]:
    job = move.job
    return (job.import_source, job.import_key) if job is not None else ("", None)


def _taken_keys(moves: Sequence[Move]) -> set[tuple[str, str | None]]:
    """Return the import keys of the moves that another job has, or another of the moves."""
    wanted: dict[tuple[str, str | None], int | None] = {}
    taken = set()
    for move in moves:
        if move.job is not None and move.job.import_key is not None:
            if _key_of(move) in wanted:
                taken.add(_key_of(move))
            wanted[_key_of(move)] = move.job.pk
    keys = {key for _source, key in wanted}
    rows = Job.objects.using(alias_for(Job)).filter(import_key__in=keys) if keys else ()
    return taken | {
        (job.import_source, job.import_key)
        for job in rows
        if wanted.get((job.import_source, job.import_key), job.pk) != job.pk
    }


def _write_together(moves: Sequence[Move]) -> Iterator[Move]:
    jobs = {number: move.job for number, move in enumerate(moves) if move.job is not None}
    errors = control.save_many(jobs.values(), keep_going=True) if jobs else {}
    refused = dict(zip(jobs, map(errors.get, range(len(jobs))), strict=True))
    for number, move in enumerate(moves):
        error = refused.get(number)
        yield move if error is None else _refusal(move, reasons_of(error))


def _earlier_first(moves: list[Move]) -> list[Move]:
    """Sort the moves so that each job comes after its predecessors, which must exist first."""
    before: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for move in moves:
        labels = move.job.after if move.job else ()
        before.setdefault((move.namespace, move.name), []).extend(map(key_of, labels))
    rank = {key: number for number, key in enumerate(in_dependency_order(before))}
    return sorted(moves, key=lambda move: rank[move.namespace, move.name])


def _write(move: Move) -> Move:
    assert move.job is not None  # noqa: S101 (for the type checker)
    refused = why_refused(partial(despite_contention, partial(_save, move), alias_for(Job)))
    return _refusal(move, refused) if refused else move


def _refusal(move: Move, reasons: tuple[str, ...]) -> Move:
    return replace(move, kind=MoveKind.REFUSED, reasons=reasons, job=None)


def _save(move: Move) -> None:
    """Save the job. If it takes over, what was due since the source's last run is due here."""
    job, before, ran_until = move.job, move.existing, move.ran_until
    assert job is not None  # noqa: S101 (for the type checker)
    with transaction.atomic(using=alias_for(Job)):
        _release_key(job)
        if ran_until is None:
            control.save(job)
        elif before is None:
            _create_since(job, ran_until)
        elif before.enabled:
            control.save(job)
            _repeat_latest(job, ran_until)
        else:
            # The end of a pause is where the occurrences of a job begin to count.
            resting = copy.copy(before)
            resting.paused_until = ran_until
            job.version = control.save(resting).version
            control.save(job)


def _create_since(job: Job, ran_until: datetime) -> None:
    """Create the job as if it had been paused until ``ran_until``."""
    job.enabled, job.paused_until = False, ran_until
    control.save(job)
    cursors = Cursor.objects.using(alias_for(Cursor))
    cursors.filter(pk=job.pk, placed_at__gt=ran_until).update(placed_at=ran_until)
    job.enabled = True
    control.save(job)


def _repeat_latest(job: Job, ran_until: datetime) -> None:
    """Run the latest occurrence that only the shadow has run since the source stopped."""
    shadowed = Run.objects.using(alias_for(Run)).filter(
        job=job, trigger=Trigger.SCHEDULE, state=State.SUCCEEDED, scheduled_at__gt=ran_until
    )
    if (latest := shadowed.order_by("-scheduled_at").first()) is not None:
        control.rerun(latest)


def _release_key(job: Job) -> None:
    """Take the job's import key from another job, whose entry got another key in the source."""
    if job.import_key is not None:
        same_key = Job.objects.using(alias_for(Job)).filter(
            import_source=job.import_source, import_key=job.import_key
        )
        same_key.exclude(pk=job.pk).update(import_key=None)


def why_refused(save: Callable[[], object]) -> tuple[str, ...]:
    """Call ``save``. Return why it has written nothing, or an empty tuple."""
    try:
        save()
    except REFUSALS as error:
        return reasons_of(error)
    return ()


def reasons_of(error: Exception) -> tuple[str, ...]:
    """Return why a row wasn't written. Raises an error that doesn't concern the row."""
    if isinstance(error, OperationalError):
        raise error
    if isinstance(error, ValidationError):
        return messages_of(error)
    if isinstance(error, Conflict):
        return ("changed or deleted by someone else during the import; run the import again",)
    return (unforeseen(error),)
