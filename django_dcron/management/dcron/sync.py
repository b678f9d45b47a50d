"""``manage.py dcron sync``: bring the jobs declared with @cron into the database.

Exit codes: 0 done, or nothing to do; 1 ``--check`` found differences; 2 a declaration is invalid or collides with a job
made by people (the others are carried out all the same).
"""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from django_dcron import sync
from django_dcron.management.dcron.exits import cannot, no
from django_dcron.management.dcron.plain_text import printable
from django_dcron.sync import Change, ChangeKind

HELP = (
    "Create, update and disable the jobs that the code declares with @cron. Exit codes: 1 --check found differences; 2 a "
    "declaration is invalid, or its job was made by people."
)
EXAMPLES = """
sync
sync --dry-run
sync --check
"""
DONE = {
    ChangeKind.CREATE: "created",
    ChangeKind.UPDATE: "updated",
    ChangeKind.ENABLE: "enabled",
    ChangeKind.DISABLE: "disabled",
    ChangeKind.KEEP: "kept",
}
STYLES = {
    ChangeKind.CREATE: "SUCCESS",
    ChangeKind.ENABLE: "SUCCESS",
    ChangeKind.DISABLE: "WARNING",
    ChangeKind.CONFLICT: "ERROR",
    ChangeKind.INVALID: "ERROR",
}


def add_arguments(parser: CommandParser) -> None:
    only = parser.add_mutually_exclusive_group()
    only.add_argument(
        "--check", action="store_true", help="write nothing; exit 1 if the database differs from the code"
    )
    only.add_argument("--dry-run", action="store_true", help="write nothing; show what would be done")


def run(command: BaseCommand, options: dict[str, Any]) -> None:
    writes = not (options["check"] or options["dry_run"])
    changes = sync.apply(sync.plan()) if writes else sync.plan()
    for change in changes:
        _print(command, change, writes)
    differences = [change for change in changes if change.is_difference]
    problems = [change for change in changes if change.is_problem]
    if problems:
        raise cannot(f"{len(problems)} to be corrected by hand, see above.")
    if options["check"] and differences:
        raise no("The database differs from the code; manage.py dcron sync brings it in line.")
    if not differences:
        command.stdout.write("The database is in line with the code.")


def _print(command: BaseCommand, change: Change, writes: bool) -> None:
    """A line for each detail, so that each can be read and searched for by itself."""
    verb = (
        DONE.get(change.kind, change.kind.value)
        if writes or change.kind is ChangeKind.KEEP
        else change.kind.value
    )
    style = getattr(command.style, STYLES.get(change.kind, "NOTICE"))
    for detail in change.details or ("",):
        command.stdout.write(f"{style(verb)} {printable(f'{change.job} {detail}')}".rstrip())
