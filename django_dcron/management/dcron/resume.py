"""``manage.py dcron resume``: jobs that were paused, or have paused themselves, go on."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from django_dcron import control
from django_dcron.management.dcron import deeds
from django_dcron.management.dcron.deeds import Deed, Done
from django_dcron.management.dcron.finding import JOB_HELP, find_job
from django_dcron.management.dcron.output import Output, add_json, moment
from django_dcron.models import Job

HELP = (
    "Resume jobs: occurrences from now on; what came while they were paused is not made up for (dcron backfill does that). Exit "
    "codes: 1 a job could not be resumed (the others are); 2 there is no such job: nothing was done."
)
EXAMPLES = """
resume nightly-report
resume import-orders sync-stock
"""


def add_arguments(parser: CommandParser) -> None:
    parser.add_argument("jobs", nargs="+", metavar="JOB", help=JOB_HELP)
    add_json(parser)


def run(command: BaseCommand, options: dict[str, Any]) -> None:
    jobs = [find_job(name) for name in options["jobs"]]
    deeds.perform(Output(command, options), [_deed(job) for job in jobs])


def _deed(job: Job) -> Deed:
    def resume() -> Done:
        before = job.enabled
        control.resume(job)
        following = next(iter(control.preview(job, 1)), None) if job.enabled else None
        if not job.enabled:
            said = f"what was backfilled goes on; {job.pause_reason}"
        else:
            said = "was not paused" if before else "resumed"
        return Done(
            f"{said}; next at {moment(following)}" if following else said,
            {"enabled": job.enabled, "next": following},
        )

    return Deed({"job": str(job), "id": job.pk}, str(job), resume)
