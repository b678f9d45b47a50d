"""``manage.py dcron export``: write jobs and their calendars as JSON or YAML.

Exit codes:

- 0: success.
- 1: no job matches.
- 2: a job is unknown, names are combined with filters, or the output can't be written.
"""

from __future__ import annotations

import sys
from io import TextIOWrapper
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from django_dcron.diagnosis.job_filters.job_filter import jobs_matching
from django_dcron.jobs import portable
from django_dcron.jobs.portable import DocumentSyntax
from django_dcron.management.dcron.exits import negative_result, usage_error
from django_dcron.management.dcron.job_selection import FILTERS, add_filters, filter_of
from django_dcron.management.dcron.lookup import JOB_HELP, find_job
from django_dcron.models import Job
from django_dcron.utils.counts import number_of

HELP = (
    "Write all or some jobs as a document for another installation or for version control. It "
    "contains all fields of each job and the calendars in use, but no history. YAML needs "
    "django-dcron[yaml]. Exit code 1: no jobs match."
)
EXAMPLES = """
export --output jobs.json
export --namespace shop --output shop.yaml
export nightly-report shop/import-orders --format yaml
"""
SUFFIXES = {".json": DocumentSyntax.JSON, ".yaml": DocumentSyntax.YAML, ".yml": DocumentSyntax.YAML}


def add_arguments(parser: CommandParser) -> None:
    parser.add_argument(
        "jobs",
        nargs="*",
        metavar="JOB",
        help=f"{JOB_HELP} (default: all jobs that match the options)",
    )
    add_filters(parser)
    parser.add_argument(
        "--format",
        choices=[syntax.value for syntax in DocumentSyntax],
        help="file format (default: from the file name, else json)",
    )
    parser.add_argument("--output", metavar="PATH", help="output file (default: standard output)")


def run(command: BaseCommand, options: dict[str, Any]) -> None:
    path = Path(options["output"]) if options["output"] else None
    found = _chosen(options)
    if not found:
        raise negative_result("No jobs match; nothing was written.")
    text = portable.write_document(found, _syntax(options["format"], path))
    if path is None:
        if getattr(command, "_called_from_command_line", False) and isinstance(
            sys.stdout, TextIOWrapper
        ):
            # A document is UTF-8, whatever the terminal's encoding.
            sys.stdout.reconfigure(encoding="utf-8")
        command.stdout.write(text, ending="")
        return
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise usage_error(
            f"--output {options['output']!r} isn't writable: {error.strerror}."
        ) from error
    command.stdout.write(f"{number_of(len(found), 'job')} written to {path}.")


def _chosen(options: dict[str, Any]) -> list[Job]:
    if not options["jobs"]:
        return list(jobs_matching(filter_of(options)))
    for name in FILTERS:
        if options[name]:
            raise usage_error(f"Job names can't be combined with --{name}.")
    return list({job.pk: job for job in map(find_job, options["jobs"])}.values())


def _syntax(given: str | None, path: Path | None) -> DocumentSyntax:
    if given:
        return DocumentSyntax(given)
    return SUFFIXES.get(path.suffix.lower(), DocumentSyntax.JSON) if path else DocumentSyntax.JSON
