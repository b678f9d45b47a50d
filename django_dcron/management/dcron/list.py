"""``manage.py dcron list``: list jobs, one per line.

Exit codes:

- 0: success, even without jobs.
- 2: the request can't be processed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from heapq import nsmallest
from typing import Any

from django.core.management.base import BaseCommand, CommandParser
from django.utils import timezone

from django_dcron.conf import settings
from django_dcron.db.now import database_now
from django_dcron.db.routing import alias_for
from django_dcron.diagnosis.job_filters.job_filter import jobs_matching
from django_dcron.diagnosis.job_state import next_run_of, statistics_of
from django_dcron.diagnosis.read_only import refuses_writes
from django_dcron.diagnosis.system_health import read_verdict
from django_dcron.management.dcron.freezes import time_until_text, warn_of_freezes
from django_dcron.management.dcron.job_selection import (
    add_filters,
    filter_of,
    job_document,
    schedule_with_zone,
    state_cell,
)
from django_dcron.management.dcron.option_values import parse_whole_number
from django_dcron.management.dcron.output import (
    EMPTY,
    QUIET,
    Cell,
    Column,
    Output,
    StyledText,
    add_json,
    relative_time_text,
    site_time_text,
    styled_state,
)
from django_dcron.management.dcron.run_absence import Absence, absence_text
from django_dcron.models import Job, Node
from django_dcron.policies.freezing import FreezeExtent
from django_dcron.policies.health.problems import Problem, Severity

HELP = "List jobs with their schedule, next run, last run and state."
EXAMPLES = """
list
list --namespace shop --failing
list --tag billing --search invoice
list --sort next --limit 20
list --paused --json
"""
LIMIT = 1000
NAME, NEXT = "name", "next"
UNREACHABLE_SERVICES = {Problem.BROKER_UNREACHABLE, Problem.NODE_DEGRADED}


def add_arguments(parser: CommandParser) -> None:
    add_filters(parser)
    parser.add_argument(
        "--sort",
        choices=[NAME, NEXT],
        default=NAME,
        help=f"order of the jobs: {NAME}; or {NEXT}: by next run, the earliest first, and jobs "
        f"without a next run last (default: {NAME})",
    )
    parser.add_argument(
        "--limit",
        type=parse_whole_number(1, 1_000_000),
        default=LIMIT,
        metavar="N",
        help=f"maximum number of jobs (default: {LIMIT})",
    )
    add_json(parser)


def run(command: BaseCommand, options: dict[str, Any]) -> None:
    out, limit = Output(command, options), options["limit"]
    now, chosen = database_now(alias_for(Job)), jobs_matching(filter_of(options))
    if options["sort"] == NEXT:
        # The cursor is ahead of claimed occurrences, so the database can't sort by the next run.
        found = nsmallest(limit, chosen, key=lambda job: _next_run_key(job, now))
    else:
        found = list(chosen[:limit])
    more = chosen.count() - limit if len(found) == limit else 0
    if out.is_json:
        out.json(
            {
                "version": 1,
                "at": now,
                "jobs": [job_document(job, now) for job in found],
                "more": more,
            }
        )
        return
    freezes = warn_of_freezes(out, options["namespace"])
    if found:
        _warn_of_outage(out, options["namespace"])
    if not found:
        out.line(
            "No jobs match."
            if Job.objects.using(alias_for(Job)).exists()
            else "There are no jobs yet."
        )
        return
    zone = timezone.get_current_timezone_name()
    columns = [
        Column("Job", wraps=True),
        Column("Schedule", wraps=True),
        Column(f"Next ({zone})"),
        *map(Column, ("", "Last", "")),
        Column("State", wraps=True),
    ]
    out.table(columns, (list(_cells(job, now, freezes)) for job in found))
    if more:
        out.line(
            f"and {more} more. Use --limit {limit + more}, or filter with --namespace, --tag or "
            "--search."
        )


def _warn_of_outage(out: Output, namespace: str) -> None:
    """Print that no node is running, or else the most urgent problem that affects all jobs.

    That is an error of the health verdict, or a warning about a service that the nodes need. While
    the database is read-only, nodes can't write heartbeats, so a missing one means nothing.
    """
    using = alias_for(Node)
    is_live = Node.objects.using(using).live(settings.LEASE).exists()
    if not (is_live or refuses_writes(using)):
        out.progress(absence_text(Absence.NODE))
        return
    for issue in read_verdict(namespace).issues:
        if issue.severity is Severity.ERROR or issue.problem in UNREACHABLE_SERVICES:
            out.progress(str(issue))
            return


def _next_run_key(job: Job, now: datetime) -> tuple[bool, datetime]:
    next_at = next_run_of(job, now)
    return next_at is None, next_at or now


def _cells(job: Job, now: datetime, freezes: Sequence[FreezeExtent]) -> Iterator[Cell]:
    yield str(job)
    yield schedule_with_zone(job)
    next_at = next_run_of(job, now)
    yield site_time_text(next_at) if next_at else EMPTY
    yield StyledText(time_until_text(job, next_at, now, freezes) if next_at else "", QUIET)
    statistics = statistics_of(job)
    yield styled_state(statistics.last_state if statistics else "")
    ended = statistics.last_finished_at if statistics else None
    yield StyledText(relative_time_text(ended, now) if ended else "", QUIET)
    yield state_cell(job, with_pause=True)
