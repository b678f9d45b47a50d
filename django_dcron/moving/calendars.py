"""The calendars that an export brings, against those that exist; and the writing of them, which comes before that of the jobs.

What is changed is changed for every job that names it, also for those that the export does not have: a warning counts them all. One
that a job names which cannot be moved stays as it is: it might leave a job that goes on as it was no occurrence.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from django_dcron import control
from django_dcron.domain.counts_in_words import number_of
from django_dcron.models import Calendar, Job
from django_dcron.models.database import alias_for
from django_dcron.moving.comparison import DIFFERENCES, PROBLEMS, Move, MoveKind
from django_dcron.moving.found import FoundCalendar
from django_dcron.moving.writing import why_refused


@dataclass(frozen=True, slots=True)
class CalendarMove:
    """What is to be done with one calendar, or why nothing is."""

    kind: MoveKind
    name: str
    reasons: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    changes: Mapping[str, tuple[Any, Any]] = field(default_factory=dict)
    """Field, what it is, what it is to be. Of a new calendar: all, from None."""
    calendar: Calendar | None = field(default=None, repr=False)
    """As it is to be; None: it is refused."""


def compare(found: Iterable[FoundCalendar]) -> list[CalendarMove]:
    """In the order of ``found``. Writes nothing."""
    entries = list(found)
    rows = Calendar.objects.using(alias_for(Calendar)).in_bulk([each.name for each in entries])
    return [_move(each, rows.get(each.name)) for each in entries]


def to_be(moves: Iterable[CalendarMove]) -> dict[str, Calendar]:
    """The calendars by name, for the comparison of the jobs that name them."""
    return {move.name: move.calendar for move in moves if move.calendar is not None}


def held_back(moves: Iterable[CalendarMove], jobs: Iterable[Move]) -> list[CalendarMove]:
    """With those refused that are to be written and that a job names which cannot be moved. ``jobs``: as compared with ``to_be``."""
    unmoved = {
        name: move
        for move in jobs
        if move.kind in PROBLEMS
        for name in (*move.found.calendars, move.found.values.get("calendar"))
    }
    return [
        _held_back(move, unmoved[move.name]) if move.kind in DIFFERENCES and move.name in unmoved else move
        for move in moves
    ]


def carry_out(moves: Iterable[CalendarMove]) -> Iterator[CalendarMove]:
    """Each once it is done; refused, if it was changed since it was compared."""
    for move in moves:
        yield _write(move) if move.kind in DIFFERENCES else move


def _move(found: FoundCalendar, before: Calendar | None) -> CalendarMove:
    if found.refused:
        return CalendarMove(MoveKind.REFUSED, found.name, (found.refused,))
    if before is None:
        changes = {name: (None, value) for name, value in found.values.items()}
        calendar = Calendar(name=found.name, **found.values)
        return CalendarMove(MoveKind.CREATE, found.name, changes=changes, calendar=calendar)
    changes = {
        name: (getattr(before, name), value)
        for name, value in found.values.items()
        if getattr(before, name) != value
    }
    if not changes:
        return CalendarMove(MoveKind.SAME, found.name, calendar=before)
    calendar = copy.copy(before)
    for name, (_was, value) in changes.items():
        setattr(calendar, name, value)
    return CalendarMove(
        MoveKind.CHANGE, found.name, warnings=_concerned(before), changes=changes, calendar=calendar
    )


def _held_back(move: CalendarMove, job: Move) -> CalendarMove:
    reason = f"it is not written: {job} names it, and cannot be moved"
    return replace(move, kind=MoveKind.REFUSED, reasons=(reason,), warnings=(), calendar=None)


def _concerned(calendar: Calendar) -> tuple[str, ...]:
    number = Job.objects.using(alias_for(Job)).filter(calendar=calendar.pk).count()
    return (f"{number_of(number, 'job names', 'jobs name')} it here, and will go by it",) if number else ()


def _write(move: CalendarMove) -> CalendarMove:
    assert move.calendar is not None  # noqa: S101 (for the type checker)
    refused = why_refused(partial(control.save_calendar, move.calendar))
    return replace(move, kind=MoveKind.REFUSED, reasons=refused, calendar=None) if refused else move
