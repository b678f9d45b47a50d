"""Describe the results of ``manage.py dcron import`` for jobs and their calendars."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from django_dcron.contrib.importers.calendars import CalendarMove
from django_dcron.contrib.importers.comparison import DIFFERENCES, Move, MoveKind
from django_dcron.jobs.representation import public, text_of
from django_dcron.management.dcron.output import BAD, GOOD, ODD, QUIET, Output

STYLES = {
    MoveKind.CREATE: GOOD,
    MoveKind.CHANGE: GOOD,
    MoveKind.KEPT: ODD,
    MoveKind.LEFT: QUIET,
    MoveKind.DELETED: QUIET,
    MoveKind.CONFLICT: BAD,
    MoveKind.REFUSED: BAD,
}
DONE = {MoveKind.CREATE: "created", MoveKind.CHANGE: "changed"}


def verb_of(kind: MoveKind, *, applied: bool) -> str:
    return DONE.get(kind, str(kind)) if applied else str(kind)


def format_counts(kinds: Iterable[MoveKind], *, applied: bool) -> str:
    """Format the number of moves of each kind, done or planned; empty if there are none."""
    counts = Counter(kinds)
    labels = {kind: f"to {kind}" if kind in DIFFERENCES else str(kind) for kind in MoveKind}
    labels |= DONE if applied else {}
    return ", ".join(f"{counts[kind]} {labels[kind]}" for kind in MoveKind if counts[kind])


def show_calendars(out: Output, moves: list[CalendarMove], *, applied: bool) -> None:
    for move in moves:
        for detail in _details(move):
            verb = verb_of(move.kind, applied=applied)
            out.line(f"{verb} calendar {move.name} {detail}", STYLES.get(move.kind, ""))
        for warning in move.warnings:
            out.line(f"! calendar {move.name}: {warning}", ODD)
    if text := format_counts((move.kind for move in moves), applied=applied):
        out.line(f"Calendars: {text}.")


def _details(move: CalendarMove) -> list[str]:
    if move.kind is MoveKind.CREATE:
        return [_shown(move.changes["dates"][1])]
    if move.reasons:
        return list(move.reasons)
    return [f"{name}: {_shown(was)} -> {_shown(now)}" for name, (was, now) in move.changes.items()]


def _shown(value: Any) -> str:
    return ", ".join(text_of(value).splitlines())


def changes_of(
    move: Move | CalendarMove, changes: Mapping[str, tuple[Any, Any]] | None = None
) -> dict[str, Any]:
    """Return the changes for programs, by default those of the move, with secrets redacted."""
    both = move.changes if changes is None else changes
    was = public({name: was for name, (was, _now) in both.items()})
    now = public({name: now for name, (_was, now) in both.items()})
    return {name: {"from": was[name], "to": now[name]} for name in was}
