"""``manage.py dcron rerun``: repeat finished runs, each as a new run."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from django_dcron import control
from django_dcron.diagnosis.overlap_caution import overlap_caution
from django_dcron.management.dcron import bulk_actions
from django_dcron.management.dcron.bulk_actions import ActionOutcome, BulkAction, Plan
from django_dcron.management.dcron.lookup import RUN_HELP, find_run
from django_dcron.management.dcron.output import Output, add_json
from django_dcron.models import Run

HELP = (
    "Run finished runs again, for the same occurrence. Doesn't wait for them. Exit codes: 1 if a "
    "run couldn't be run again (the others are); 2 if there is no such run and nothing was done."
)
EXAMPLES = "rerun 019a9f3c-5b7e"


def add_arguments(parser: CommandParser) -> None:
    parser.add_argument("runs", nargs="+", metavar="RUN", help=RUN_HELP)
    add_json(parser)


def run(command: BaseCommand, options: dict[str, Any]) -> None:
    runs = [find_run(text) for text in options["runs"]]
    plan = Plan(
        [
            BulkAction({"run": str(run.pk), "job": str(run.job)}, f"{run} ({run.pk})", run)
            for run in runs
        ],
        "rerun",
        bulk_actions.one_by_one(_rerun),
        noun="run",
    )
    bulk_actions.perform(Output(command, options), plan)


def _rerun(run: Run) -> ActionOutcome:
    caution = overlap_caution(run.job)
    made = control.rerun(run)
    text = f"rerun as {made.pk}"
    return ActionOutcome(f"{text}. {caution}" if caution else text, {"made": str(made.pk)})
