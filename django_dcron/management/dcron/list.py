"""``manage.py dcron list``: the jobs, a line each. Exit codes: 0, also if there are none; 2 it cannot be told."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any

from django.core.management.base import BaseCommand, CommandParser
from django.utils import timezone

from django_dcron.management.dcron.choosing import (
    add_filters,
    filter_of,
    job_document,
    schedule_text,
    standing_cell,
)
from django_dcron.management.dcron.numbers import whole
from django_dcron.management.dcron.output import (
    EMPTY,
    QUIET,
    Cell,
    Column,
    Output,
    Styled,
    add_json,
    distance,
    state,
)
from django_dcron.models import Job
from django_dcron.models.database import alias_for, database_now
from django_dcron.observability.jobs import jobs, next_run_of, statistics_of

HELP = "List jobs: the schedule of each, when it runs next, how it went last, how it stands."
EXAMPLES = """
list
list --namespace shop --failing
list --tag billing --search invoice
list --paused --json
"""
LIMIT = 1000


def add_arguments(parser: CommandParser) -> None:
    add_filters(parser)
    parser.add_argument(
        "--limit", type=whole(1, 1_000_000), default=LIMIT, metavar="N", help=f"at most N jobs ({LIMIT})"
    )
    add_json(parser)


def run(command: BaseCommand, options: dict[str, Any]) -> None:
    out, limit = Output(command, options), options["limit"]
    now, chosen = database_now(alias_for(Job)), jobs(filter_of(options))
    found = list(chosen[: limit + 1])
    more = chosen.count() - limit if len(found) > limit else 0
    found = found[:limit]
    if out.is_json:
        out.json({"version": 1, "at": now, "jobs": [job_document(job, now) for job in found], "more": more})
        return
    if not found:
        out.line("No job is so." if Job.objects.using(alias_for(Job)).exists() else "There are no jobs yet.")
        return
    zone = timezone.get_current_timezone_name()
    columns = [
        Column("Job", wraps=True),
        Column("Schedule", wraps=True),
        Column(f"Next ({zone})"),
        *map(Column, ("", "Last", "", "State")),
    ]
    out.table(columns, (list(_cells(job, now)) for job in found))
    if more:
        out.line(
            f"and {more} more: --limit {limit + more} shows them, --namespace, --tag and --search choose."
        )


def _cells(job: Job, now: datetime) -> Iterator[Cell]:
    yield str(job)
    yield schedule_text(job)
    next_at = next_run_of(job, now)
    yield f"{timezone.localtime(next_at):%Y-%m-%d %H:%M:%S}" if next_at else EMPTY
    yield Styled(distance(next_at, now) if next_at else "", QUIET)
    statistics = statistics_of(job)
    yield state(statistics.last_state if statistics else "")
    ended = statistics.last_finished_at if statistics else None
    yield Styled(distance(ended, now) if ended else "", QUIET)
    yield standing_cell(job)
