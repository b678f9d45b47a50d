"""The options by which several jobs are chosen, and the jobs as rows and as JSON."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.core.management.base import CommandParser

from django_dcron.management.dcron.output import BAD, ODD, Styled, iso
from django_dcron.models import Job
from django_dcron.observability.jobs import (
    Choice,
    JobFilter,
    Standing,
    next_run_of,
    problem_of,
    standing_of,
    statistics_of,
)

WORDS = {Standing.PROBLEM: "out of scheduling"}
STYLES = {Standing.PROBLEM: BAD, Standing.PAUSED: ODD}


def add_filters(parser: CommandParser) -> None:
    parser.add_argument("--namespace", default="", help="the jobs of this namespace only (all)")
    parser.add_argument(
        "--tag", action="append", default=[], help="those with this tag; given again: with all of these"
    )
    parser.add_argument(
        "--search", default="", metavar="TEXT", help="those with TEXT in name, target or description"
    )
    state = parser.add_mutually_exclusive_group()
    state.add_argument(
        "--state",
        choices=[choice.value for choice in Choice],
        help="those that are so now; failing: the latest run failed; problem: out of scheduling",
    )
    for choice in (Choice.ENABLED, Choice.PAUSED, Choice.FAILING):
        state.add_argument(
            f"--{choice}",
            action="store_const",
            const=choice.value,
            dest="state",
            help=f"the same as --state {choice}",
        )


def filter_of(options: dict[str, Any]) -> JobFilter:
    return JobFilter(
        namespace=options["namespace"],
        tags=tuple(options["tag"]),
        text=options["search"],
        choice=Choice(options["state"]) if options["state"] else None,
    )


def standing_cell(job: Job) -> Styled:
    standing = standing_of(job)
    return Styled(WORDS.get(standing, standing.value), STYLES.get(standing, ""))


def schedule_text(job: Job) -> str:
    """With its zone, unless that is UTC or the text has one of its own."""
    if job.timezone == "UTC" or job.schedule.startswith(("TZ=", "CRON_TZ=")):
        return job.schedule
    return f"{job.schedule} ({job.timezone})"


def job_document(job: Job, now: datetime) -> dict[str, Any]:
    statistics = statistics_of(job)
    last = None
    if statistics and statistics.last_state:
        last = {"state": statistics.last_state, "finished_at": iso(statistics.last_finished_at)}
    return {
        "id": job.pk,
        "namespace": job.namespace,
        "name": job.name,
        "target": job.target,
        "schedule": job.schedule,
        "timezone": job.timezone,
        "tags": job.tags,
        "state": standing_of(job),
        "problem": problem_of(job),
        "pause_reason": "" if job.enabled else job.pause_reason,
        "paused_until": iso(job.paused_until),
        "next_at": iso(next_run_of(job, now)),
        "last": last,
        "failures_in_a_row": statistics.failures_in_a_row if statistics else 0,
    }
