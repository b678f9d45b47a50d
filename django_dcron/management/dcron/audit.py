"""``manage.py dcron audit``: list or export the audit log.

Exit codes:

- 0: success.
- 2: the request can't be processed.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db.models import Q

from django_dcron.db.now import database_now
from django_dcron.db.routing import alias_for
from django_dcron.diagnosis.audit_log import COLUMNS, entries_between, entry_document
from django_dcron.jobs.audit.differences import shown_changes
from django_dcron.management.dcron.lookup import JOB_HELP, find_job
from django_dcron.management.dcron.option_values import (
    add_period,
    parse_period,
    parse_whole_number,
)
from django_dcron.management.dcron.output import Column, Output, time_text
from django_dcron.models import AuditAction, AuditEntry, AuditKind, Via
from django_dcron.models.audit_entry import AuditEntryQuerySet
from django_dcron.policies.job_labels import label_of, split_label
from django_dcron.utils.csv_cells import csv_cell

HELP = (
    "List changes of jobs and runs, with who made them, newest first. With --format csv or jsonl, "
    "export all selected entries, oldest first."
)
EXAMPLES = """
audit --since 2d
audit shop/import-orders --action pause
audit --since 1h --json
audit --since 2026-11-01 --format jsonl > audit.jsonl
"""
DEFAULT_LIMIT = 50
MAX_LIMIT = 10_000
READ_AT_ONCE = 1_000


def add_arguments(parser: CommandParser) -> None:
    parser.add_argument(
        "job",
        metavar="JOB",
        nargs="?",
        help=f"the entries of this job and its runs, also of a deleted job; {JOB_HELP}",
    )
    add_period(parser)
    parser.add_argument("--user", metavar="NAME", help="the entries of this user")
    parser.add_argument(
        "--action",
        action="append",
        default=[],
        choices=AuditAction.values,
        help="entries of this action (repeatable)",
    )
    parser.add_argument(
        "--via",
        action="append",
        default=[],
        choices=Via.values,
        help="entries of changes made this way (repeatable)",
    )
    parser.add_argument(
        "-n",
        "--limit",
        type=parse_whole_number(1, MAX_LIMIT),
        default=DEFAULT_LIMIT,
        metavar="N",
        help=f"maximum number of entries of a table or with --json (default: {DEFAULT_LIMIT})",
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument(
        "--format",
        choices=["table", "csv", "jsonl"],
        default="table",
        help="the format of the output (default: table)",
    )
    form.add_argument("--json", action="store_true", help="output the entries of the table as JSON")


def run(command: BaseCommand, options: dict[str, Any]) -> None:
    entries = _entries(options)
    if options["format"] == "csv":
        _write_csv(command, entries)
    elif options["format"] == "jsonl":
        for entry in _oldest_first(entries):
            command.stdout.write(json.dumps(entry_document(entry)))
    else:
        _show_latest(Output(command, options), entries, options["limit"])


def _entries(options: dict[str, Any]) -> AuditEntryQuerySet:
    using = alias_for(AuditEntry)
    since, until = parse_period(options, database_now(using))
    entries = entries_between(AuditEntry.objects.using(using), since, until)
    if options["job"]:
        entries = _of_job(entries, options["job"])
    if options["user"]:
        entries = entries.filter(actor=options["user"])
    if options["action"]:
        entries = entries.filter(action__in=options["action"])
    return entries.filter(via__in=options["via"]) if options["via"] else entries


def _of_job(entries: AuditEntryQuerySet, text: str) -> AuditEntryQuerySet:
    """Return the entries of the job and of deleted jobs of its name. Raises ``CommandError``."""
    # The entries keep a job's name and number after its deletion.
    using = AuditEntry.objects.using(entries.db).filter(kind=AuditKind.JOB)
    try:
        job = find_job(text, with_deleted=True)
        earlier = using.filter(action=AuditAction.DELETE, label=str(job)).order_by()
        return entries.filter(job_id__in={job.pk, *earlier.values_list("job_id", flat=True)[:1000]})
    except CommandError:
        of_job = Q(label=label_of(*split_label(text)))
        if text.isdecimal() and len(text) <= 18:
            of_job |= Q(job_id=int(text))
        keys = set(using.filter(of_job).order_by().values_list("job_id", flat=True)[:1000])
        if not keys:
            raise
        return entries.filter(job_id__in=keys)


def _oldest_first(entries: AuditEntryQuerySet) -> Iterator[AuditEntry]:
    """Yield the entries page by page, so that memory is bounded and no cursor stays open."""
    last = 0
    while page := list(entries.filter(pk__gt=last).order_by("pk")[:READ_AT_ONCE]):
        yield from page
        last = page[-1].pk


def _write_csv(command: BaseCommand, entries: AuditEntryQuerySet) -> None:
    writer = csv.writer(command.stdout, lineterminator="\n")
    writer.writerow(COLUMNS)
    for entry in _oldest_first(entries):
        writer.writerow([csv_cell(value) for value in entry_document(entry).values()])


def _show_latest(out: Output, entries: AuditEntryQuerySet, limit: int) -> None:
    found = list(entries.order_by("-at", "-pk")[: limit + 1])
    if out.is_json:
        documents = [entry_document(entry) for entry in found[:limit]]
        out.json({"version": 1, "entries": documents, "more": len(found) > limit})
        return
    if not found:
        out.line("No entries.")
        return
    columns: list[Column | str] = ["Time", "User", "Via", "Action", "Object"]
    columns += [Column("Version", right=True), Column("Changes", wraps=True)]
    out.table(columns, (_cells(entry) for entry in found[:limit]))
    if len(found) > limit:
        out.line("There are more entries. To show them, use --limit or --format.")


def _cells(entry: AuditEntry) -> list[str]:
    user = f"{entry.actor or '-'}{f' ({entry.address})' if entry.address else ''}"
    named = f"{entry.kind} {entry.label}"
    changes = ", ".join(filter(None, (entry.reason, shown_changes(entry.before, entry.after))))
    version = "-" if entry.version is None else str(entry.version)
    return [time_text(entry.at), user, entry.via, entry.action, named, version, changes]
