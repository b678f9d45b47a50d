"""``manage.py dcron revert``: undo an edit of a job.

Exit codes:

- 0: success.
- 1: the edit can't be reverted, and nothing was changed.
- 2: there is no such job or edit, and nothing was changed.
"""

from __future__ import annotations

import shlex
from typing import Any

from django.core.exceptions import ValidationError
from django.core.management.base import BaseCommand, CommandParser

from django_dcron import control
from django_dcron.exceptions import Conflict, NotPossible
from django_dcron.jobs.reverting import edit_of
from django_dcron.management.dcron.exits import negative_result, usage_error
from django_dcron.management.dcron.job_edit import perform_edit
from django_dcron.management.dcron.lookup import JOB_HELP, find_job
from django_dcron.management.dcron.option_values import parse_whole_number
from django_dcron.management.dcron.output import Output, add_json
from django_dcron.models import AuditEntry, Job

HELP = (
    "Undo an edit of a job: set the fields that the edit changed back to their old values in the "
    "audit log. By default, undoes the latest edit. A revert is an edit, too, so a second one "
    "undoes the first. All fields are reverted or none. Exit codes: 1 if the edit can't be "
    "reverted, because a field was changed again, for example; 2 if there is no such job or edit. "
    "Then nothing was changed."
)
EXAMPLES = """
revert nightly-report --dry-run
revert nightly-report
revert shop/import-orders --version 7
"""
MAX_VERSION = 2**31 - 1
"""The largest number that the column can store."""


def add_arguments(parser: CommandParser) -> None:
    parser.add_argument("job", metavar="JOB", help=JOB_HELP)
    parser.add_argument(
        "--version",
        type=parse_whole_number(1, MAX_VERSION),
        metavar="N",
        help="revert the edit that made this version of the job, which audit shows (default: the "
        "latest edit)",
    )
    parser.add_argument("--dry-run", action="store_true", help="show the changes; save nothing")
    add_json(parser)


def run(command: BaseCommand, options: dict[str, Any]) -> None:
    job = find_job(options["job"])
    entry = _find_edit(job, options["version"])
    output = Output(command, options)
    perform_edit(output, job, lambda: _revert(job, entry), is_dry=options["dry_run"])


def _find_edit(job: Job, version: int | None) -> AuditEntry:
    if (entry := edit_of(job, version)) is None:
        what = "no edit" if version is None else f"no edit that made version {version}"
        raise usage_error(
            f"The audit log has {what} of {job}. To list the edits: manage.py dcron audit "
            f"{shlex.quote(str(job))} --action change"
        )
    return entry


def _revert(job: Job, entry: AuditEntry) -> None:
    try:
        control.revert(job, entry)
    except (Conflict, NotPossible) as error:
        raise negative_result(f"Nothing was changed. {error}") from None
    except ValidationError as error:
        errors = [f"{name}: {' '.join(messages)}" for name, messages in error.message_dict.items()]
        raise negative_result("\n".join(["Nothing was changed.", *errors])) from None
