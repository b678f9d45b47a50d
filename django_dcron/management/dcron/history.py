"""``manage.py dcron history``: show the runs of all jobs or of a job, or one run.

The argument is a job if a job has this name, otherwise the beginning of a run's id.

Exit codes:

- 0: success.
- 2: the request can't be processed.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any

from django.core.management.base import BaseCommand, CommandParser
from django.utils import timezone

from django_dcron.db.now import database_now
from django_dcron.db.routing import alias_for
from django_dcron.diagnosis.chains import followed_run_id, followers_of
from django_dcron.diagnosis.definitions import changes_since, definition_document
from django_dcron.diagnosis.not_retried import why_run_not_retried
from django_dcron.diagnosis.run_durations import first_start_delay, total_duration
from django_dcron.diagnosis.run_history import (
    EMPTY_LOG,
    READ_LIMIT,
    RunHistory,
    attempts_of,
    first_attempts,
    has_empty_log,
    has_upcoming_run,
    read_run_history,
)
from django_dcron.jobs.audit.differences import shown_changes
from django_dcron.jobs.representation import text_of
from django_dcron.management.dcron import option_values
from django_dcron.management.dcron.exits import usage_error
from django_dcron.management.dcron.freezes import warn_of_freezes
from django_dcron.management.dcron.lookup import ID_SHOWN, JOB_HELP, RUN_HELP, find_job_or_run
from django_dcron.management.dcron.option_values import parse_whole_number
from django_dcron.management.dcron.output import (
    BAD,
    QUIET,
    STRONG,
    Cell,
    Column,
    Output,
    StyledText,
    add_json,
    duration_text,
    iso,
    site_time_text,
    styled_state,
    time_text,
)
from django_dcron.models import Attempt, Job, Run
from django_dcron.policies.lifecycle import State, Trigger
from django_dcron.schedules.timetable import SECOND
from django_dcron.targets import redact_secrets

HELP = (
    "Show the runs of all jobs or of a job, newest first, without upcoming runs; or one run with "
    "its attempts, logs, tracebacks and results. The argument is a job if a job has this name, "
    "otherwise the beginning of a run's id."
)
EXAMPLES = """
history --since 1h --state failed
history nightly-report
history shop/import-orders --since 2d --state failed --state missed
history 019a9f3c-5b7e-7123-8abc
history 019a9f3c-5b7e-7123-8abc --attempt 2 --json
"""
DEFAULT_LIMIT = 20
MAX_RUNS = 10_000


def add_arguments(parser: CommandParser) -> None:
    parser.add_argument(
        "what", nargs="?", metavar="JOB|RUN", help=f"{JOB_HELP}; or {RUN_HELP} (default: all jobs)"
    )
    of_job = parser.add_argument_group("options for a job or all jobs")
    of_job.add_argument(
        "-n",
        "--limit",
        type=parse_whole_number(1, MAX_RUNS),
        metavar="N",
        help=f"maximum number of runs (default: {DEFAULT_LIMIT})",
    )
    option_values.add_period(of_job, "scheduled")
    of_job.add_argument(
        "--state",
        action="append",
        default=[],
        choices=[state.value for state in State],
        help=f"runs in this state, among the latest {READ_LIMIT:,} (repeatable)",
    )
    of_job.add_argument(
        "--upcoming",
        action="store_true",
        help="also runs that nodes have claimed ahead of time and that aren't due yet",
    )
    of_run = parser.add_argument_group("options for a run")
    of_run.add_argument(
        "--attempt",
        type=parse_whole_number(1, 32_767),
        metavar="N",
        help="show only this attempt (default: all)",
    )
    add_json(parser)


def run(command: BaseCommand, options: dict[str, Any]) -> None:
    out = Output(command, options)
    found = None if options["what"] is None else find_job_or_run(options["what"])
    if not isinstance(found, Run):
        if options["attempt"]:
            raise usage_error("--attempt needs a run, not a job.")
        _show_runs(out, found, options)
        return
    for name in ("limit", "since", "until", "state", "upcoming"):
        if options[name]:
            raise usage_error(f"--{name} needs a job, not a run.")
    _show_run(out, found, options["attempt"])


def _show_runs(out: Output, job: Job | None, options: dict[str, Any]) -> None:
    now = database_now(alias_for(Job))
    since, until = option_values.parse_period(options, now)
    shows_upcoming = options["upcoming"] or State.PENDING in options["state"]
    page = read_run_history(
        job,
        options["limit"] or DEFAULT_LIMIT,
        states=options["state"],
        hide_upcoming_at=None if shows_upcoming else now,
        since=since,
        until=until,
    )
    if out.is_json:
        out.json(
            {
                "version": 1,
                "job": {"id": job.pk, "namespace": job.namespace, "name": job.name}
                if job
                else None,
                "runs": [run_document(run) for run in page.runs],
                "more": page.more,
                "continue_until": iso(_continue_until(page, one_job=job is not None)),
            }
        )
        return
    warn_of_freezes(out, job.namespace if job else "")
    if not page.runs:
        is_filtered = bool(since or until or options["state"])
        out.line(_empty_text(job, page, is_filtered=is_filtered))
        if not shows_upcoming and has_upcoming_run(job, now):
            out.line("To show upcoming runs, use --upcoming.")
        return
    _show_table(out, page, names_job=job is None)


def _show_table(out: Output, page: RunHistory, *, names_job: bool) -> None:
    numbers = [Column(title, right=True) for title in ("Start delay", "Duration")]
    scheduled = f"Scheduled ({timezone.get_current_timezone_name()})"
    names = [Column("Job")] if names_job else []
    first = [Column("Run"), *names, Column(scheduled), Column("State")]
    attempts = first_attempts(page.runs)
    rows = [_cells(run, attempts.get(run.pk), names_job=names_job) for run in page.runs]
    out.table([*first, *numbers, Column("Note", wraps=True)], rows)
    if page.more:
        out.line(_older_runs_text(page, one_job=not names_job))


def _older_runs_text(page: RunHistory, *, one_job: bool) -> str:
    until = _continue_until(page, one_job=one_job)
    if until is not None:
        # No full stop after a time, so that it can be copied.
        return f"There may be older runs: use --until {timezone.localtime(until).isoformat()}"
    if page.searched:  # A higher limit wouldn't help: the search didn't reach it.
        return "There may be older runs."
    return "There may be older runs: use a higher --limit."


def _continue_until(page: RunHistory, *, one_job: bool) -> datetime | None:
    """Return the end of the range in which older runs are listed next.

    Other jobs may have more runs in the second of the oldest run, so that the range includes it.
    Returns None if there are no older runs, or if the newest run is in this second, too.
    """
    if not page.more:
        return None
    newest, oldest = page.searched or (page.runs[0].scheduled_at, page.runs[-1].scheduled_at)
    if one_job:
        return oldest
    end = oldest.replace(microsecond=0) + SECOND
    return end if newest >= end else None


def _empty_text(job: Job | None, page: RunHistory, *, is_filtered: bool) -> str:
    if page.searched:
        older = _older_runs_text(page, one_job=job is not None)
        return f"None of the latest {READ_LIMIT:,} runs match. {older}"
    if is_filtered:
        return "No runs match."
    return "The job has no runs yet." if job else "There are no runs yet."


def _cells(run: Run, first: Attempt | None, *, names_job: bool) -> list[Cell]:
    return [
        str(run.pk)[:ID_SHOWN],
        *([str(run.job)] if names_job else []),
        site_time_text(run.scheduled_at),
        styled_state(run.state),
        duration_text(first_start_delay(run, first)),
        duration_text(total_duration(run, first)),
        "; ".join(_notes(run)),
    ]


def _notes(run: Run) -> Iterator[str]:
    if run.trigger != Trigger.SCHEDULE:
        yield run.shown_trigger
    if run.attempt > 1:
        yield f"attempt {run.attempt}"
    if run.missed_before:
        yield f"{run.missed_before} missed before"
    if run.reason:
        yield run.reason


def _show_run(out: Output, run: Run, number: int | None) -> None:
    attempts = attempts_of(run)
    chosen = [attempt for attempt in attempts if number in (None, attempt.number)]
    if number is not None and not chosen:
        raise usage_error(f"Run {run.pk} has no attempt {number}; it has {len(attempts)}.")
    if out.is_json:
        document = run_document(run) | {
            "attempts": [_attempt_document(attempt) for attempt in chosen]
        }
        out.json({"version": 1, "run": document})
        return
    out.line(f"{run.job}, run {run.pk}", STRONG)
    out.fields(_run_fields(run, first_attempts([run]).get(run.pk)))
    if not_retried := why_run_not_retried(run, attempts[-1] if attempts else None):
        out.line(not_retried)
    first_empty = next(filter(has_empty_log, chosen), None)
    for attempt in chosen:
        out.line()
        out.line(f"Attempt {attempt.number}", STRONG)
        out.fields(_attempt_fields(attempt, with_times=run.attempt > 1 or len(attempts) > 1))
        for title, text in (
            ("Log", attempt.log),
            ("Traceback", attempt.traceback),
            ("Result", attempt.result),
        ):
            if text:
                out.line(f"{title}:", STRONG)
                out.line(text.rstrip("\n"))
        if attempt is first_empty:
            out.line(str(EMPTY_LOG), QUIET)


def _run_fields(run: Run, first: Attempt | None) -> Iterator[tuple[str, Cell]]:
    yield "state", styled_state(run.state)
    yield "reason", run.reason
    yield "scheduled", time_text(run.scheduled_at)
    due_at = first.due_at if first else run.due_at
    yield "due", time_text(due_at) if due_at and due_at != run.scheduled_at else ""
    yield "trigger", run.shown_trigger
    yield "rerun of", str(run.rerun_of_id) if run.rerun_of_id else ""
    yield "follows", str(followed_run_id(run) or "")
    yield "followed by", ", ".join(f"{after.job} {after.pk}" for after in followers_of(run))
    yield "arguments", "" if run.args is None else text_of(redact_secrets(run.args))
    yield "keyword arguments", "" if run.kwargs is None else text_of(redact_secrets(run.kwargs))
    yield "idempotency key", run.idempotency_key
    yield "attempts", run.attempt if run.attempt > 1 else ""
    sent_at = first.queued_at if first else run.sent_at
    yield "sent to worker", time_text(sent_at) if sent_at else ""
    yield "started", time_text(first.started_at if first else run.started_at)
    yield "start delay", duration_text(first_start_delay(run, first))
    yield "finished", time_text(run.finished_at)
    yield "duration", duration_text(total_duration(run, first))
    if run.missed_before:
        yield (
            "missed before",
            f"{run.missed_before}, since {time_text(run.missed_from)}",
        )
    yield "cancel requested", time_text(run.cancel_requested_at) if run.cancel_requested_at else ""
    yield "node", run.node
    yield "deliveries", run.deliveries


def _attempt_fields(attempt: Attempt, *, with_times: bool) -> Iterator[tuple[str, Cell]]:
    """Yield the fields of an attempt. The times of a run's only attempt are those of the run."""
    yield "outcome", styled_state(attempt.outcome or "running")
    if attempt.late_outcome:
        yield "late outcome", styled_state(attempt.late_outcome)
    yield "worker", attempt.worker
    yield "release", attempt.release
    if attempt.definition is not None:
        changes = changes_since(attempt.definition.content, attempt.run.job)
        yield "version", attempt.definition.version
        then = {each.field: each.old for each in changes}
        now = {each.field: each.new for each in changes}
        yield "changed since", shown_changes(then, now)
    if with_times:
        yield "sent to worker", time_text(attempt.queued_at) if attempt.queued_at else ""
        yield "started", time_text(attempt.started_at)
        yield "finished", time_text(attempt.finished_at)
        yield "duration", duration_text(attempt.duration)
    if attempt.progress_done is not None:
        of = f" of {attempt.progress_total}" if attempt.progress_total is not None else ""
        note = f", {attempt.progress_note}" if attempt.progress_note else ""
        yield "progress", f"{attempt.progress_done}{of}{note}"
    raised = ": ".join(filter(None, (attempt.exception_class, attempt.message)))
    yield "raised", StyledText(raised, BAD)


def run_document(run: Run) -> dict[str, Any]:
    return {
        "id": str(run.pk),
        "job": str(run.job),
        "state": run.state,
        "reason": run.reason,
        "trigger": run.shown_trigger,
        "scheduled_at": iso(run.scheduled_at),
        "due_at": iso(run.due_at),
        "claimed_at": iso(run.claimed_at),
        "queued_at": iso(run.queued_at),
        "started_at": iso(run.started_at),
        "finished_at": iso(run.finished_at),
        "attempt": run.attempt,
        "args": redact_secrets(run.args),
        "kwargs": redact_secrets(run.kwargs),
        "idempotency_key": run.idempotency_key,
        "rerun_of": str(run.rerun_of_id) if run.rerun_of_id else None,
        "follows": str(followed_run_id(run)) if followed_run_id(run) else None,
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
        "release": attempt.release,
        "definition": definition_document(attempt),
        "due_at": iso(attempt.due_at),
        "queued_at": iso(attempt.queued_at),
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
