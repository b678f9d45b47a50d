"""How ``manage.py dcron import`` words what it finds and does, of jobs and of the calendars that they name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from django_dcron.management.dcron.output import BAD, GOOD, ODD, QUIET, Output
from django_dcron.moving.calendars import CalendarMove
from django_dcron.moving.comparison import DIFFERENCES, Move, MoveKind
from django_dcron.sync.changes import shown
from django_dcron.targets import redacted

STYLES = {
    MoveKind.CREATE: GOOD,
    MoveKind.CHANGE: GOOD,
    MoveKind.LEFT: QUIET,
    MoveKind.CONFLICT: BAD,
    MoveKind.REFUSED: BAD,
}
DONE = {MoveKind.CREATE: "created", MoveKind.CHANGE: "changed"}


def verb_of(kind: MoveKind, *, applied: bool) -> str:
    return DONE.get(kind, str(kind)) if applied else str(kind)


def counted(kinds: Iterable[MoveKind], *, applied: bool) -> str:
    """How many of each, done or to be done; empty: there are none."""
    counts = Counter(kinds)
    said = {kind: f"to {kind}" if kind in DIFFERENCES else str(kind) for kind in MoveKind}
    said |= DONE if applied else {}
    return ", ".join(f"{counts[kind]} {said[kind]}" for kind in MoveKind if counts[kind])


def show_calendars(out: Output, moves: list[CalendarMove], *, applied: bool) -> None:
    for move in moves:
        for detail in _details(move):
            verb = verb_of(move.kind, applied=applied)
            out.line(f"{verb} calendar {move.name} {detail}", STYLES.get(move.kind, ""))
        for warning in move.warnings:
            out.line(f"! calendar {move.name}: {warning}", ODD)
    if said := counted((move.kind for move in moves), applied=applied):
        out.line(f"Calendars: {said}.")


def _details(move: CalendarMove) -> list[str]:
    if move.kind is MoveKind.CREATE:
        return [_shown(move.changes["dates"][1])]
    if move.reasons:
        return list(move.reasons)
    return [f"{name}: {_shown(was)} -> {_shown(now)}" for name, (was, now) in move.changes.items()]


def _shown(value: Any) -> str:
    return ", ".join(shown(value).splitlines())


def changes_of(move: Move | CalendarMove) -> dict[str, Any]:
    """For programs."""
    return {
        name: {"from": redacted(was), "to": redacted(now)}
        if name in ("args", "kwargs")
        else {"from": was, "to": now}
        for name, (was, now) in move.changes.items()
    }
