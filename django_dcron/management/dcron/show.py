"""``manage.py dcron show``: show one job.

Exit codes:

- 0: success.
- 2: the request can't be processed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from django_dcron.db.now import database_now
from django_dcron.db.routing import alias_for
from django_dcron.diagnosis import job_status
from django_dcron.diagnosis.chains import SHOWN, jobs_after
from django_dcron.diagnosis.figures import SuccessRate
from django_dcron.diagnosis.job_arguments import (
    ArgumentsChecker,
    advice_on_arguments,
    unknown_target_problem,
)
from django_dcron.diagnosis.job_state import next_run_of, problem_of, statistics_of, status_of
from django_dcron.diagnosis.lookahead import Lookahead, look_ahead
from django_dcron.diagnosis.waiting_runs import waiting_runs_of
from django_dcron.dispatch.queues import queue_name
from django_dcron.exceptions import InvalidSchedule
from django_dcron.jobs import sync
from django_dcron.jobs.representation import PORTABLE_JOB_FIELDS, document_of, redact_document
from django_dcron.management.dcron.freezes import time_until_text, warn_of_freezes
from django_dcron.management.dcron.job_selection import state_cell
from django_dcron.management.dcron.lookup import JOB_HELP, find_job
from django_dcron.management.dcron.next import (
    lookahead_cautions,
    occurrences_document,
    print_occurrences,
    print_resume_notice,
)
from django_dcron.management.dcron.option_values import parse_whole_number
from django_dcron.management.dcron.output import (
    BAD,
    STRONG,
    Cell,
    Output,
    StyledText,
    add_json,
    styled_state,
    time_text,
)
from django_dcron.models import Job, Link, Statistics
from django_dcron.models.statistics import COUNTED_STATES
from django_dcron.policies.freezing import FreezeExtent
from django_dcron.utils.counts import number_of

HELP = "Show one job: its definition, state, statistics and next occurrences."
EXAMPLES = """
show nightly-report
show shop/import-orders -n 20
show 42 --json
"""
OCCURRENCES = 5
ALWAYS = ("target", "args", "kwargs", "schedule", "timezone")
ELSEWHERE = frozenset({"namespace", "name", "declared", "enabled", "pause_reason", "paused_until"})
"""Fields of the definition that are shown in the section on the job's status."""


def add_arguments(parser: CommandParser) -> None:
    parser.add_argument("job", metavar="JOB", help=JOB_HELP)
    parser.add_argument(
        "-n",
        "--count",
        type=parse_whole_number(0, 100),
        default=OCCURRENCES,
        metavar="N",
        help=f"number of next occurrences, at most 100 (default: {OCCURRENCES})",
    )
    add_json(parser)


def run(command: BaseCommand, options: dict[str, Any]) -> None:
    out, job = Output(command, options), find_job(options["job"])
    now = database_now(alias_for(Job))
    ahead, problem = _preview_of(job, options["count"])
    latest = job_status.latest_finished(job)
    if out.is_json:
        out.json(_document(job, now, ahead, job_status.success_rate_of_runs(latest)))
        return
    freezes = warn_of_freezes(out, job.namespace)
    out.line(str(job), STRONG)
    if job.description:
        out.line(job.description)
    out.line()
    out.fields(_status_fields(job, now, problem, freezes))
    out.line()
    out.fields(_statistics_fields(statistics_of(job), job_status.success_rate_of_runs(latest)))
    out.line()
    out.fields(_definition(job))
    if ahead:
        out.line()
        out.line(f"Next: {ahead.words}" if ahead.words else "Next")
        print_resume_notice(out, job)
        print_occurrences(out, ahead)


def _preview_of(job: Job, count: int) -> tuple[Lookahead | None, str]:
    """Return the preview, or None, and the job's problem."""
    if not count:
        return None, problem_of(job)
    try:
        return look_ahead(job, count), problem_of(job)
    except InvalidSchedule as error:
        return None, str(error)


def _why_runs_fail(job: Job) -> str:
    if rejected := ArgumentsChecker().why_rejected(job):
        return f"Runs fail: {rejected}. {advice_on_arguments(job)}"
    return ""


def _status_fields(
    job: Job, now: datetime, problem: str, freezes: Sequence[FreezeExtent]
) -> Iterator[tuple[str, Cell]]:
    yield "state", state_cell(job)
    yield "problem", StyledText(problem, BAD)
    yield "target", StyledText(unknown_target_problem(job.target) if job.enabled else "", BAD)
    yield "arguments", StyledText(_why_runs_fail(job), BAD)
    pause = job_status.pause_of(job, job_status.paused_by(job))
    if pause:
        yield "pause reason", pause.reason
        yield "paused by", pause.by
        yield "paused since", time_text(pause.since) if pause.since else ""
        yield "paused until", time_text(pause.until) if pause.until else "resumed"
    if next_at := next_run_of(job, now):
        until = time_until_text(job, next_at, now, freezes)
        yield "next run", f"{time_text(next_at)} ({until})"
    running = job_status.running_runs(job)
    for run in running[: job_status.RUNNING_NAMED]:
        yield "running", f"{run.pk} since {time_text(run.started_at)}"
    if len(running) > job_status.RUNNING_NAMED:
        yield "running", "and more"
    number, oldest = waiting_runs_of(job, now)
    if oldest is not None:
        runs = number_of(number, "run")
        yield "waiting", f"{runs} for earlier runs; the oldest was due at {time_text(oldest)}"
    yield "followed by", _followers(jobs_after(job))
    if job.declared is not None:
        is_declared = sync.is_still_declared(job)
        yield "declared", "in code (@cron)" if is_declared else "no longer (formerly with @cron)"
        for name, text in sync.declared_texts(job).items() if is_declared else ():
            yield "edited", f"{name} (code: {text})"
    yield "imported from", job.import_source
    yield "number", f"{job.pk}, version {job.version}"
    yield "changed", time_text(job.updated_at)


def _followers(links: Sequence[Link]) -> str:
    texts = [f"{link.job} (when it has {link.on})" for link in links[:SHOWN]]
    if len(links) > SHOWN:
        texts.append("and more")
    return ", ".join(texts)


def _statistics_fields(
    statistics: Statistics | None, lately: SuccessRate
) -> Iterator[tuple[str, Cell]]:
    counted = statistics or Statistics()
    counts = [f"{counted.shown_count(state)} {state}" for state in COUNTED_STATES]
    if counted.shadow_runs:
        counts.append(f"{counted.shadow_runs} as a shadow (the target wasn't called)")
    yield "runs", ", ".join(counts)
    if lately.percent is not None:
        yield "success rate", f"{lately.percent:g}% of the latest {lately.ended}"
    if counted.last_state:
        yield "last outcome", styled_state(counted.last_state)
        yield "last finished", time_text(counted.last_finished_at)
    if counted.consecutive_failures:
        yield "consecutive failures", StyledText(str(counted.consecutive_failures), BAD)


def _definition(job: Job) -> Iterator[tuple[str, Cell]]:
    """Yield the fields that differ from their defaults, and the most important ones."""
    for field in PORTABLE_JOB_FIELDS:
        if field.name in ELSEWHERE or field.name == "description":
            continue
        default = field.model_field.get_default()
        if field.name == "queue" and not job.queue:
            name = queue_name(job.target, "")
            yield "queue", f"{name} (from the target's route)" if name else ""
        elif field.name in ALWAYS or not field.is_same(field.value_of(job), default):
            written = field.json_of(job)
            yield field.name, "" if written == "" else field.text(written)


def _document(
    job: Job, now: datetime, ahead: Lookahead | None, lately: SuccessRate
) -> dict[str, Any]:
    counted = statistics_of(job) or Statistics()
    return {
        "version": 1,
        "at": now,
        "job": redact_document(document_of(job)) | {"status": status_of(job, now)},
        "followed_by": [{"job": str(link.job), "on": link.on} for link in jobs_after(job)[:SHOWN]],
        "running": [str(run.pk) for run in job_status.running_runs(job)],
        "arguments_rejected": ArgumentsChecker().why_rejected(job),
        "statistics": {
            **{state.value: counted.shown_count(state) for state in COUNTED_STATES},
            "consecutive_failures": counted.consecutive_failures,
        },
        "success_percent_of_latest": lately.percent,
        "words": ahead.words if ahead else "",
        "occurrences": occurrences_document(ahead) if ahead else [],
        "cautions": lookahead_cautions(ahead) if ahead else [],
    }
