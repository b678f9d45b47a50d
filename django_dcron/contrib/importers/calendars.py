"""Compare the calendars of an export with the existing ones, and write them before the jobs.

Invariants:

- A changed calendar affects all jobs that name it, including jobs outside the export. A warning
  counts them.
- A calendar named by a job that can't be imported isn't written. It could leave that job without
  any occurrence.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from django_dcron import control
from django_dcron.contrib.importers.comparison import DIFFERENCES, PROBLEMS, Move, MoveKind
from django_dcron.contrib.importers.found import FoundCalendar
from django_dcron.contrib.importers.writing import why_refused
from django_dcron.db.routing import alias_for
from django_dcron.models import Calendar, Job
from django_dcron.utils.counts import number_of


@dataclass(frozen=True, slots=True)
class CalendarMove:
    """The action for one calendar, or why there is none."""

    kind: MoveKind
    name: str
    reasons: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    changes: Mapping[str, tuple[Any, Any]] = field(default_factory=dict)
    """Maps fields to old and new values.

    For a new calendar, all fields, with None as the old value.
    """
    calendar: Calendar | None = field(default=None, repr=False)
    """The calendar to save. None: it is refused."""


def compare(found: Iterable[FoundCalendar]) -> list[CalendarMove]:
    """Compare calendars, in the order of ``found``, without writing."""
    entries = list(found)
    rows = Calendar.objects.using(alias_for(Calendar)).in_bulk([each.name for each in entries])
    return [_move(each, rows.get(each.name)) for each in entries]


def to_be(moves: Iterable[CalendarMove]) -> dict[str, Calendar]:
    """Return the calendars to save by name, for the comparison of the jobs that name them."""
    return {move.name: move.calendar for move in moves if move.calendar is not None}


def held_back(moves: Iterable[CalendarMove], jobs: Iterable[Move]) -> list[CalendarMove]:
    """Return the moves, with refusals for calendars that a job with a problem names.

    ``jobs``: the moves of the jobs, compared with the calendars of ``to_be``.
    """
    unmoved = {
        name: move
        for move in jobs
        if move.kind in PROBLEMS
        for name in (*move.found.calendars, move.found.values.get("calendar"))
    }
    return [
        _held_back(move, unmoved[move.name])
        if move.kind in DIFFERENCES and move.name in unmoved
        else move
        for move in moves
    ]


def carry_out(moves: Iterable[CalendarMove]) -> Iterator[CalendarMove]:
    """Write the calendars and yield each one when done.

    A calendar is refused if it was changed since the comparison.
    """
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
        MoveKind.CHANGE,
        found.name,
        warnings=_affected_jobs_note(before),
        changes=changes,
        calendar=calendar,
    )


def _held_back(move: CalendarMove, job: Move) -> CalendarMove:
    reason = f"not saved, because job {job}, which uses it, can't be imported"
    return replace(move, kind=MoveKind.REFUSED, reasons=(reason,), warnings=(), calendar=None)


def _affected_jobs_note(calendar: Calendar) -> tuple[str, ...]:
    number = Job.objects.using(alias_for(Job)).filter(calendar=calendar.pk).count()
    return (f"this also changes {number_of(number, 'existing job')} that use it",) if number else ()


def _write(move: CalendarMove) -> CalendarMove:
    assert move.calendar is not None  # noqa: S101 (for the type checker)
    refused = why_refused(partial(control.save_calendar, move.calendar))
    return replace(move, kind=MoveKind.REFUSED, reasons=refused, calendar=None) if refused else move
