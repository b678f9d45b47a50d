"""``manage.py dcron backfill``: create runs for past occurrences that have none."""

from __future__ import annotations

import shlex
import time
from collections.abc import Sequence
from datetime import datetime, timedelta, tzinfo
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db.models import Count

from django_dcron import control
from django_dcron.db.errors import UNAVAILABLE
from django_dcron.db.now import database_now
from django_dcron.db.routing import alias_for
from django_dcron.diagnosis.start_caution import backfill_cautions
from django_dcron.diagnosis.why.explanation_data import schedule_zone_of
from django_dcron.exceptions import DcronError, InvalidSchedule
from django_dcron.jobs import backfill as backfilling
from django_dcron.jobs.backfill import UNSUCCESSFUL, Backfill
from django_dcron.management.dcron import option_values
from django_dcron.management.dcron.delay_cautions import DelayCautions
from django_dcron.management.dcron.exits import negative_result, usage_error
from django_dcron.management.dcron.job_selection import is_pattern
from django_dcron.management.dcron.lookup import JOB_HELP, find_job
from django_dcron.management.dcron.option_values import parse_whole_number
from django_dcron.management.dcron.output import (
    GOOD,
    WARNING,
    Output,
    add_json,
    cautions_document,
    iso,
    time_text,
)
from django_dcron.management.dcron.progress_bar import ProgressBar
from django_dcron.management.dcron.run_watch import DatabaseOutage
from django_dcron.models import Job, Run
from django_dcron.policies.lifecycle import FINAL, State, Trigger
from django_dcron.utils.counts import number_of
from django_dcron.utils.messages import with_full_stop

HELP = (
    "Create runs for a job's occurrences from START until END (exclusive) that have no run, and "
    "wait for them. They run oldest first, a few at a time, after runs that are due now. Ctrl-C "
    "stops the waiting, not the runs. Exit codes: 0 if all runs succeeded (with --no-wait: were "
    "created; with --dry-run: can be created); 1 if a run didn't succeed or the job's state "
    "doesn't allow a backfill; 2 if the arguments are invalid and nothing was created."
)
EXAMPLES = """
backfill nightly-report 2026-11-01 2026-11-08 --dry-run
backfill nightly-report 2026-11-01 2026-11-08
backfill import-orders 18:00 now
backfill import-orders 6h now --limit 100 --no-wait
"""
CHECK_EVERY = 1.0
SHOWN_AT_EACH_END = 5
"""How many of the first and of the last occurrences ``--dry-run`` shows if there are many."""


def add_arguments(parser: CommandParser) -> None:
    parser.add_argument("job", metavar="JOB", help=JOB_HELP)
    parser.add_argument(
        "start",
        metavar="START",
        help="ISO time or time of day (18:00: the last one), in the job's time zone unless it has "
        "an offset; or a span in the past",
    )
    parser.add_argument("end", metavar="END", help="same formats, or now; exclusive")
    parser.add_argument(
        "--limit",
        type=parse_whole_number(1, backfilling.MAX_LIMIT),
        default=backfilling.DEFAULT_LIMIT,
        metavar="N",
        help=f"create at most N runs, oldest first (default: {backfilling.DEFAULT_LIMIT})",
    )
    parser.add_argument(
        "--over-pruned",
        action="store_true",
        help="include times whose runs were pruned; occurrences that already ran will run again",
    )
    waiting = parser.add_mutually_exclusive_group()
    waiting.add_argument(
        "--dry-run",
        action="store_true",
        help="show what would run, with --verbosity 2 every occurrence; write nothing",
    )
    waiting.add_argument("--no-wait", action="store_true", help="don't wait for the runs")
    add_json(parser)


def run(command: BaseCommand, options: dict[str, Any]) -> None:
    output, job = Output(command, options), _find_one_job(options["job"])
    now = database_now(alias_for(Job))
    planned = _backfill(job, options, now)
    waits = bool(planned.occurrences) and not (options["dry_run"] or options["no_wait"])
    if not output.is_json:
        if options["dry_run"]:
            _print_occurrences(output, job, planned, every=options["verbosity"] > 1)
        _print(output, job, planned, options["dry_run"])
    cautions: list[str] = []
    if planned.occurrences:
        cautions += backfill_cautions(job)
        cautions += [] if options["dry_run"] else DelayCautions().of(job)
    if not output.is_json:
        for caution in cautions:
            output.line(caution, WARNING)
    ended = None
    if waits:
        ended = _wait(output, job, planned.occurrences, now)
    if output.is_json:
        document = _document(job, planned, options["dry_run"], ended)
        output.json(document | {"cautions": cautions_document(cautions)})
    if waits:
        _report_end(output, job, ended, len(planned.occurrences))


def _find_one_job(text: str) -> Job:
    try:
        return find_job(text)
    except CommandError as error:
        if is_pattern(text):
            raise usage_error(
                f"backfill takes one job, but {text!r} is a pattern for several jobs. Backfill "
                "each of its jobs. To list the jobs: manage.py dcron list"
            ) from error
        raise


def _report_end(output: Output, job: Job, ended: dict[str, int] | None, created: int) -> None:
    """Report how the runs ended. Raises ``CommandError`` unless they succeeded.

    Runs may have been deleted in the meantime. The remaining ones decide.
    """
    if ended is None:
        raise negative_result(
            "Stopped waiting; the runs continue. To cancel all unfinished runs: manage.py dcron "
            f"cancel {shlex.quote(str(job))}"
        )
    if not ended:
        raise negative_result("All of the runs were deleted, so it isn't known how they ended.")
    counts = [f"{ended[state]} {state}" for state in sorted(ended) if state != State.SUCCEEDED]
    has_failed = bool(counts)
    if not has_failed:
        counts.append(f"{ended[State.SUCCEEDED]} succeeded")
    if (deleted := created - sum(ended.values())) > 0:
        counts.append(f"{deleted} deleted")
    text = f"{', '.join(counts)}."
    if has_failed:
        raise negative_result(text)
    if not output.is_json:
        output.line(text, GOOD)


def _backfill(job: Job, options: dict[str, Any], now: datetime) -> Backfill:
    chosen = {name: options[name] for name in ("limit", "dry_run", "over_pruned")}
    zone = schedule_zone_of(job)
    try:
        start, end = (
            option_values.parse_past_time(name.upper(), options[name], now, zone).astimezone(zone)
            for name in ("start", "end")
        )
        if end <= start:
            _refuse_coming_clock_time(options["end"], now, zone)
        return control.backfill(job, start, end, **chosen)
    except InvalidSchedule as error:
        raise negative_result(f"The schedule of {job} is invalid: {error}") from error
    except DcronError as error:
        raise negative_result(str(error)) from error
    except ValueError as error:
        zone_text = f"START and END without an offset are in the job's time zone, {zone}."
        raise usage_error(f"{with_full_stop(error)} {zone_text}") from error


def _refuse_coming_clock_time(text: str, now: datetime, zone: tzinfo) -> None:
    """Raise ``CommandError`` if END is a time of day that clocks in ``zone`` show later today.

    Its last one, yesterday's, isn't meant if it is before START.
    """
    last, today = option_values.last_clock_time(text, now, zone), now.astimezone(zone)
    if last is not None and last.date() < today.date():
        raise usage_error(
            f"END {text} is later than now, {today:%H:%M:%S}. To backfill until now, use END now."
        )


def _print_occurrences(output: Output, job: Job, planned: Backfill, *, every: bool) -> None:
    texts = [time_text(each, schedule_zone_of(job)) for each in planned.occurrences]
    left_out = len(texts) - 2 * SHOWN_AT_EACH_END
    if left_out > 1 and not every:
        more = f"... {left_out} more; to show them, use --verbosity 2"
        texts[SHOWN_AT_EACH_END:-SHOWN_AT_EACH_END] = [more]
    for text in texts:
        output.line(text)


def _print(output: Output, job: Job, planned: Backfill, dry_run: bool) -> None:
    done = "would be created" if dry_run else "created"
    runs = number_of(len(planned.occurrences), "run")
    output.line(f"{job}: {runs} {done}{_range_text(job, planned)}.")
    if planned.existing_runs:
        output.line(
            f"{number_of(planned.existing_runs, 'other occurrence')} skipped: a run exists."
        )
    if planned.unsuccessful:
        number = len(planned.unsuccessful)
        output.line(
            f"{number} of them {'is' if number == 1 else 'are'} missed, failed or cancelled. "
            "To rerun all such runs of this period, including manual runs: manage.py dcron rerun "
            f"{_rerun_selection(job, planned)}",
            WARNING,
        )
    if planned.continue_from:
        start = planned.continue_from.astimezone(schedule_zone_of(job)).isoformat()
        # No full stop after a time, so that it can be copied.
        output.line(f"There may be more. To continue, use START {start}", WARNING)


def _range_text(job: Job, planned: Backfill) -> str:
    """Return the first and the last occurrence, in the job's time zone."""
    if not planned.occurrences:
        return ""
    zone = schedule_zone_of(job)
    first, last = (time_text(planned.occurrences[end], zone) for end in (0, -1))
    return f", for {first}" if len(planned.occurrences) == 1 else f", from {first} to {last}"


def _rerun_selection(job: Job, planned: Backfill) -> str:
    """Return the arguments of ``dcron rerun`` that select the unsuccessful runs.

    They also select the job's other runs in between, such as manual runs.
    """
    zone = schedule_zone_of(job)
    states = " ".join(f"--state {state.value}" for state in UNSUCCESSFUL)
    since = planned.unsuccessful[0]
    until = min(planned.unsuccessful[-1] + timedelta(seconds=1), planned.until)
    return (
        f"{shlex.quote(str(job))} {states} "
        f"--since {since.astimezone(zone).isoformat()} --until {until.astimezone(zone).isoformat()}"
    )


def _wait(
    output: Output, job: Job, occurrences: Sequence[datetime], made_since: datetime
) -> dict[str, int] | None:
    """Return the number of finished runs by state, or None if the user interrupts the wait."""
    began = time.monotonic()
    try:
        with ProgressBar(output) as bar:
            outage = DatabaseOutage(bar, shlex.quote(str(job)), may_give_up=True)
            while True:
                try:
                    states = _count(job, occurrences, made_since)
                except UNAVAILABLE as error:
                    outage.go_on(error, time.monotonic() - began)
                    time.sleep(CHECK_EVERY)
                    continue
                outage.end()
                ended = {state: number for state, number in states.items() if State(state) in FINAL}
                running = states.get(State.RUNNING, 0)
                bar.show(
                    sum(ended.values()),
                    sum(states.values()),
                    f"({running} running)" if running else "",
                )
                if ended.keys() == states.keys():
                    return ended
                time.sleep(CHECK_EVERY)
    except KeyboardInterrupt:
        return None


def _count(job: Job, occurrences: Sequence[datetime], made_since: datetime) -> dict[str, int]:
    runs = (
        Run.objects.using(alias_for(Run))
        .filter(
            job=job,
            scheduled_at__gte=occurrences[0],
            scheduled_at__lte=occurrences[-1],
            claimed_at__gte=made_since,
        )
        .shown_as(Trigger.BACKFILL)
    )
    return dict(runs.order_by().values_list("state").annotate(number=Count("pk")))


def _document(
    job: Job, planned: Backfill, dry_run: bool, ended: dict[str, int] | None
) -> dict[str, Any]:
    return {
        "version": 1,
        "job": str(job),
        "dry_run": dry_run,
        "occurrences": [iso(occurrence) for occurrence in planned.occurrences],
        "existing_runs": planned.existing_runs,
        "unsuccessful": len(planned.unsuccessful),
        "continue_from": iso(planned.continue_from),
        "until": iso(planned.until),
        "ended": ended,
    }
