"""``manage.py dcron import``: move jobs in, from another scheduler, a crontab or an export.

Exit codes: 0 done, or there is nothing to do; 1 some entries cannot be moved (the others are all the same), or of a report: something
differs; 2 the source cannot be read.
"""

from __future__ import annotations

from argparse import ArgumentTypeError
from collections.abc import Iterator
from typing import Any

from django.conf import settings as django_settings
from django.core.exceptions import ValidationError
from django.core.management.base import BaseCommand, CommandParser

from django_dcron.domain.zones import check_zone
from django_dcron.exceptions import InvalidSchedule
from django_dcron.management.dcron.exits import cannot, no
from django_dcron.management.dcron.import_report import report
from django_dcron.management.dcron.import_words import STYLES, changes_of, counted, show_calendars, verb_of
from django_dcron.management.dcron.output import ODD, Output, add_json
from django_dcron.management.dcron.times import time_help
from django_dcron.models import Job
from django_dcron.models.database import alias_for, database_now
from django_dcron.moving import calendars, sources
from django_dcron.moving.calendars import CalendarMove
from django_dcron.moving.comparison import DIFFERENCES, PROBLEMS, Move, MoveKind, compare
from django_dcron.moving.found import Reading, SourceProblem
from django_dcron.moving.sources import SCHEDULERS, Format
from django_dcron.moving.writing import carry_out, without
from django_dcron.sync.changes import shown

HELP = (
    "Move jobs in from another scheduler, a crontab, or what export has written. It shows what would be created and changed, field by "
    "field; --apply writes it. Exit code 1: some entries cannot be moved, each with its reason; the others are written all the same; of --report: something differs."
)
EXAMPLES = """
import django-celery-beat
import django-celery-beat --apply --disabled
import django-celery-beat --apply --shadow
import django-celery-beat --report --since 10m
import redbeat --namespace shop --apply
import /etc/crontab --timezone Europe/Berlin
import jobs.yaml --apply
"""


def add_arguments(parser: CommandParser) -> None:
    names = ", ".join(SCHEDULERS)
    parser.add_argument(
        "source",
        metavar="SOURCE",
        help=f"{names}; or a file: .json and .yaml as export writes them, any other is a crontab; - is the standard input",
    )
    parser.add_argument(
        "--format",
        choices=[form.value for form in Format],
        help="what the file is (by its name); of a system-crontab, lines name a user",
    )
    parser.add_argument(
        "--namespace", type=_namespace, help="the jobs' namespace (default; of an export, what it says)"
    )
    parser.add_argument(
        "--timezone", help="of a crontab: the zone of its machine's clock (the site's TIME_ZONE)"
    )
    parser.add_argument(
        "--disabled", action="store_true", help="new jobs arrive paused, while the old scheduler goes on"
    )
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument(
        "--dry-run", action="store_true", help="write nothing, show what would be done (the default)"
    )
    mode.add_argument("--apply", action="store_true", help="write it")
    mode.add_argument(
        "--report",
        action="store_true",
        help="hold what the old scheduler ran against what was due of the shadows",
    )
    parser.add_argument(
        "--shadow", action="store_true", help="new jobs are shadows: claimed and recorded, but not executed"
    )
    parser.add_argument("--since", default="1h", help=f"of --report: {time_help()} (1h)")
    add_json(parser)


def run(command: BaseCommand, options: dict[str, Any]) -> None:
    out, reading = Output(command, options), _read(options)
    if options["report"]:
        report(out, options, reading)
        return
    planned = calendars.compare(reading.calendars)
    moves = compare(
        reading.found,
        options["namespace"] or "default",
        disabled=options["disabled"],
        shadow=options["shadow"],
        calendars=calendars.to_be(planned),
    )
    planned = calendars.held_back(planned, moves)
    brought = list(calendars.carry_out(planned)) if options["apply"] else planned
    unwritten = {calendar.name for calendar in brought if calendar.kind in PROBLEMS}
    moves = without(unwritten, moves)
    doing = carry_out(moves) if options["apply"] else iter(moves)
    if out.is_json:
        done = list(doing)
        out.json(_document(options, reading, brought, done))
    else:
        show_calendars(out, brought, applied=options["apply"])
        done = _show(out, options, reading, doing)
    kinds = [*(calendar.kind for calendar in brought), *(move.kind for move in done)]
    if DIFFERENCES & {*kinds} and not options["apply"] and not out.is_json:
        out.line("Nothing was written: --apply does that.")
    if problems := sum(kind in PROBLEMS for kind in kinds):
        raise no(f"{problems} of {len(kinds)} cannot be moved{'' if out.is_json else ', see above'}.")


def _namespace(text: str) -> str:
    try:
        Job._meta.get_field("namespace").clean(text, None)
    except ValidationError as error:
        raise ArgumentTypeError(f"{text!r}: {' '.join(error.messages)}") from None
    return text


def _read(options: dict[str, Any]) -> Reading:
    source = options["source"]
    try:
        if source in SCHEDULERS:
            for name in ("format", "timezone"):
                if options[name]:
                    raise cannot(f"--{name} is for files; {source} knows its own.")
            return SCHEDULERS[source].read(database_now(alias_for(Job)))
        zone = check_zone(options["timezone"] or django_settings.TIME_ZONE)
        form = Format(options["format"]) if options["format"] else None
        return sources.read_file(source, form, zone, options["namespace"] or "")
    except InvalidSchedule as error:
        raise cannot(str(error)) from error
    except SourceProblem as error:
        raise cannot(f"{error} Sources: {', '.join(SCHEDULERS)}, or a file.") from error


def _show(out: Output, options: dict[str, Any], reading: Reading, doing: Iterator[Move]) -> list[Move]:
    """Each as it is done, if it is to be done."""
    moves = []
    for move in doing:
        moves.append(move)
        if move.kind is not MoveKind.SAME:
            _show_move(out, move, applied=options["apply"])
            out.flush()
    for note in reading.notes:
        out.line(f"! {note}", ODD)
    _show_shell(out, reading)
    said = counted((move.kind for move in moves), applied=options["apply"])
    out.line(f"{said or 'There is nothing to move'}.")
    return moves


def _show_move(out: Output, move: Move, *, applied: bool) -> None:
    verb = verb_of(move.kind, applied=applied)
    details = list(move.reasons)
    if move.kind is MoveKind.CREATE and move.job is not None:
        why = f": {move.job.pause_reason}" if move.job.pause_reason else ""
        paused = "" if move.job.enabled else f", paused{why}"
        details.append(f"{move.job.schedule} ({move.job.timezone}) {move.job.target}{paused}")
    else:
        details += [f"{name}: {shown(was)} -> {shown(now)}" for name, (was, now) in move.changes.items()]
    if move.found.origin not in (move.name, str(move)) and move.kind in (*PROBLEMS, MoveKind.LEFT):
        details = [f"({move.found.origin}) {detail}" for detail in details]
    for detail in details:
        out.line(f"{verb} {move} {detail}", STYLES.get(move.kind, ""))
    for warning in move.found.warnings:
        out.line(f"! {move} {warning}", ODD)


def _show_shell(out: Output, reading: Reading) -> None:
    if not reading.shell:
        return
    out.line("The settings need these commands:")
    out.line("DCRON_SHELL = {")
    for name, argv in reading.shell.items():
        out.line(f"    {name!r}: {argv!r},")
    out.line("}")


def _document(
    options: dict[str, Any], reading: Reading, brought: list[CalendarMove], moves: list[Move]
) -> dict[str, Any]:
    return {
        "version": 1,
        "source": options["source"],
        "applied": options["apply"],
        "counts": {str(kind): sum(move.kind is kind for move in moves) for kind in MoveKind},
        "calendars": [
            {
                "name": calendar.name,
                "outcome": calendar.kind,
                "reasons": calendar.reasons,
                "warnings": calendar.warnings,
                "changes": changes_of(calendar),
            }
            for calendar in brought
        ],
        "jobs": [
            {
                "origin": move.found.origin,
                "namespace": move.namespace,
                "name": move.name,
                "outcome": move.kind,
                "reasons": move.reasons,
                "warnings": move.found.warnings,
                "changes": changes_of(move),
            }
            for move in moves
        ],
        "notes": reading.notes,
        "shell": reading.shell,
    }
