"""``manage.py dcron rerun``: repeat finished runs, each as a new run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from django_dcron import control
from django_dcron.db.now import database_now
from django_dcron.db.routing import alias_for
from django_dcron.diagnosis.run_history import READ_LIMIT, read_run_history
from django_dcron.diagnosis.start_caution import start_cautions, target_cautions
from django_dcron.exceptions import NotPossible
from django_dcron.jobs.queued_reruns import (
    RERUN_AT_ONCE,
    rerun_selected,
    without_later_rerun,
)
from django_dcron.management.dcron import bulk_actions, option_values
from django_dcron.management.dcron.bulk_actions import ActionOutcome, Plan, SkippedRow
from django_dcron.management.dcron.exits import usage_error
from django_dcron.management.dcron.lookup import JOB_HELP, RUN_HELP, find_job, find_run
from django_dcron.management.dcron.output import Output, add_json
from django_dcron.models import Job, Run
from django_dcron.policies.lifecycle import FINAL, State

HELP = (
    "Run finished runs again, for the same occurrence. Doesn't wait for them. Runs named by id "
    "start at once. Runs selected with --job, --state and --since queue like a backfill: they run "
    "oldest first, a few at a time, after runs that are due now. The selection asks for "
    "confirmation. Exit codes: 1 if a run couldn't be run again (the others are); "
    "2 if there is no such run or job, or the selection is invalid, and nothing was done."
)
EXAMPLES = """
rerun 019a9f3c-5b7e-7123-8abc
rerun --job nightly-report --state missed --since 1h --dry-run
rerun --job nightly-report --state missed --state failed --since 18:00 --until 19:00
"""
MAX_SELECTED = 1000
"""The maximum number of runs that one selection runs again."""
SELECTORS = ("state", "since", "until")
ALREADY_RERUN = "it was already rerun"


def add_arguments(parser: CommandParser) -> None:
    parser.add_argument("runs", nargs="*", default=[], metavar="RUN", help=RUN_HELP)
    of_job = parser.add_argument_group("select runs of a job")
    of_job.add_argument("--job", metavar="JOB", help=f"{JOB_HELP}; needs --state and --since")
    of_job.add_argument(
        "--state",
        action="append",
        default=[],
        choices=[state.value for state in State if state in FINAL],
        help="runs in this state (repeatable)",
    )
    option_values.add_period(of_job, "scheduled")
    bulk_actions.add_confirmation(parser)
    add_json(parser)


def run(command: BaseCommand, options: dict[str, Any]) -> None:
    output = Output(command, options)
    if options["job"] is None:
        bulk_actions.perform_plan(output, _plan_of_named(options), options, asks=False)
        return
    if options["runs"]:
        raise usage_error("Name runs or use --job, not both.")
    for name in ("state", "since"):
        if not options[name]:
            raise usage_error(f"--job needs --{name}.")
    job = find_job(options["job"])
    runs = _selected_runs(job, options)
    if not runs and not output.is_json:
        output.line(f"Nothing to run again: no runs of {job} match.")
        return
    bulk_actions.perform_plan(output, _plan_of_selected(job, runs), options, asks=True)


def _plan_of_named(options: dict[str, Any]) -> Plan[Run]:
    for name in SELECTORS:
        if options[name]:
            raise usage_error(f"--{name} needs --job.")
    if not options["runs"]:
        raise usage_error("Name at least one run, or use --job, --state and --since.")
    runs = {run.pk: run for run in map(find_run, options["runs"])}.values()
    actions = [bulk_actions.action_on_run(run) for run in runs]
    return Plan(actions, "rerun", bulk_actions.one_by_one(_rerun), noun="run")


def _plan_of_selected(job: Job, runs: Sequence[Run]) -> Plan[Run]:
    latest = {run.pk for run in without_later_rerun(runs, alias_for(Run))}
    actions = [bulk_actions.action_on_run(run) for run in runs]
    return Plan(
        [each for each in actions if each.row.pk in latest],
        "rerun",
        lambda batch: _rerun_selected(job, batch),
        RERUN_AT_ONCE,
        noun="run",
        skipped=[
            SkippedRow(each.identity, each.name, ALREADY_RERUN)
            for each in actions
            if each.row.pk not in latest
        ],
    )


def _selected_runs(job: Job, options: dict[str, Any]) -> list[Run]:
    """Return the selected runs, oldest first."""
    now = database_now(alias_for(Job))
    since, until = option_values.parse_period(options, now)
    found = read_run_history(job, MAX_SELECTED, states=options["state"], since=since, until=until)
    if found.more:
        raise usage_error(
            f"Too many runs: one command reruns at most {MAX_SELECTED:,} runs, and reads at most "
            f"{READ_LIMIT:,} runs of the range. Use a shorter range from --since to --until."
        )
    return found.runs[::-1]


def _rerun(run: Run) -> ActionOutcome:
    cautions = start_cautions(run.job)
    return _outcome(control.rerun(run), cautions)


def _rerun_selected(job: Job, runs: Sequence[Run]) -> list[ActionOutcome | Exception]:
    cautions = target_cautions(job.target)
    reruns = rerun_selected(job, runs)
    return [
        _outcome(reruns[run.pk], cautions)
        if run.pk in reruns
        else NotPossible(ALREADY_RERUN, code="run_again")
        for run in runs
    ]


def _outcome(made: Run, cautions: tuple[str, ...]) -> ActionOutcome:
    return ActionOutcome(f"rerun as {made.pk}", {"made": str(made.pk)}, cautions)
