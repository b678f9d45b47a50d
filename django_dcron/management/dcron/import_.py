"""``manage.py dcron import``: import jobs from another scheduler, a crontab or an export.

Exit codes:

- 0: success, or there is nothing to do. Entries that can't be imported may exist if they are
  disabled in the source and have no enabled job here.
- 1: other entries can't be imported (the rest is; with ``--atomic``, nothing is), or ``--report``
  found a difference.
- 2: the source can't be read, or ``--report`` had too little to compare.
"""

from __future__ import annotations

from argparse import ArgumentTypeError
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from django_dcron.contrib.importers.entry_plans import PAUSE
from django_dcron.contrib.importers.sources import SCHEDULERS, FileFormat
from django_dcron.jobs.representation import PORTABLE_JOB_FIELDS
from django_dcron.management.dcron.exits import negative_result, usage_error
from django_dcron.management.dcron.import_report import report
from django_dcron.management.dcron.importing import (
    ImportResult,
    add_source_options,
    import_entries,
    read_source,
)
from django_dcron.management.dcron.option_values import parse_whole_number, past_time_help
from django_dcron.management.dcron.output import Output, add_json
from django_dcron.utils.suggestions import did_you_mean

HELP = (
    "Import jobs from another scheduler, a crontab or an export. Shows what would be created and "
    "changed, field by field; --apply writes it. Exit codes: 0 if all entries are imported, except "
    "omitted ones, which can't be jobs, and refused ones that are disabled in the source and have "
    "no enabled job here; 1 if other entries are refused or conflict, each with its reason (the "
    "rest is written, unless --atomic); 2 if the source can't be read or an option is invalid, and "
    "nothing was written. With --report: 1 if there are differences; 2 if too few runs could be "
    "compared."
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


def add_arguments(parser: CommandParser) -> None:
    names = ", ".join(SCHEDULERS)
    parser.add_argument(
        "source",
        metavar="SOURCE",
        help=f"{names}; or a file: an export (.json, .yaml) or a crontab; - is standard input",
    )
    parser.add_argument(
        "--format",
        choices=[form.value for form in FileFormat],
        help="file format (default: by its name); lines of a system-crontab contain a user",
    )
    add_source_options(parser)
    parser.add_argument(
        "--without-shell",
        action="store_true",
        help="import lines of a crontab that call a management command of this project as "
        "command:NAME; variables and redirections are dropped, and flock becomes the overlap "
        "policy; the output lists what each job omits",
    )
    parser.add_argument(
        "--disabled",
        action="store_true",
        help="create new jobs paused, while the old scheduler is still running",
    )
    _add_modes(parser)
    parser.add_argument(
        "--atomic",
        action="store_true",
        help="with --apply: write all entries in one transaction, or none if an entry makes the "
        "exit code 1",
    )
    parser.add_argument(
        "--shadow",
        action="store_true",
        help="create new jobs as shadows: scheduled and recorded, but not executed",
    )
    _add_exceptions(parser)
    _add_report_options(parser)
    add_json(parser)


def _add_modes(parser: CommandParser) -> None:
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


def _add_exceptions(parser: CommandParser) -> None:
    """Add the options that treat some fields or jobs differently."""
    parser.add_argument(
        "--overwrite",
        action="append",
        type=_field,
        default=[],
        metavar="FIELD",
        help="take the source's value even if someone changed this field here (repeatable)",
    )
    parser.add_argument(
        "--restore",
        action="append",
        default=[],
        metavar="NAME",
        help="create this job again although it was deleted here; * matches any text (repeatable)",
    )
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="NAME",
        help="only the entries of jobs with this name; * matches any text (repeatable)",
    )


def _add_report_options(parser: CommandParser) -> None:
    parser.add_argument(
        "--since", default="1h", help=f"start of --report: {past_time_help()} (default: 1h)"
    )
    parser.add_argument(
        "--at-least",
        type=parse_whole_number(0, 100),
        default=50,
        metavar="PERCENT",
        help="with --report: exit code 2 if it compares less than PERCENT of the shadows that ran "
        "(default: 50)",
    )


def run(command: BaseCommand, options: dict[str, Any]) -> None:
    if options["shadow"] and options["disabled"]:
        raise usage_error(
            "--shadow and --disabled can't be used together, because a paused shadow records no "
            "runs to compare. Use only --shadow to compare the schedulers first, or only "
            "--disabled to keep new jobs paused until the handover."
        )
    if options["report"] and options["only"]:
        raise usage_error("--only can't be combined with --report, which compares all shadow jobs.")
    out, contents = Output(command, options), read_source(options)
    if options["report"]:
        report(out, options, contents)
        return
    _raise_for_problems(out, options, import_entries(out, options, contents))


def _raise_for_problems(out: Output, options: dict[str, Any], result: ImportResult) -> None:
    """Raise ``CommandError`` if entries can't be imported."""
    if result.problems:
        nothing = "" if result.applied or not options["apply"] else " Nothing was written."
        raise negative_result(
            f"{result.problems} of {result.entries} entries can't be "
            f"imported{'' if out.is_json else ', see above'}.{nothing}"
        )


def _field(text: str) -> str:
    allowed = sorted(
        {each.name for each in PORTABLE_JOB_FIELDS} - {"namespace", "declared", *PAUSE[1:]}
    )
    if text not in allowed:
        raise ArgumentTypeError(
            f"unknown field {text!r}.{did_you_mean(text, allowed)} Allowed: {', '.join(allowed)}"
        )
    return text
