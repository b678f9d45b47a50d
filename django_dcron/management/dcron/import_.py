"""``manage.py dcron import``: import jobs from another scheduler, a crontab or an export.

Exit codes:

- 0: success, or there is nothing to do.
- 1: some entries can't be imported (the others are; with ``--atomic``, none is), or ``--report``
  found a difference.
- 2: the source can't be read, or ``--report`` had too little to compare.
"""

from __future__ import annotations

import shlex
from argparse import ArgumentTypeError
from collections.abc import Iterable
from functools import cache
from typing import Any

from django.conf import settings as django_settings
from django.core.exceptions import ValidationError
from django.core.management.base import BaseCommand, CommandParser
from django.db import transaction

from django_dcron.contrib.importers import calendars, sources
from django_dcron.contrib.importers.calendars import CalendarMove
from django_dcron.contrib.importers.comparison import (
    DIFFERENCES,
    PAUSE,
    PROBLEMS,
    Changes,
    Move,
    MoveKind,
    awaiting_handover,
    compare,
    gone_from,
    shadows_left,
)
from django_dcron.contrib.importers.found import Reading, SourceProblem
from django_dcron.contrib.importers.origins import stored_key
from django_dcron.contrib.importers.sources import FOR_FILES, OPTIONS, SCHEDULERS, Format
from django_dcron.contrib.importers.writing import carry_out, without
from django_dcron.db.now import database_now
from django_dcron.db.routing import alias_for
from django_dcron.exceptions import InvalidSchedule
from django_dcron.jobs.representation import JOB_DEFINITION, JOB_FIELDS, definition_of
from django_dcron.management.dcron.exits import negative_result, usage_error
from django_dcron.management.dcron.import_report import report
from django_dcron.management.dcron.import_words import (
    STYLES,
    changes_of,
    format_counts,
    show_calendars,
    verb_of,
)
from django_dcron.management.dcron.numbers import whole
from django_dcron.management.dcron.output import ODD, Output, add_json
from django_dcron.management.dcron.progress_bar import ProgressBar
from django_dcron.management.dcron.times import time_help
from django_dcron.models import Job
from django_dcron.schedules.zones import check_zone
from django_dcron.targets.shadow import PREFIX
from django_dcron.utils.counts import number_of
from django_dcron.utils.json_values import same_json
from django_dcron.utils.suggestions import did_you_mean

HELP = (
    "Import jobs from another scheduler, a crontab or an export. Shows what would be created and "
    "changed, field by field; --apply writes it. Exit code 1: some entries can't be imported, "
    "each with its reason (the others are written, unless --atomic); with --report: there are "
    "differences."
)
EXAMPLES = """
import django-celery-beat
import django-celery-beat --apply --disabled
import django-celery-beat --apply --shadow
import django-celery-beat --report --since 10m
import redbeat --namespace shop --apply
import /etc/crontab --timezone Europe/Berlin
import jobs.yaml --apply --atomic
"""

SHOWN_ANYWAY = {"namespace", "name", "schedule", "timezone", "target", "description", *PAUSE}
"""Fields that the line of a new job shows in another form, or that are too long for it."""


def add_arguments(parser: CommandParser) -> None:
    names = ", ".join(SCHEDULERS)
    parser.add_argument(
        "source",
        metavar="SOURCE",
        help=f"{names}; or a file: an export (.json, .yaml) or a crontab; - is standard input",
    )
    parser.add_argument(
        "--format",
        choices=[form.value for form in Format],
        help="file format (default: by its name); lines of a system-crontab contain a user",
    )
    parser.add_argument(
        "--namespace",
        type=_namespace,
        help="namespace of the jobs (default: the namespace in an export, otherwise 'default')",
    )
    add_source_options(parser)
    parser.add_argument(
        "--disabled",
        action="store_true",
        help="create new jobs paused, while the old scheduler is still running",
    )
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument(
        "--dry-run",
        action="store_true",
        help="show what would be done; write nothing (default)",
    )
    mode.add_argument("--apply", action="store_true", help="write the changes")
    mode.add_argument(
        "--report",
        action="store_true",
        help="compare the runs of the old scheduler with the runs of its shadow jobs",
    )
    parser.add_argument(
        "--atomic",
        action="store_true",
        help="with --apply: write all entries in one transaction, or none if one can't be imported",
    )
    parser.add_argument(
        "--shadow",
        action="store_true",
        help="create new jobs as shadows: scheduled and recorded, but not executed",
    )
    parser.add_argument(
        "--overwrite",
        action="append",
        type=_field,
        default=[],
        metavar="FIELD",
        help="take the source's value even if somebody changed this field here (repeatable)",
    )
    parser.add_argument(
        "--restore",
        action="append",
        default=[],
        metavar="NAME",
        help="create this job again although it was deleted here; * matches any text (repeatable)",
    )
    parser.add_argument(
        "--since", default="1h", help=f"start of --report: {time_help()} (default: 1h)"
    )
    parser.add_argument(
        "--at-least",
        type=whole(0, 100),
        default=50,
        metavar="PERCENT",
        help="--report fails with exit code 2 if it compares fewer of the shadows that ran "
        "(default: 50)",
    )
    add_json(parser)


def add_source_options(parser: CommandParser) -> None:
    """Add the options that the reader of a source gets."""
    parser.add_argument(
        "--timezone",
        help="time zone of a crontab's machine (default: TIME_ZONE, for django-crontab that of "
        "this machine)",
    )
    users = ", ".join(name for name, allowed in OPTIONS.items() if "app" in allowed)
    parser.add_argument(
        "--app",
        metavar="PATH",
        help=f"dotted path of the instance to read, such as shop.queue.huey ({users}; default: "
        "that of its Django app)",
    )


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
        source=reading.source,
        overwrite=options["overwrite"],
        restore=options["restore"],
        # There is no handover from a file.
        take_over=options.get("take_over", False) or reading.source not in SCHEDULERS,
        calendars=calendars.to_be(planned),
    )
    planned = calendars.held_back(planned, moves)
    if options["apply"] and options["atomic"]:
        brought, doing, applied = _write_all(planned, moves)
    else:
        applied = options["apply"]
        brought, doing = _write_each(planned, moves) if applied else _plan(planned, moves)
    if out.is_json:
        done = list(doing)
        out.json(_document(options, reading, brought, done, applied=applied))
    else:
        show_calendars(out, brought, applied=applied)
        done = _show(out, reading, doing, len(moves), applied=applied)
        _show_remainder(out, options, _gone(reading, done), done)
    kinds = [*(calendar.kind for calendar in brought), *(move.kind for move in done)]
    if DIFFERENCES & {*kinds} and not options["apply"] and not out.is_json:
        out.line("Nothing was written. To write, use --apply.")
    if problems := sum(kind in PROBLEMS for kind in kinds):
        nothing = "" if applied or not options["apply"] else " Nothing was written."
        raise negative_result(
            f"{problems} of {len(kinds)} entries can't be "
            f"imported{'' if out.is_json else ', see above'}.{nothing}"
        )


def _write_each(
    planned: list[CalendarMove], moves: list[Move]
) -> tuple[list[CalendarMove], Iterable[Move]]:
    """Write all entries that can be written. The jobs are written while they are iterated."""
    brought, allowed = _plan(list(calendars.carry_out(planned)), moves)
    return brought, carry_out(allowed)


def _plan(
    brought: list[CalendarMove], moves: list[Move]
) -> tuple[list[CalendarMove], Iterable[Move]]:
    """Refuse the jobs whose calendars are refused."""
    unwritten = {calendar.name for calendar in brought if calendar.kind in PROBLEMS}
    return brought, without(unwritten, moves)


def _write_all(
    planned: list[CalendarMove], moves: list[Move]
) -> tuple[list[CalendarMove], Iterable[Move], bool]:
    """Write all entries, or none. Returns the outcomes, and whether the entries were written."""
    using = alias_for(Job)
    with transaction.atomic(using=using):
        brought, doing = _write_each(planned, moves)
        done = list(doing)
        kinds = {*(calendar.kind for calendar in brought), *(move.kind for move in done)}
        if refused := bool(kinds & PROBLEMS):
            transaction.set_rollback(True, using=using)
    return brought, done, not refused


def _gone(reading: Reading, moves: list[Move]) -> list[Job]:
    return gone_from(reading.source, moves) if reading.source else []


def _field(text: str) -> str:
    allowed = sorted({each.name for each in JOB_DEFINITION} - {"namespace", "declared", *PAUSE[1:]})
    if text not in allowed:
        raise ArgumentTypeError(
            f"unknown field {text!r}.{did_you_mean(text, allowed)} Allowed: {', '.join(allowed)}"
        )
    return text


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
            given = {name: options[name] for name in FOR_FILES if options[name]}
            return sources.read_scheduler(source, database_now(alias_for(Job)), given)
        if options["app"]:
            raise usage_error(f"--app is not for files. Sources: {', '.join(SCHEDULERS)}.")
        zone = check_zone(options["timezone"] or django_settings.TIME_ZONE)
        form = Format(options["format"]) if options["format"] else None
        return sources.read_file(source, form, zone, options["namespace"] or "")
    except InvalidSchedule as error:
        raise usage_error(str(error)) from error
    except SourceProblem as error:
        raise usage_error(f"{error} Sources: {', '.join(SCHEDULERS)}, or a file.") from error


def _show(
    out: Output, reading: Reading, doing: Iterable[Move], total: int, *, applied: bool
) -> list[Move]:
    """Show each move as soon as it is planned or carried out."""
    moves = []
    with ProgressBar(out) as bar:
        for move in doing:
            moves.append(move)
            if move.kind is not MoveKind.SAME:
                _show_move(bar, move, applied=applied)
            if applied and out.is_terminal:
                bar.show(len(moves), total)
    for note in reading.notes:
        out.line(f"! {note}", ODD)
    _show_shell(out, reading)
    message = format_counts((move.kind for move in moves), applied=applied)
    out.line(f"{message or 'Nothing to import'}.")
    return moves


def _show_move(out: ProgressBar, move: Move, *, applied: bool) -> None:
    verb = verb_of(move.kind, applied=applied)
    details = list(move.reasons)
    if move.kind is MoveKind.CREATE and move.job is not None:
        why = f": {move.job.pause_reason}" if move.job.pause_reason else ""
        paused = "" if move.job.enabled else f", paused{why}"
        details.append(
            f"{move.job.schedule} ({move.job.timezone}) {move.job.target}"
            f"{_other_fields(move)}{paused}"
        )
    else:
        details += _change_texts(move.changes)
    if move.found.origin not in (move.name, str(move)) and move.kind in (
        *PROBLEMS,
        MoveKind.LEFT,
        MoveKind.DELETED,
    ):
        details = [f"({move.found.origin}) {detail}" for detail in details]
    for detail in details:
        out.line(f"{verb} {move} {detail}", STYLES.get(move.kind, ""))
    for name, (here, there) in move.kept.items():
        text = JOB_FIELDS[name].text
        out.line(
            f"kept {move} {name}: {text(here)} ({_why_kept(name)}; source: {text(there)})",
            STYLES[MoveKind.KEPT],
        )
    for warning in move.found.warnings:
        out.line(f"! {move} {warning}", ODD)


def _change_texts(changes: Changes) -> list[str]:
    """Return one text per change. The reason and the end of a pause belong to ``enabled``."""
    switched, texts = "enabled" in changes, []
    for name, (was, now) in changes.items():
        if switched and name in PAUSE[1:]:
            continue
        text = JOB_FIELDS[name].text
        reason = " ".join(filter(None, changes.get("pause_reason", ()))) if name == PAUSE[0] else ""
        texts.append(f"{name}: {text(was)} -> {text(now)}{f' ({reason})' if reason else ''}")
    return texts


@cache
def _defaults() -> dict[str, Any]:
    return definition_of(Job())


def _other_fields(move: Move) -> str:
    """Return the fields of a new job that differ from the defaults, such as `` queue=mail``."""
    defaults = _defaults()
    return "".join(
        f" {name}={JOB_FIELDS[name].text(value)}"
        for name, (_was, value) in move.changes.items()
        if name not in SHOWN_ANYWAY and not same_json(value, defaults[name])
    )


def _why_kept(field: str) -> str:
    if field == "name":
        return "a job keeps its name; to rename it: --overwrite name"
    return "changed here"


def _show_remainder(
    out: Output, options: dict[str, Any], gone: list[Job], moves: list[Move]
) -> None:
    """Show the jobs that the source no longer has, and the shadows that stay shadows."""
    for job in gone:
        state = "enabled" if job.enabled else "paused"
        out.line(
            f"! {job} is gone from the source, but {state} here; to stop it: manage.py dcron "
            f"pause {shlex.quote(str(job))}"
            if job.enabled
            else f"! {job} is gone from the source, and {state} here",
            ODD,
        )
    for job in [] if options["shadow"] else _shadows(gone, moves):
        out.line(f"! {job} is still a shadow: its code isn't executed", ODD)
    if waiting := _awaiting_handover(options, moves):
        out.line(
            f"! {number_of(len(waiting), 'job stays', 'jobs stay')} paused or a shadow until "
            f"manage.py dcron handover {options['source']}",
            ODD,
        )


def _awaiting_handover(options: dict[str, Any], moves: list[Move]) -> list[Job]:
    if options["source"] not in SCHEDULERS or options.get("take_over"):
        return []
    return awaiting_handover(moves)


def _shadows(gone: list[Job], moves: list[Move]) -> list[Job]:
    return [*shadows_left(moves), *(job for job in gone if job.target.startswith(PREFIX))]


def _show_shell(out: Output, reading: Reading) -> None:
    if not reading.shell:
        return
    out.line("Add these commands to your settings:")
    out.line("DCRON_SHELL = {")
    for name, argv in reading.shell.items():
        out.line(f"    {name!r}: {argv!r},")
    out.line("}")


def _document(
    options: dict[str, Any],
    reading: Reading,
    brought: list[CalendarMove],
    moves: list[Move],
    *,
    applied: bool,
) -> dict[str, Any]:
    gone = _gone(reading, moves)
    return {
        "version": 1,
        "source": options["source"],
        "applied": applied,
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
                "key": stored_key(move.found),
                "namespace": move.namespace,
                "name": move.name,
                "outcome": move.kind,
                "reasons": move.reasons,
                "warnings": move.found.warnings,
                "changes": changes_of(move),
                "kept": changes_of(move, move.kept),
            }
            for move in moves
        ],
        "gone": [_reference(job) for job in gone],
        "shadows": [_reference(job) for job in _shadows(gone, moves)],
        "awaiting_handover": [_reference(job) for job in _awaiting_handover(options, moves)],
        "notes": reading.notes,
        "shell": reading.shell,
    }


def _reference(job: Job) -> dict[str, Any]:
    return {"namespace": job.namespace, "name": job.name, "enabled": job.enabled}
