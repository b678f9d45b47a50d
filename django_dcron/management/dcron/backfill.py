"""``manage.py dcron backfill``: runs for occurrences that have passed and have none."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

from django.core.management.base import BaseCommand, CommandParser
from django.db.models import Count

from django_dcron import backfill as backfilling
from django_dcron import control
from django_dcron.backfill import Backfill
from django_dcron.conf import settings
from django_dcron.domain.counts_in_words import number_of
from django_dcron.domain.lifecycle import FINAL, State, Trigger
from django_dcron.exceptions import DcronError
from django_dcron.management.dcron import times
from django_dcron.management.dcron.exits import cannot, no
from django_dcron.management.dcron.finding import JOB_HELP, find_job
from django_dcron.management.dcron.numbers import whole
from django_dcron.management.dcron.output import GOOD, ODD, Output, add_json, iso, moment
from django_dcron.management.dcron.progress_bar import ProgressBar
from django_dcron.models import Job, Node, Run
from django_dcron.models.database import alias_for, database_now

HELP = (
    "Make runs for the occurrences of a job from START to just before END that have none, and wait until they have ended. They "
    "run oldest first, a few at a time, behind what is due anyway. Ctrl-C ends the waiting, not the runs. Exit codes: 0 all have "
    "succeeded (with --no-wait: they were made; with --dry-run: they would be); 1 some have not, or it is refused as things are; "
    "2 it makes no sense: nothing was made."
)
EXAMPLES = """
backfill nightly-report 2026-11-01 2026-11-08 --dry-run
backfill nightly-report 2026-11-01 2026-11-08
backfill import-orders 6h now --limit 100 --no-wait
"""
LOOK_EVERY = 1.0


def add_arguments(parser: CommandParser) -> None:
    parser.add_argument("job", metavar="JOB", help=JOB_HELP)
    parser.add_argument(
        "start",
        metavar="START",
        help="an ISO time (in the job's time zone unless it has an offset), or how long ago",
    )
    parser.add_argument("end", metavar="END", help="in the same forms, or now; not included")
    parser.add_argument(
        "--limit",
        type=whole(1, backfilling.LARGEST_LIMIT),
        default=backfilling.LIMIT,
        metavar="N",
        help=f"make at most N runs, the oldest ({backfilling.LIMIT})",
    )
    parser.add_argument(
        "--over-pruned",
        action="store_true",
        help="also where older runs were pruned: what has run there, and is forgotten, runs again",
    )
    waiting = parser.add_mutually_exclusive_group()
    waiting.add_argument("--dry-run", action="store_true", help="write nothing; show what would run")
    waiting.add_argument("--no-wait", action="store_true", help="do not wait until they have ended")
    add_json(parser)


def run(command: BaseCommand, options: dict[str, Any]) -> None:
    output, job = Output(command, options), find_job(options["job"])
    now = database_now(alias_for(Job))
    planned = _backfill(job, options, now)
    waits = bool(planned.occurrences) and not (options["dry_run"] or options["no_wait"])
    if not output.is_json:
        _print(output, job, planned, options["dry_run"])
    ended: dict[str, int] | None = {}
    if waits:
        if not output.is_json:
            _say_what_keeps_it(output, job)
        ended = _wait(output, job, planned.occurrences, now)
    if output.is_json:
        output.json(_document(job, planned, options["dry_run"], ended if waits else None))
    if ended is None:
        raise no(
            f"Waits no longer; the runs go on. manage.py dcron cancel {job} ends all that are unfinished."
        )
    if failed := {state: number for state, number in ended.items() if state != State.SUCCEEDED}:
        raise no(", ".join(f"{number} {state}" for state, number in sorted(failed.items())) + ".")
    if waits and not output.is_json:
        output.line(f"{ended.get(State.SUCCEEDED, 0)} succeeded.", GOOD)


def _backfill(job: Job, options: dict[str, Any], now: datetime) -> Backfill:
    chosen = {name: options[name] for name in ("limit", "dry_run", "over_pruned")}
    try:
        zone = _zone(job)
        start, end = (times.instant(name.upper(), options[name], now, zone) for name in ("start", "end"))
        return control.backfill(job, start, end, **chosen)
    except ValueError as error:
        raise cannot(str(error)) from error
    except DcronError as error:
        raise no(str(error)) from error


def _zone(job: Job) -> ZoneInfo:
    return ZoneInfo(job.parsed_schedule.timezone)


def _print(output: Output, job: Job, planned: Backfill, dry_run: bool) -> None:
    number = len(planned.occurrences)
    if dry_run:
        for occurrence in planned.occurrences:
            output.line(moment(occurrence, _zone(job)))
    output.line(f"{job}: {number_of(number, 'run')} {'would be made' if dry_run else 'made'}.")
    if planned.have_run:
        output.line(
            f"{number_of(planned.have_run, 'other occurrence has', 'other occurrences have')} a run already."
        )
    if planned.continue_from:
        output.line(f"There may be more: START {iso(planned.continue_from)} goes on.", ODD)


def _say_what_keeps_it(output: Output, job: Job) -> None:
    if not job.enabled:
        output.line("The job is paused: they run when it is resumed.", ODD)
    if not Node.objects.using(alias_for(Node)).live(settings.LEASE).exists():
        output.line("No node runs (manage.py runcron): they run when one does.", ODD)


def _wait(
    output: Output, job: Job, occurrences: Sequence[datetime], made_since: datetime
) -> dict[str, int] | None:
    """How many ended in which state. None: somebody had enough of it."""
    try:
        with ProgressBar(output) as bar:
            while True:
                states = _count(job, occurrences, made_since)
                ended = {state: number for state, number in states.items() if State(state) in FINAL}
                # Some may be gone, deleted by hand: those that are there decide.
                running = states.get(State.RUNNING, 0)
                bar.show(sum(ended.values()), sum(states.values()), f"({running} running)" if running else "")
                if ended.keys() == states.keys():
                    return ended
                time.sleep(LOOK_EVERY)
    except KeyboardInterrupt:
        return None


def _count(job: Job, occurrences: Sequence[datetime], made_since: datetime) -> dict[str, int]:
    runs = Run.objects.using(alias_for(Run)).filter(
        job=job,
        scheduled_at__gte=occurrences[0],
        scheduled_at__lte=occurrences[-1],
        trigger=Trigger.BACKFILL,
        claimed_at__gte=made_since,
    )
    return dict(runs.order_by().values_list("state").annotate(number=Count("pk")))


def _document(job: Job, planned: Backfill, dry_run: bool, ended: dict[str, int] | None) -> dict[str, Any]:
    return {
        "version": 1,
        "job": str(job),
        "dry_run": dry_run,
        "occurrences": [iso(occurrence) for occurrence in planned.occurrences],
        "have_run": planned.have_run,
        "continue_from": iso(planned.continue_from),
        "until": iso(planned.until),
        "ended": ended,
    }
