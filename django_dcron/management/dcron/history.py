"""``manage.py dcron history``: the runs of a job, or one run. Exit codes: 0; 2 it cannot be told.

What names a job is a job; anything else is taken for the beginning of a run's id.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from django.core.management.base import BaseCommand, CommandParser
from django.utils import timezone

from django_dcron.domain.lifecycle import State, Trigger
from django_dcron.management.dcron import times
from django_dcron.management.dcron.exits import cannot
from django_dcron.management.dcron.finding import JOB_HELP, RUN_HELP, find_job_or_run
from django_dcron.management.dcron.numbers import whole
from django_dcron.management.dcron.output import (
    BAD,
    STRONG,
    Cell,
    Column,
    Output,
    Styled,
    add_json,
    iso,
    moment,
    span,
    state,
)
from django_dcron.models import Attempt, Job, Run
from django_dcron.models.database import alias_for, database_now
from django_dcron.observability.chains import followed_id, followers_of
from django_dcron.observability.history import LOOKED_AT, attempts_of, runs_of
from django_dcron.observability.lengths import duration, lateness
from django_dcron.targets import redacted

HELP = (
    "Show the runs of a job, newest first; or one run with its attempts, their logs, tracebacks and results. What names a job is a "
    "job, anything else the beginning of a run's id."
)
EXAMPLES = """
history nightly-report
history shop/import-orders --since 2d --state failed --state missed
history 019a9f3c-5b7e
history 019a9f3c-5b7e --attempt 2 --json
"""
RUNS = 20
ID_SHOWN = 23
"""Characters of a run's id that fit in a line: its millisecond, and 26 random bits."""
MOST = 10_000


def add_arguments(parser: CommandParser) -> None:
    parser.add_argument("what", metavar="JOB|RUN", help=f"{JOB_HELP}; or {RUN_HELP}")
    of_job = parser.add_argument_group("of a job")
    of_job.add_argument(
        "-n", "--limit", type=whole(1, MOST), default=RUNS, metavar="N", help=f"at most N runs ({RUNS})"
    )
    of_job.add_argument("--since", metavar="TIME", help=f"scheduled for then or later: {times.time_help()}")
    of_job.add_argument("--until", metavar="TIME", help="scheduled for earlier, in the same forms")
    of_job.add_argument(
        "--state",
        action="append",
        default=[],
        choices=[state.value for state in State],
        help=f"those in this state, among the latest {LOOKED_AT:,}; may be given several times",
    )
    of_run = parser.add_argument_group("of a run")
    of_run.add_argument("--attempt", type=whole(1, 32_767), metavar="N", help="this attempt only (all)")
    add_json(parser)


def run(command: BaseCommand, options: dict[str, Any]) -> None:
    out, found = Output(command, options), find_job_or_run(options["what"])
    if isinstance(found, Job):
        if options["attempt"]:
            raise cannot("--attempt is for a run; this is a job.")
        _show_job(out, found, options)
        return
    for name in ("since", "until", "state"):
        if options[name]:
            raise cannot(f"--{name} is for a job; this is a run.")
    _show_run(out, found, options["attempt"])


def _show_job(out: Output, job: Job, options: dict[str, Any]) -> None:
    now = database_now(alias_for(Job))
    bounds = {
        name: times.instant(f"--{name}", options[name], now, timezone.get_current_timezone())
        if options[name]
        else None
        for name in ("since", "until")
    }
    page = runs_of(job, options["limit"], states=options["state"], **bounds)
    if out.is_json:
        out.json(
            {
                "version": 1,
                "job": {"id": job.pk, "namespace": job.namespace, "name": job.name},
                "runs": [run_document(run) for run in page.runs],
                "more": page.more,
            }
        )
        return
    if not page.runs:
        out.line(_nothing(chosen=any(bounds.values()) or bool(options["state"]), more=page.more))
        return
    numbers = [Column(title, right=True) for title in ("Late", "Took")]
    scheduled = f"Scheduled ({timezone.get_current_timezone_name()})"
    first = [Column("Run"), Column(scheduled), Column("State")]
    out.table([*first, *numbers, Column("Note", wraps=True)], map(_cells, page.runs))
    if page.more:
        out.line(
            f"There may be older ones: --until {iso(page.runs[-1].scheduled_at)} goes on, --limit shows more."
        )


def _nothing(*, chosen: bool, more: bool) -> str:
    if more:
        return f"No run of the latest {LOOKED_AT:,} is so."
    return "No run is so." if chosen else "It has no runs yet."


def _cells(run: Run) -> list[Cell]:
    return [
        str(run.pk)[:ID_SHOWN],
        f"{timezone.localtime(run.scheduled_at):%Y-%m-%d %H:%M:%S}",
        state(run.state),
        span(lateness(run)),
        span(duration(run)),
        "; ".join(_notes(run)),
    ]


def _notes(run: Run) -> Iterator[str]:
    if run.trigger != Trigger.SCHEDULE:
        yield run.trigger
    if run.attempt > 1:
        yield f"attempt {run.attempt}"
    if run.missed_before:
        yield f"and {run.missed_before} missed before it"
    if run.reason:
        yield run.reason


def _show_run(out: Output, run: Run, number: int | None) -> None:
    attempts = attempts_of(run)
    chosen = [attempt for attempt in attempts if number in (None, attempt.number)]
    if number is not None and not chosen:
        raise cannot(f"Run {run.pk} has no attempt {number}; it has {len(attempts)}.")
    if out.is_json:
        document = run_document(run) | {"attempts": [_attempt_document(attempt) for attempt in chosen]}
        out.json({"version": 1, "run": document})
        return
    out.line(f"{run.job}, run {run.pk}", STRONG)
    out.fields(_run_fields(run))
    for attempt in chosen:
        out.line()
        out.line(f"Attempt {attempt.number}", STRONG)
        out.fields(_attempt_fields(attempt))
        for title, text in (
            ("Log", attempt.log),
            ("Traceback", attempt.traceback),
            ("Result", attempt.result),
        ):
            if text:
                out.line(f"{title}:", STRONG)
                out.line(text.rstrip("\n"))


def _run_fields(run: Run) -> Iterator[tuple[str, Cell]]:
    yield "state", state(run.state)
    yield "reason", run.reason
    yield "scheduled", moment(run.scheduled_at)
    yield "due", moment(run.due_at) if run.due_at != run.scheduled_at else ""
    yield "trigger", run.trigger
    yield "rerun of", str(run.rerun_of_id) if run.rerun_of_id else ""
    yield "follows", str(followed_id(run) or "")
    yield "followed by", ", ".join(f"{after.job} {after.pk}" for after in followers_of(run))
    yield "arguments", "" if run.args is None else json.dumps(redacted(run.args))
    yield "keyword arguments", "" if run.kwargs is None else json.dumps(redacted(run.kwargs))
    yield "idempotency key", run.idempotency_key
    yield "started", moment(run.started_at)
    yield "late", span(lateness(run))
    yield "finished", moment(run.finished_at)
    yield "took", span(duration(run))
    if run.missed_before:
        yield "stands for", f"{run.missed_before} missed before it, from {moment(run.missed_from)} on"
    yield "asked to stop", moment(run.cancel_requested_at) if run.cancel_requested_at else ""
    yield "node", run.node
    yield "deliveries", run.deliveries


def _attempt_fields(attempt: Attempt) -> Iterator[tuple[str, Cell]]:
    yield "outcome", state(attempt.outcome or "running")
    if attempt.late_outcome:
        yield "reported too late", state(attempt.late_outcome)
    yield "worker", attempt.worker
    yield "started", moment(attempt.started_at)
    yield "finished", moment(attempt.finished_at)
    yield "took", span(attempt.duration)
    if attempt.progress_done is not None:
        of = f" of {attempt.progress_total}" if attempt.progress_total is not None else ""
        note = f", {attempt.progress_note}" if attempt.progress_note else ""
        yield "progress", f"{attempt.progress_done}{of}{note}"
    raised = ": ".join(filter(None, (attempt.exception_class, attempt.message)))
    yield "raised", Styled(raised, BAD)


def run_document(run: Run) -> dict[str, Any]:
    return {
        "id": str(run.pk),
        "job": str(run.job),
        "state": run.state,
        "reason": run.reason,
        "trigger": run.trigger,
        "scheduled_at": iso(run.scheduled_at),
        "due_at": iso(run.due_at),
        "claimed_at": iso(run.claimed_at),
        "queued_at": iso(run.queued_at),
        "started_at": iso(run.started_at),
        "finished_at": iso(run.finished_at),
        "attempt": run.attempt,
        "args": redacted(run.args),
        "kwargs": redacted(run.kwargs),
        "idempotency_key": run.idempotency_key,
        "rerun_of": str(run.rerun_of_id) if run.rerun_of_id else None,
        "follows": str(followed_id(run)) if followed_id(run) else None,
        "missed_before": run.missed_before,
        "missed_from": iso(run.missed_from),
        "node": run.node,
    }


def _attempt_document(attempt: Attempt) -> dict[str, Any]:
    return {
        "number": attempt.number,
        "outcome": attempt.outcome or None,
        "late_outcome": attempt.late_outcome or None,
        "worker": attempt.worker,
        "started_at": iso(attempt.started_at),
        "finished_at": iso(attempt.finished_at),
        "exception": attempt.exception_class,
        "message": attempt.message,
        "traceback": attempt.traceback,
        "log": attempt.log,
        "result": attempt.result,
        "progress": {
            "done": attempt.progress_done,
            "total": attempt.progress_total,
            "note": attempt.progress_note,
        },
    }
