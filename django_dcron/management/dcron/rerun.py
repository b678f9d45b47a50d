"""``manage.py dcron rerun``: finished runs once more, each as a run of its own."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from django_dcron import control
from django_dcron.management.dcron import deeds
from django_dcron.management.dcron.deeds import Deed, Done
from django_dcron.management.dcron.finding import RUN_HELP, find_run
from django_dcron.management.dcron.output import Output, add_json
from django_dcron.models import Run

HELP = (
    "Run finished runs again, for the same occurrence. Does not wait for them. Exit codes: 1 a run could not be run again (the "
    "others are); 2 there is no such run: nothing was done."
)
EXAMPLES = "rerun 019a9f3c-5b7e"


def add_arguments(parser: CommandParser) -> None:
    parser.add_argument("runs", nargs="+", metavar="RUN", help=RUN_HELP)
    add_json(parser)


def run(command: BaseCommand, options: dict[str, Any]) -> None:
    runs = [find_run(text) for text in options["runs"]]
    deeds.perform(Output(command, options), [_deed(each) for each in runs])


def _deed(run: Run) -> Deed:
    def rerun() -> Done:
        made = control.rerun(run)
        return Done(f"runs again as {made.pk}", {"made": str(made.pk)})

    return Deed({"run": str(run.pk), "job": str(run.job)}, f"{run} ({run.pk})", rerun)
