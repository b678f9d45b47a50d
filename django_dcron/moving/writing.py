"""Carrying out a comparison: each job by itself, as a person would save it, after the calendars."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import replace
from functools import partial

from django.core.exceptions import ValidationError
from django.db import DataError

from django_dcron import control
from django_dcron.domain.chains import earlier_first, key_of
from django_dcron.exceptions import Conflict
from django_dcron.moving.comparison import Move, MoveKind
from django_dcron.moving.found import unforeseen
from django_dcron.sync.changes import messages_of

NOT_STORABLE = (DataError, ValueError, TypeError, OverflowError, RecursionError)
"""What a value raises that passed all validation, and that this database, or its driver, does not take."""
WITHOUT_CALENDAR = "calendar: it is not written"


def without(unwritten: Collection[str], moves: Iterable[Move]) -> list[Move]:
    """``unwritten``: the calendars that are not written, which no job is to name that was compared with them."""
    return [
        replace(move, kind=MoveKind.REFUSED, reasons=(WITHOUT_CALENDAR,), job=None)
        if move.job is not None and move.job.calendar_id in unwritten
        else move
        for move in moves
    ]


def carry_out(moves: Iterable[Move]) -> Iterator[Move]:
    """Each once it is done; refused, if it has become impossible since it was compared."""
    for move in _earlier_first(list(moves)):
        yield _write(move) if move.job is not None else move


def _earlier_first(moves: list[Move]) -> list[Move]:
    """A job that comes after another one cannot be made before it."""
    before: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for move in moves:
        labels = move.job.after if move.job else ()
        before.setdefault((move.namespace, move.name), []).extend(map(key_of, labels))
    rank = {key: number for number, key in enumerate(earlier_first(before))}
    return sorted(moves, key=lambda move: rank[move.namespace, move.name])


def _write(move: Move) -> Move:
    assert move.job is not None  # noqa: S101 (for the type checker)
    refused = why_refused(partial(control.save, move.job))
    return replace(move, kind=MoveKind.REFUSED, reasons=refused, job=None) if refused else move


def why_refused(save: Callable[[], object]) -> tuple[str, ...]:
    """Call ``save``; why it has written nothing, if so."""
    try:
        save()
    except ValidationError as error:
        return messages_of(error)
    except Conflict as error:
        return (f"{error} Import once more.",)
    except NOT_STORABLE as error:
        return (unforeseen(error),)
    return ()
