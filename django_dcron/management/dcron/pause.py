"""``manage.py dcron pause``: no new occurrences of jobs, for now or until a time."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.core.management.base import BaseCommand, CommandParser
from django.utils import timezone

from django_dcron import control
from django_dcron.management.dcron import deeds, times
from django_dcron.management.dcron.deeds import Deed, Done
from django_dcron.management.dcron.exits import cannot
from django_dcron.management.dcron.finding import JOB_HELP, find_job
from django_dcron.management.dcron.output import Output, add_json, moment
from django_dcron.models import Job
from django_dcron.models.database import alias_for, database_now

HELP = (
    "Pause jobs: no new occurrences; what runs goes on, what waits for its time is withdrawn. Exit codes: 1 a job could not be "
    "paused (the others are); 2 there is no such job, or --until makes no sense: nothing was done."
)
EXAMPLES = """
pause nightly-report --reason "until the disk is replaced"
pause import-orders sync-stock --until +2h
pause shop/import-orders --until 2026-12-01T09:00
"""


def add_arguments(parser: CommandParser) -> None:
    parser.add_argument("jobs", nargs="+", metavar="JOB", help=JOB_HELP)
    parser.add_argument(
        "--reason", default="", metavar="TEXT", help="shown wherever the job is; your name is added"
    )
    parser.add_argument(
        "--until",
        metavar="TIME",
        help="they resume by themselves then: a time such as 2026-12-01T09:00 (in the site's time zone unless it has an "
        "offset), or how long ahead, such as +2h",
    )
    add_json(parser)


def run(command: BaseCommand, options: dict[str, Any]) -> None:
    until = _until(options["until"]) if options["until"] else None
    jobs = [find_job(name) for name in options["jobs"]]
    reason = deeds.reason(options["reason"])
    deeds.perform(Output(command, options), [_deed(job, reason, until) for job in jobs])


def _until(text: str) -> datetime:
    now = database_now(alias_for(Job))
    until = times.instant("--until", text, now, timezone.get_current_timezone())
    if until <= now:
        raise cannot(f"--until {text!r} has passed (how long ahead is written +2h).")
    return until


def _deed(job: Job, reason: str, until: datetime | None) -> Deed:
    def pause() -> Done:
        control.pause(job, reason, until)
        for_how_long = f"until {moment(until)}" if until else "until it is resumed"
        return Done(f"paused {for_how_long}: {reason}", {"reason": reason, "until": until})

    return Deed({"job": str(job), "id": job.pk}, str(job), pause)
