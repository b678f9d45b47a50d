"""``manage.py dcron revert``: undo an edit or the deletion of a job.

Exit codes:

- 0: success.
- 1: the edit or deletion can't be undone, and nothing was changed.
- 2: there is no such job, edit or deletion, and nothing was changed.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable
from typing import Any

from django.core.exceptions import ValidationError
from django.core.management.base import BaseCommand, CommandError, CommandParser

from django_dcron import control
from django_dcron.diagnosis.start_caution import restore_cautions
from django_dcron.exceptions import Conflict, NotPossible
from django_dcron.jobs.audit.entries import actor_text
from django_dcron.jobs.representation import JOB_FIELDS, portable_document
from django_dcron.jobs.restoring import (
    deleted_row_of,
    deletion_of,
    has_missed_handover,
    restored_job_of,
)
from django_dcron.jobs.reverting import edit_of, latest_edit_of
from django_dcron.management.dcron.exits import negative_result, usage_error
from django_dcron.management.dcron.job_edit import (
    changed_values,
    edit_document,
    next_occurrence_of,
    perform_edit,
    rolled_back,
)
from django_dcron.management.dcron.lookup import JOB_HELP, find_job, find_job_or_deletion
from django_dcron.management.dcron.option_values import parse_whole_number
from django_dcron.management.dcron.output import (
    GOOD,
    WARNING,
    Output,
    add_json,
    cautions_document,
    time_text,
)
from django_dcron.models import AuditEntry, Job
from django_dcron.utils.control_characters import escape_line_breaks

HELP = (
    "Undo an edit of a job: set the fields that the edit changed back to their old values in the "
    "audit log. By default, undoes the latest edit by a person or by your code. A revert is an "
    "edit, too, so a second one undoes the first. All fields are reverted or none. If the job was "
    "deleted, creates it again, without its history. Exit codes: 1 if the edit or deletion can't "
    "be undone, because a field was changed again, for example; 2 if there is no such job, edit or "
    "deletion. Then nothing was changed."
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
    version, is_dry = options["version"], options["dry_run"]
    found = find_job(options["job"]) if version else find_job_or_deletion(options["job"])
    output = Output(command, options)
    if isinstance(found, AuditEntry):
        _undo_deletion(output, found, is_dry=is_dry)
        return
    job, label = found, str(found)
    entry = _latest_edit(job) if version is None else _edit_of(job, version)

    def revert() -> None:
        _undo(lambda: control.revert(job, entry))
        if not output.is_json:
            output.line(f"{label}: undoes the edit that made {_version_text(entry)}")

    perform_edit(output, job, revert, is_dry=is_dry)


def _edit_of(job: Job, version: int) -> AuditEntry:
    if (entry := edit_of(job, version)) is None:
        raise _no_edit(job, f"no edit that made version {version}")
    return entry


def _latest_edit(job: Job) -> AuditEntry:
    if (entry := latest_edit_of(job)) is not None:
        return entry
    if (latest := latest_edit_of(job, or_automatic=True)) is None:
        raise _no_edit(job, "no edit")
    reason = f": {latest.reason}" if latest.reason else ""
    raise usage_error(
        f"Nobody has edited {job}. Its latest change made {_version_text(latest)}{reason}. To "
        f"revert it: manage.py dcron revert {shlex.quote(str(job))} --version {latest.version}"
    )


def _no_edit(job: Job, what: str) -> CommandError:
    name = shlex.quote(str(job))
    text = (
        f"The audit log has {what} of {job}. To list the edits: manage.py dcron audit {name} "
        "--action change"
    )
    if (deletion := deletion_of(str(job))) is not None and restored_job_of(deletion) is None:
        text += (
            f"\nAn earlier job of this name was deleted at {time_text(deletion.at)}. To have it "
            f"instead: manage.py dcron delete {name}, then manage.py dcron revert {deletion.job_id}"
        )
    return usage_error(text)


def _version_text(entry: AuditEntry) -> str:
    return f"version {entry.version} ({actor_text(entry)}, {time_text(entry.at)})"


def _undo_deletion(output: Output, entry: AuditEntry, *, is_dry: bool) -> None:
    history, missed_handover = deleted_row_of(entry), has_missed_handover(entry)
    with rolled_back(is_dry):
        job = _undo(lambda: control.restore(entry))
        next_at = next_occurrence_of(job)
        cautions = restore_cautions(job, missed_handover=missed_handover)
    values = changed_values(portable_document(Job()), portable_document(job))
    if output.is_json:
        keys = {"job": str(job), "id": None if is_dry else job.pk}
        document = edit_document(values, next_at, is_dry=is_dry)
        output.json({"version": 1, **keys, **document, "cautions": cautions_document(cautions)})
        return
    output.line(f"{job}: undoes the deletion at {time_text(entry.at)}", GOOD)
    for name in values:
        field = JOB_FIELDS[name]
        output.line(f"  {name}: {escape_line_breaks(field.text(field.json_of(job)))}")
    if next_at is not None:
        output.line(f"{job}: next occurrence: {time_text(next_at)}")
    for caution in cautions:
        output.line(caution, WARNING)
    if history is not None:
        output.line(f"Its history stays with the deleted job: {history}")
    if is_dry:
        output.line("Nothing was changed.")


def _undo(undo: Callable[[], Job]) -> Job:
    try:
        return undo()
    except (Conflict, NotPossible) as error:
        raise negative_result(f"Nothing was changed. {error}") from None
    except ValidationError as error:
        errors = [f"{name}: {' '.join(messages)}" for name, messages in error.message_dict.items()]
        raise negative_result("\n".join(["Nothing was changed.", *errors])) from None
