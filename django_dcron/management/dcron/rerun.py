"""``manage.py dcron rerun``: repeat finished runs, each as a new run."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from django_dcron import control
from django_dcron.db.now import database_now
from django_dcron.db.routing import alias_for
from django_dcron.diagnosis.start_caution import start_cautions, target_cautions
from django_dcron.exceptions import NotPossible
from django_dcron.jobs.queued_reruns import (
    RERUN_AT_ONCE,
    rerun_selected,
    without_later_rerun,
)
from django_dcron.management.dcron import bulk_actions, option_values
from django_dcron.management.dcron.bulk_actions import ActionOutcome, Plan, SkippedRow
from django_dcron.management.dcron.delay_cautions import DelayCautions
from django_dcron.management.dcron.exits import usage_error
from django_dcron.management.dcron.job_selection import add_selection, select
from django_dcron.management.dcron.lookup import JOB_HELP, RUN_HELP, find_job_or_run
from django_dcron.management.dcron.output import Output, add_json
from django_dcron.models import Job, Run
from django_dcron.policies.lifecycle import FINAL, State
from django_dcron.utils.batches import in_batches
from django_dcron.utils.counts import number_of

HELP = (
    "Run finished runs again, for the same occurrence. Doesn't wait for them. Runs named by id "
    "start at once. With jobs, --state and --since: their runs in this state and range queue like "
    "a backfill. The runs of each job run oldest first, a few at a time, after runs that are due "
    "now. Such a selection asks for confirmation. Exit codes: 1 if a run couldn't be run again "
    "(the others are) or no jobs match; 2 if there is no such run or job, or the selection is "
    "invalid, and nothing was done."
)
EXAMPLES = """
rerun 019a9f3c-5b7e-7123-8abc
rerun nightly-report --state missed --since 1h --dry-run
rerun nightly-report --state missed --state failed --since 18:00 --until 19:00
rerun --all --state failed --since 1h
"""
MAX_SELECTED = 10_000
"""The maximum number of runs that one selection runs again."""
JOBS_PER_QUERY = 500
SELECTORS = ("state", "since", "until")
"""The options that select runs of jobs."""
ALREADY_RERUN = "it was already rerun"


def add_arguments(parser: CommandParser) -> None:
    add_selection(
        parser,
        metavar="RUN|JOB",
        help_text=f"{RUN_HELP}; or {JOB_HELP}, with --state and --since",
        by_state=False,
    )
    of_jobs = parser.add_argument_group("select runs of the jobs")
    of_jobs.add_argument(
        "--state",
        action="append",
        default=[],
        choices=[state.value for state in State if state in FINAL],
        help="runs in this state (repeatable)",
    )
    option_values.add_period(of_jobs, "scheduled")
    bulk_actions.add_confirmation(parser)
    add_json(parser)


def run(command: BaseCommand, options: dict[str, Any]) -> None:
    selected = select(options, find_job_or_run, by_state=False)
    output = Output(command, options)
    runs = [row for row in selected.rows if isinstance(row, Run)]
    jobs = [row for row in selected.rows if isinstance(row, Job)]
    if runs and jobs:
        raise usage_error("Name runs or select jobs, not both.")
    if runs:
        _require_no_selectors(options)
        made: list[Run] = []
        bulk_actions.perform_plan(output, _plan_of_named(runs, made), options, asks=False)
        if len(made) == 1 and not output.is_json:
            output.line(f"To see how it ends: manage.py dcron history {made[0].pk}")
        return
    _require_selectors(jobs, options)
    found = _selected_runs(jobs, options)
    if not found and not output.is_json:
        name = str(jobs[0]) if len(jobs) == 1 else number_of(len(jobs), "job")
        output.line(f"Nothing to run again: no runs of {name} match.")
        return
    bulk_actions.perform_plan(output, _plan_of_selected(found), options, asks=True)


def _require_no_selectors(options: dict[str, Any]) -> None:
    for name in SELECTORS:
        if options[name]:
            raise usage_error(
                f"--{name} selects runs of jobs, so it can't be combined with ids of runs."
            )


def _require_selectors(jobs: Sequence[Job], options: dict[str, Any]) -> None:
    missing = [f"--{name}" for name in ("state", "since") if not options[name]]
    if missing:
        job = shlex.quote(str(jobs[0])) if len(jobs) == 1 else "JOB"
        raise usage_error(
            f"To rerun runs of a job, add {' and '.join(missing)}. To list them: "
            f"manage.py dcron history {job}"
        )


def _plan_of_named(runs: Sequence[Run], made: list[Run]) -> Plan[Run]:
    """Return the plan, which adds the new runs to ``made``."""
    actions = [bulk_actions.action_on_run(run) for run in runs]
    return Plan(actions, "rerun", bulk_actions.one_by_one(partial(_rerun, made)), noun="run")


def _plan_of_selected(runs: Sequence[Run]) -> Plan[Run]:
    latest = {
        run.pk
        for batch in in_batches(runs, RERUN_AT_ONCE)
        for run in without_later_rerun(batch, alias_for(Run))
    }
    actions = [bulk_actions.action_on_run(run) for run in runs]
    return Plan(
        [each for each in actions if each.row.pk in latest],
        "rerun",
        _rerun_in_batches(),
        RERUN_AT_ONCE,
        noun="run",
        skipped=[
            SkippedRow(each.identity, each.name, ALREADY_RERUN)
            for each in actions
            if each.row.pk not in latest
        ],
    )


def _selected_runs(jobs: Sequence[Job], options: dict[str, Any]) -> list[Run]:
    """Return the selected runs, job by job, and the oldest first for each job."""
    found: list[Run] = []
    for batch in _runs_of(jobs, options):
        found += batch
        if len(found) > MAX_SELECTED:
            raise usage_error(
                f"Too many runs: one command reruns at most {MAX_SELECTED:,} runs. Use a shorter "
                "range from --since to --until, or fewer jobs."
            )
    return found


def _runs_of(jobs: Sequence[Job], options: dict[str, Any]) -> Iterator[list[Run]]:
    """Yield the selected runs of each batch of jobs, at most one more than may be selected."""
    since, until = option_values.parse_period(options, database_now(alias_for(Job)))
    rows = Run.objects.using(alias_for(Run)).filter(
        state__in=options["state"], scheduled_at__gte=since
    )
    if until is not None:
        rows = rows.filter(scheduled_at__lt=until)
    for batch in in_batches(jobs, JOBS_PER_QUERY):
        by_id = {job.pk: job for job in batch}
        runs = list(rows.filter(job__in=by_id).order_by("scheduled_at")[: MAX_SELECTED + 1])
        for run in runs:
            run.job = by_id[run.job_id]
        order = {job_id: position for position, job_id in enumerate(by_id)}
        yield sorted(runs, key=lambda run: (order[run.job_id], run.scheduled_at))


def _rerun(made: list[Run], run: Run) -> ActionOutcome:
    cautions = start_cautions(run.job)
    with bulk_actions.refusing_contention(alias_for(Run)):
        made.append(control.rerun(run))
    return _outcome(made[-1], cautions)


def _rerun_in_batches() -> Callable[[Sequence[Run]], list[ActionOutcome | Exception]]:
    """Return the ``apply`` of the plan. The first new run of each job says why it waits."""
    target = cache(target_cautions)  # the search for similar names of targets takes long
    delays = DelayCautions()
    already_rerun = NotPossible(ALREADY_RERUN, code="run_again")
    jobs_told: set[int] = set()

    def outcome(
        run: Run, made: Run | NotPossible, delayed: Sequence[str]
    ) -> ActionOutcome | Exception:
        if not isinstance(made, Run):
            return made
        shown = [] if run.job_id in jobs_told else delayed
        jobs_told.add(run.job_id)
        return _outcome(made, (*target(run.job.target), *shown))

    def apply(runs: Sequence[Run]) -> list[ActionOutcome | Exception]:
        # Read before the change: an error after it would hide which runs are created.
        delayed = {run.job_id: delays.of(run.job) for run in runs}
        with bulk_actions.refusing_contention(alias_for(Run)):
            made = rerun_selected(runs)
        return [outcome(run, made.get(run.pk, already_rerun), delayed[run.job_id]) for run in runs]

    return apply


def _outcome(made: Run, cautions: tuple[str, ...]) -> ActionOutcome:
    return ActionOutcome(f"rerun as {made.pk}", {"made": str(made.pk)}, cautions)
