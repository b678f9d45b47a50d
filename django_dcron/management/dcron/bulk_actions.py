"""Apply one action to several rows, batch by batch, and report each result.

Invariants:

- A refusal doesn't stop the remaining actions. Contention refuses the actions of one batch, but
  only if it prevents the change (``refusing_contention``). After the change, it is an error.
- The results of a batch are shown when it is done, so that a user who interrupts the command knows
  what was done.
- Rows that the user hasn't named one by one are changed only after a confirmation.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from django.core.management.base import CommandParser
from django.db import OperationalError, connections

from django_dcron.db.contention import is_contention
from django_dcron.exceptions import DcronError, NotPossible
from django_dcron.jobs.action_texts import LONGEST_REASON, signed_reason
from django_dcron.jobs.batching import IN_PROGRESS, refusal_text
from django_dcron.jobs.pausing import SWITCHED_AT_ONCE
from django_dcron.management.dcron.command_line_user import user_name
from django_dcron.management.dcron.exits import negative_result, usage_error
from django_dcron.management.dcron.job_selection import SelectedRows
from django_dcron.management.dcron.output import (
    BAD,
    GOOD,
    QUIET,
    WARNING,
    Output,
    cautions_document,
)
from django_dcron.management.dcron.progress_bar import ProgressLines
from django_dcron.models import Job, Run
from django_dcron.utils.batches import in_batches
from django_dcron.utils.counts import number_of
from django_dcron.utils.messages import TranslatableText

T = TypeVar("T")

REFUSALS = (DcronError, ValueError)
"""Exceptions that refuse one action."""
JOBS_AT_ONCE = SWITCHED_AT_ONCE
"""The number of jobs that one call changes. Their results are shown together."""
MAX_LISTED = 20
"""The maximum number of rows listed before the question."""
SKIPPED_NAMED = 3
"""The maximum number of rows that are named for each reason to skip them."""


@dataclass(frozen=True, slots=True)
class ActionOutcome:
    text: str
    """The result, for people."""
    fields: Mapping[str, Any] = field(default_factory=dict)
    """The result, for programs."""
    cautions: tuple[str, ...] = ()
    """What the user should know although the action was done."""


@dataclass(frozen=True, slots=True)
class BulkAction(Generic[T]):
    identity: Mapping[str, Any]
    """The fields that identify the row in JSON."""
    name: str
    row: T


@dataclass(frozen=True, slots=True)
class SkippedRow:
    """A selected row that the action leaves unchanged, because it doesn't apply to the row."""

    identity: Mapping[str, Any]
    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class Plan(Generic[T]):
    """The actions on selected rows."""

    actions: Sequence[BulkAction[T]]
    verb: str
    """The action, for the question: ``pause``."""
    apply: Callable[[Sequence[T]], Sequence[ActionOutcome | Exception]]
    """Applies the action to a batch of rows. Returns each result, or raises a refusal."""
    at_once: int = 1
    """The number of rows in a batch."""
    noun: str = "job"
    """What a row is, in the singular."""
    skipped: Sequence[SkippedRow] = ()

    def skipped_documents(self) -> list[dict[str, Any]]:
        return [{**each.identity, "reason": each.reason} for each in self.skipped]


def job_keys(job: Job) -> dict[str, Any]:
    """Return what identifies the job, for programs."""
    return {"job": str(job), "id": job.pk}


def action_on_job(job: Job) -> BulkAction[Job]:
    return BulkAction(job_keys(job), str(job), job)


def action_on_run(run: Run) -> BulkAction[Run]:
    return BulkAction({"run": str(run.pk), "job": str(run.job)}, f"{run} ({run.pk})", run)


def skipped_jobs(
    selected: SelectedRows[Job], why: Callable[[Job], TranslatableText | None]
) -> dict[int, SkippedRow]:
    """Return the jobs that the action leaves unchanged, by primary key. Named jobs aren't skipped.

    ``why`` returns the reason, or None.
    """
    reasons = {job: why(job) for job in selected.rows if job not in selected.named}
    return {
        job.pk: SkippedRow(job_keys(job), str(job), str(reason))
        for job, reason in reasons.items()
        if reason is not None
    }


def add_confirmation(parser: CommandParser) -> None:
    parser.add_argument(
        "--yes",
        "--no-input",
        action="store_true",
        dest="yes",
        help="don't ask for confirmation",
    )
    parser.add_argument("--dry-run", action="store_true", help="list the selection; change nothing")


def one_by_one(
    do: Callable[[T], ActionOutcome],
) -> Callable[[Sequence[T]], Sequence[ActionOutcome]]:
    """Return the ``apply`` of a plan without batches."""
    return lambda rows: [do(row) for row in rows]


@contextmanager
def refusing_contention(using: str) -> Iterator[None]:
    """Run the change in the block. Raise ``NotPossible`` if another transaction prevents it.

    Within a surrounding transaction, which contention has broken, the error is raised unchanged.
    """
    try:
        yield
    except OperationalError as error:
        if connections[using].in_atomic_block or not is_contention(error):
            raise
        raise NotPossible(IN_PROGRESS, code="busy") from error


def perform_plan(output: Output, plan: Plan[T], options: Mapping[str, Any], *, asks: bool) -> None:
    """Perform the plan, or list it with ``--dry-run``.

    If ``asks``, it needs ``--yes`` or a confirmation, and a summary ends the output. Raises
    ``CommandError`` if the user declines or any action was refused.
    """
    if options["dry_run"]:
        _list(output, plan)
        return
    if asks and not options["yes"] and plan.actions:
        _confirm(output, plan)
    perform(output, plan, summary=asks)


def _list(output: Output, plan: Plan[Any]) -> None:
    if output.is_json:
        output.json(
            {
                "version": 1,
                "dry_run": True,
                "selected": [action.identity for action in plan.actions],
                "skipped": plan.skipped_documents(),
            }
        )
        return
    for action in plan.actions:
        output.line(action.name)
    _show_skipped(output, plan)
    output.line(f"{plan.verb}: {number_of(len(plan.actions), plan.noun)}. Nothing was done.")


def _show_skipped(output: Output, plan: Plan[Any]) -> None:
    """Show a line for each reason, with the number of rows and the first names."""
    names: dict[str, list[str]] = {}
    for each in plan.skipped:
        names.setdefault(each.reason, []).append(each.name)
    for reason, skipped in names.items():
        more = len(skipped) - SKIPPED_NAMED
        named = ", ".join([*skipped[:SKIPPED_NAMED], *([f"and {more} more"] if more > 0 else [])])
        output.line(f"skipped {number_of(len(skipped), plan.noun)} ({named}): {reason}", QUIET)


def _confirm(output: Output, plan: Plan[Any]) -> None:
    number = number_of(len(plan.actions), plan.noun)
    if output.is_json or not sys.stdin.isatty():
        raise usage_error(
            f"{plan.verb}: {number} selected. To confirm, add --yes. To list them, add --dry-run."
        )
    for action in plan.actions[:MAX_LISTED]:
        output.line(action.name)
    if (more := len(plan.actions) - MAX_LISTED) > 0:
        output.line(f"and {more} more")
    output.flush()
    try:
        answer = input(f"{plan.verb} {number}? [y/N] ")
    except EOFError:  # Ctrl-D
        answer = ""
    if answer.strip().lower() not in {"y", "yes"}:
        raise negative_result("Nothing was done.")


def perform(output: Output, plan: Plan[T], *, summary: bool = False) -> None:
    """Perform and report all actions and the skipped rows, with a summary if asked for.

    Raises ``CommandError`` at the end if any action was refused.
    """
    if not output.is_json:
        _show_skipped(output, plan)
    results: list[dict[str, Any]] = []
    progress = ProgressLines(output, plan.verb, len(plan.actions))
    for batch in in_batches(plan.actions, plan.at_once):
        for action, result in zip(batch, _apply(plan, batch), strict=True):
            results.append(_document(action, result))
            if not output.is_json:
                _show(output, action, result)
        if not output.is_json:
            output.flush()
        progress.show(len(results))
    refused = sum(not result["done"] for result in results)
    if output.is_json:
        skipped = {"skipped": plan.skipped_documents()} if summary or plan.skipped else {}
        output.json({"version": 1, "results": results} | skipped)
    elif summary:
        parts = [f"{len(results) - refused} done"]
        parts += [f"{refused} refused"] if refused else []
        parts += [f"{len(plan.skipped)} skipped"] if plan.skipped else []
        output.line(f"{plan.verb}: {', '.join(parts)}")
    if refused:
        raise negative_result(f"{refused} of {len(results)} actions refused.")


def _apply(plan: Plan[T], batch: Sequence[BulkAction[T]]) -> Sequence[ActionOutcome | Exception]:
    try:
        return plan.apply([action.row for action in batch])
    except REFUSALS as error:
        return [error] * len(batch)


def _document(action: BulkAction[Any], result: ActionOutcome | Exception) -> dict[str, Any]:
    if isinstance(result, ActionOutcome):
        cautions = cautions_document(result.cautions)
        return {**action.identity, "done": True, **result.fields, "cautions": cautions}
    return {**action.identity, "done": False, "error": _error_text(action, result)}


def _show(output: Output, action: BulkAction[Any], result: ActionOutcome | Exception) -> None:
    if isinstance(result, ActionOutcome):
        text, style = result.text, GOOD
        if result.cautions:
            text, style = " ".join([f"{text}.", *result.cautions]), WARNING
        output.line(f"{action.name}: {text}", style)
    else:
        output.line(f"{action.name}: refused: {_error_text(action, result)}", BAD)


def _error_text(action: BulkAction[Any], error: Exception) -> str:
    return refusal_text(error, action.name) if is_contention(error) else str(error)


def reason_with_user(typed: str) -> str:
    """Return the given reason with the user's name appended, as in the admin."""
    if len(typed) > LONGEST_REASON:
        raise usage_error(
            f"--reason has {len(typed)} characters (allowed: at most {LONGEST_REASON}). "
            "Nothing was done."
        )
    return signed_reason(typed, user_name())
