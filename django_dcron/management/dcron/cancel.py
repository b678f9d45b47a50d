"""``manage.py dcron cancel``: end runs that have not started, and have those that execute stop."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from django_dcron import control
from django_dcron.domain.lifecycle import UNFINISHED
from django_dcron.management.dcron import deeds
from django_dcron.management.dcron.deeds import Deed, Done
from django_dcron.management.dcron.finding import JOB_HELP, RUN_HELP, find_job_or_run
from django_dcron.management.dcron.output import Output, add_json
from django_dcron.models import Job, Run
from django_dcron.models.database import alias_for

HELP = (
    "Cancel runs: one that has not started is ended, one that executes is asked to stop. Of a job, all its unfinished runs; its "
    "schedule goes on (dcron pause stops that). Exit codes: 1 a run could not be cancelled (the others are); 2 there is no such "
    "run or job: nothing was done."
)
EXAMPLES = """
cancel 019a9f3c-5b7e
cancel nightly-report --reason "wrong month"
"""


def add_arguments(parser: CommandParser) -> None:
    parser.add_argument(
        "what", nargs="+", metavar="RUN|JOB", help=f"{RUN_HELP}; or {JOB_HELP}, of which all unfinished runs"
    )
    parser.add_argument(
        "--reason", default="", metavar="TEXT", help="shown wherever the run is; your name is added"
    )
    add_json(parser)


def run(command: BaseCommand, options: dict[str, Any]) -> None:
    chosen = [find_job_or_run(text) for text in options["what"]]
    reason = deeds.reason(options["reason"])
    output = Output(command, options)
    runs = [run for each in chosen for run in (_unfinished(each) if isinstance(each, Job) else [each])]
    if not runs and not output.is_json:
        output.line("There is nothing to cancel: no run is unfinished.")
        return
    deeds.perform(output, (_deed(each, reason) for each in runs))


def _unfinished(job: Job) -> Iterator[Run]:
    runs = Run.objects.using(alias_for(Run)).filter(job=job, state__in=UNFINISHED)
    return runs.select_related("job").order_by("due_at", "pk").iterator()


def _deed(run: Run, reason: str) -> Deed:
    def cancel() -> Done:
        control.cancel(run, reason)
        return Done("cancelled" if run.is_final else "asked to stop", {"state": run.state})

    return Deed({"run": str(run.pk), "job": str(run.job)}, f"{run} ({run.pk})", cancel)
