"""Apply a comparison: save each job on its own, after the calendars."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import replace
from datetime import datetime
from functools import partial

from django.core.exceptions import ValidationError
from django.db import DataError, transaction

from django_dcron import control
from django_dcron.contrib.importers.comparison import Move, MoveKind
from django_dcron.contrib.importers.found import unforeseen
from django_dcron.db.contention import despite_contention
from django_dcron.db.routing import alias_for
from django_dcron.exceptions import Conflict
from django_dcron.jobs.sync.changes import messages_of
from django_dcron.models import Cursor, Job, Run
from django_dcron.policies.chains import earlier_first, key_of
from django_dcron.policies.lifecycle import State, Trigger

NOT_STORABLE = (DataError, ValueError, TypeError, OverflowError, RecursionError)
"""Exceptions for values that pass validation but that the database or its driver can't store."""
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
    """Save the jobs and yield each one when done.

    A job that can no longer be saved is refused.
    """
    for move in _earlier_first(list(moves)):
        yield _write(move) if move.job is not None else move


def _earlier_first(moves: list[Move]) -> list[Move]:
    """Sort the moves so that each job comes after its predecessors, which must exist first."""
    before: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for move in moves:
        labels = move.job.after if move.job else ()
        before.setdefault((move.namespace, move.name), []).extend(map(key_of, labels))
    rank = {key: number for number, key in enumerate(earlier_first(before))}
    return sorted(moves, key=lambda move: rank[move.namespace, move.name])


def _write(move: Move) -> Move:
    assert move.job is not None  # noqa: S101 (for the type checker)
    refused = why_refused(partial(despite_contention, partial(_save, move), alias_for(Job)))
    return replace(move, kind=MoveKind.REFUSED, reasons=refused, job=None) if refused else move


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
    except ValidationError as error:
        return messages_of(error)
    except Conflict:
        return ("changed or deleted by someone else during the import; run the import again",)
    except NOT_STORABLE as error:
        return (unforeseen(error),)
    return ()
