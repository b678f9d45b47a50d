"""Apply one action to several rows in turn, and report each result.

Invariants:

- A refusal doesn't stop the remaining actions.
- Rows that the user hasn't named one by one are changed only after a confirmation.
"""

from __future__ import annotations

import getpass
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from django.core.management.base import CommandParser

from django_dcron.exceptions import DcronError
from django_dcron.jobs.audit.texts import signed_reason
from django_dcron.management.dcron.exits import negative_result, usage_error
from django_dcron.management.dcron.output import BAD, GOOD, QUIET, Output
from django_dcron.utils.counts import number_of

MAX_LISTED = 20
"""Rows listed before the question."""
LONGEST = 255
"""Characters of a stored reason, with the name."""


@dataclass(frozen=True, slots=True)
class Done:
    text: str
    """The result, for people."""
    fields: Mapping[str, Any] = field(default_factory=dict)
    """The result, for programs."""


@dataclass(frozen=True, slots=True)
class BulkAction:
    on: Mapping[str, Any]
    """The object of the action, for programs."""
    name: str
    do: Callable[[], Done]


@dataclass(frozen=True, slots=True)
class SkippedRow:
    """A selected row that the action leaves unchanged, because it doesn't apply to the row."""

    on: Mapping[str, Any]
    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class Plan:
    """The actions on selected rows."""

    actions: Sequence[BulkAction]
    verb: str
    """The action, for the question: ``pause``."""
    things: str = "job"
    skipped: Sequence[SkippedRow] = ()

    def skipped_documents(self) -> list[dict[str, Any]]:
        return [{**each.on, "reason": each.reason} for each in self.skipped]


def add_confirmation(parser: CommandParser) -> None:
    parser.add_argument(
        "--yes",
        "--no-input",
        action="store_true",
        dest="yes",
        help="don't ask for confirmation of a selection by pattern or option",
    )
    parser.add_argument("--dry-run", action="store_true", help="list the selection, do nothing")


def perform_plan(output: Output, plan: Plan, options: Mapping[str, Any], *, asks: bool) -> None:
    """Perform the plan, or list it with ``--dry-run``.

    If ``asks``, it needs ``--yes`` or a confirmation, and a summary ends the output. Raises
    ``CommandError`` if the user declines or any action was refused.
    """
    if options["dry_run"]:
        _list(output, plan)
        return
    if asks and not options["yes"] and plan.actions:
        _confirm(output, plan)
    if not output.is_json:
        _show_skipped(output, plan)
    perform(output, plan.actions, summary=plan if asks else None)


def _list(output: Output, plan: Plan) -> None:
    if output.is_json:
        output.json(
            {
                "version": 1,
                "dry_run": True,
                "selected": [action.on for action in plan.actions],
                "skipped": plan.skipped_documents(),
            }
        )
        return
    for action in plan.actions:
        output.line(action.name)
    _show_skipped(output, plan)
    output.line(f"{plan.verb}: {number_of(len(plan.actions), plan.things)}. Nothing was done.")


def _show_skipped(output: Output, plan: Plan) -> None:
    for each in plan.skipped:
        output.line(f"{each.name}: skipped: {each.reason}", QUIET)


def _confirm(output: Output, plan: Plan) -> None:
    number = number_of(len(plan.actions), plan.things)
    if output.is_json or not sys.stdin.isatty():
        raise usage_error(
            f"{plan.verb}: {number} selected. To confirm, add --yes. To list them, add --dry-run."
        )
    for action in plan.actions[:MAX_LISTED]:
        output.line(action.name)
    if (more := len(plan.actions) - MAX_LISTED) > 0:
        output.line(f"and {more} more")
    output.flush()
    if input(f"{plan.verb} {number}? [y/N] ").strip().lower() not in {"y", "yes"}:
        raise negative_result("Nothing was done.")


def perform(output: Output, actions: Iterable[BulkAction], *, summary: Plan | None = None) -> None:
    """Perform and report all actions, with a summary of the plan, if there is one.

    Raises ``CommandError`` at the end if any action was refused.
    """
    results: list[dict[str, Any]] = []
    for action in actions:
        result, text, style = _do(action)
        results.append(result)
        if not output.is_json:
            output.line(f"{action.name}: {text}", style)
    refused = sum(not result["done"] for result in results)
    if output.is_json:
        skipped = {"skipped": summary.skipped_documents()} if summary else {}
        output.json({"version": 1, "results": results} | skipped)
    elif summary:
        parts = [f"{len(results) - refused} done"]
        parts += [f"{refused} refused"] if refused else []
        parts += [f"{len(summary.skipped)} skipped"] if summary.skipped else []
        output.line(f"{summary.verb}: {', '.join(parts)}")
    if refused:
        raise negative_result(f"{refused} of {len(results)} actions refused.")


def _do(action: BulkAction) -> tuple[dict[str, Any], str, str]:
    try:
        done = action.do()
    except (DcronError, ValueError) as error:
        return {**action.on, "done": False, "error": str(error)}, f"refused: {error}", BAD
    return {**action.on, "done": True, **done.fields}, done.text, GOOD


def reason_with_user(typed: str) -> str:
    """Return the given reason with the user's name appended, as in the admin."""
    name = user_name()
    return signed_reason(typed[: LONGEST - len(name) - 3], name)


def user_name() -> str:
    """Return the name of the user who runs the command."""
    try:
        return getpass.getuser()[:100]
    except (OSError, KeyError):  # A container may run as a user id without a name.
        return "somebody"
