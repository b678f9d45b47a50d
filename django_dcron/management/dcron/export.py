"""``manage.py dcron export``: jobs as JSON or YAML, with the calendars that they name. Exit codes: 0; 1 no job is so; 2 it cannot be written."""

from __future__ import annotations

import sys
from io import TextIOWrapper
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from django_dcron.domain.counts_in_words import number_of
from django_dcron.management.dcron.choosing import add_filters, filter_of
from django_dcron.management.dcron.exits import cannot, no
from django_dcron.management.dcron.finding import JOB_HELP, find_job
from django_dcron.models import Job
from django_dcron.observability.jobs import jobs
from django_dcron.sync import portable
from django_dcron.sync.portable import Syntax

HELP = (
    "Write jobs, all of them or those chosen, as a document that another installation can import and that diffs well: every field of "
    "each definition, the calendars that they name, none of the history. YAML needs django-dcron[yaml]. Exit code 1: no job is so."
)
EXAMPLES = """
export --output jobs.json
export --namespace shop --output shop.yaml
export nightly-report shop/import-orders --format yaml
"""
SUFFIXES = {".json": Syntax.JSON, ".yaml": Syntax.YAML, ".yml": Syntax.YAML}


def add_arguments(parser: CommandParser) -> None:
    parser.add_argument(
        "jobs", nargs="*", metavar="JOB", help=f"{JOB_HELP}; none: all, or those chosen below"
    )
    add_filters(parser)
    parser.add_argument(
        "--format",
        choices=[syntax.value for syntax in Syntax],
        help="how it is written (by the name of the file, else json)",
    )
    parser.add_argument("--output", metavar="PATH", help="the file to write (standard output)")


def run(command: BaseCommand, options: dict[str, Any]) -> None:
    path = Path(options["output"]) if options["output"] else None
    found = _chosen(options)
    if not found:
        raise no("No job is so; nothing was written.")
    text = portable.write(found, _syntax(options["format"], path))
    if path is None:
        if getattr(command, "_called_from_command_line", False) and isinstance(sys.stdout, TextIOWrapper):
            sys.stdout.reconfigure(encoding="utf-8")  # as a document is, whatever the terminal's language
        command.stdout.write(text, ending="")
        return
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise cannot(f"--output {options['output']!r} cannot be written: {error}") from error
    command.stdout.write(f"{number_of(len(found), 'job')} written to {path}.")


def _chosen(options: dict[str, Any]) -> list[Job]:
    if not options["jobs"]:
        return list(jobs(filter_of(options)))
    for name in ("namespace", "tag", "search", "state"):
        if options[name]:
            raise cannot(f"Name jobs, or choose them by --{name}: not both.")
    return list({job.pk: job for job in map(find_job, options["jobs"])}.values())


def _syntax(given: str | None, path: Path | None) -> Syntax:
    if given:
        return Syntax(given)
    return SUFFIXES.get(path.suffix.lower(), Syntax.JSON) if path else Syntax.JSON
