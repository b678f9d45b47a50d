"""``manage.py dcron show``: one job. Exit codes: 0; 2 it cannot be told."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from django_dcron.exceptions import InvalidSchedule
from django_dcron.management.dcron.choosing import job_document, standing_cell
from django_dcron.management.dcron.finding import JOB_HELP, find_job
from django_dcron.management.dcron.next import cautions_document, occurrences_document, print_occurrences
from django_dcron.management.dcron.numbers import whole
from django_dcron.management.dcron.output import (
    BAD,
    STRONG,
    Cell,
    Output,
    Styled,
    add_json,
    distance,
    iso,
    moment,
    state,
)
from django_dcron.models import Job, Link, Statistics
from django_dcron.models.database import alias_for, database_now
from django_dcron.observability import standing
from django_dcron.observability.chains import SHOWN, jobs_after
from django_dcron.observability.figures import SuccessRate
from django_dcron.observability.jobs import next_run_of, problem_of, statistics_of
from django_dcron.observability.lookahead import Lookahead, look_ahead
from django_dcron.sync.portable import FIELDS, definition_of
from django_dcron.targets import redacted

HELP = "Show one job: its definition, how it stands, its figures, and what comes next."
EXAMPLES = """
show nightly-report
show shop/import-orders -n 20
show 42 --json
"""
OCCURRENCES = 5
ALWAYS = ("target", "args", "kwargs", "schedule", "timezone")
ELSEWHERE = frozenset({"namespace", "name", "declared", "enabled", "pause_reason", "paused_until"})
"""Of the definition, but shown as how the job stands."""
COUNTED = ("succeeded", "failed", "skipped", "missed", "cancelled")


def add_arguments(parser: CommandParser) -> None:
    parser.add_argument("job", metavar="JOB", help=JOB_HELP)
    parser.add_argument(
        "-n",
        "--count",
        type=whole(0, 100),
        default=OCCURRENCES,
        metavar="N",
        help=f"so many next occurrences, at most 100 ({OCCURRENCES})",
    )
    add_json(parser)


def run(command: BaseCommand, options: dict[str, Any]) -> None:
    out, job = Output(command, options), find_job(options["job"])
    now = database_now(alias_for(Job))
    ahead, problem = _ahead(job, options["count"])
    latest = standing.latest_finished(job)
    if out.is_json:
        out.json(_document(job, now, ahead, problem, standing.rate_of(latest)))
        return
    out.line(str(job), STRONG)
    if job.description:
        out.line(job.description)
    out.line()
    out.fields(_how_it_stands(job, now, problem))
    out.line()
    out.fields(_figures(statistics_of(job), standing.rate_of(latest), len(latest)))
    out.line()
    out.fields(_definition(job))
    if ahead:
        out.line()
        out.line(f"Next: {ahead.words}" if ahead.words else "Next")
        print_occurrences(out, ahead)


def _ahead(job: Job, count: int) -> tuple[Lookahead | None, str]:
    """And why there is none."""
    if not count:
        return None, problem_of(job)
    try:
        return look_ahead(job, count), problem_of(job)
    except InvalidSchedule as error:
        return None, str(error)


def _how_it_stands(job: Job, now: datetime, problem: str) -> Iterator[tuple[str, Cell]]:
    yield "state", standing_cell(job)
    yield "problem", Styled(problem, BAD)
    pause = standing.pause_of(job, standing.paused_by(job))
    if pause:
        yield "paused because", pause.reason
        yield "paused by", pause.by
        yield "paused since", moment(pause.since) if pause.since else ""
        yield "paused until", moment(pause.until) if pause.until else "it is resumed"
    if next_at := next_run_of(job, now):
        yield "next run", f"{moment(next_at)} ({distance(next_at, now)})"
    running = standing.running(job)
    for run in running[: standing.RUNNING_NAMED]:
        yield "running", f"{run.pk} since {moment(run.started_at)}"
    if len(running) > standing.RUNNING_NAMED:
        yield "running", "and more"
    after = jobs_after(job)
    yield (
        "followed by",
        ", ".join([*map(_follower, after[:SHOWN]), *(["and more"] if len(after) > SHOWN else [])]),
    )
    yield "declared", "in code, by @cron" if job.declared is not None else ""
    yield "number", f"{job.pk}, version {job.version}"
    yield "changed", moment(job.updated_at)


def _follower(link: Link) -> str:
    return f"{link.job} (when it has {link.on})"


def _figures(statistics: Statistics | None, lately: SuccessRate, latest: int) -> Iterator[tuple[str, Cell]]:
    counted = statistics or Statistics()
    yield "runs", ", ".join(f"{getattr(counted, name)} {name}" for name in COUNTED)
    if lately.percent is not None:
        yield "success rate", f"{lately.percent:g} % of the latest {lately.ended}"
    if counted.last_state:
        yield "last outcome", state(counted.last_state)
        yield "last finished", moment(counted.last_finished_at)
    if counted.failures_in_a_row:
        yield "failures in a row", Styled(str(counted.failures_in_a_row), BAD)


def _public_definition(job: Job) -> dict[str, Any]:
    """As it is exported, but without secrets: what is shown stays on screens and in logs."""
    written = definition_of(job)
    return written | {name: redacted(written[name]) for name in ("args", "kwargs") if name in written}


def _definition(job: Job) -> Iterator[tuple[str, Cell]]:
    """What is at its default is left out, but for what matters most."""
    written = _public_definition(job)
    for field in FIELDS:
        name = field.name
        if name in ELSEWHERE or name == "description":
            continue
        if name in ALWAYS or getattr(job, name) != field.get_default():
            value = written[name]
            yield (
                name,
                value if isinstance(value, str | int) and not isinstance(value, bool) else json.dumps(value),
            )


def _document(
    job: Job, now: datetime, ahead: Lookahead | None, problem: str, lately: SuccessRate
) -> dict[str, Any]:
    counted = statistics_of(job) or Statistics()
    return {
        "version": 1,
        "at": now,
        "job": job_document(job, now) | {"version": job.version, "updated_at": iso(job.updated_at)},
        "definition": _public_definition(job),
        "problem": problem,
        "followed_by": [{"job": str(link.job), "on": link.on} for link in jobs_after(job)[:SHOWN]],
        "running": [str(run.pk) for run in standing.running(job)],
        "statistics": {name: getattr(counted, name) for name in (*COUNTED, "failures_in_a_row")},
        "success_percent_of_latest": lately.percent,
        "words": ahead.words if ahead else "",
        "occurrences": occurrences_document(ahead) if ahead else [],
        "cautions": cautions_document(ahead) if ahead else [],
    }
