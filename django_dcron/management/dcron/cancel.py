"""``manage.py dcron cancel``: cancel runs that haven't started, and ask executing runs to stop."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from django_dcron import control
from django_dcron.db.routing import alias_for
from django_dcron.jobs.action_texts import cancelled_text
from django_dcron.management.dcron import bulk_actions
from django_dcron.management.dcron.bulk_actions import ActionOutcome, Plan
from django_dcron.management.dcron.job_selection import add_selection, select
from django_dcron.management.dcron.lookup import JOB_HELP, RUN_HELP, find_job_or_run
from django_dcron.management.dcron.output import Output, add_json
from django_dcron.models import Job, Run
from django_dcron.policies.lifecycle import UNFINISHED
from django_dcron.utils.batches import in_batches

HELP = (
    "Cancel runs. A run that hasn't started ends; a running run is asked to stop. With a job: "
    "cancel all its unfinished runs. Its schedule continues; use dcron pause to stop that. A "
    "selection of jobs by pattern or option asks for confirmation. Exit codes: 1 if a run couldn't "
    "be cancelled (the others are) or no jobs match; 2 if there is no such run or job and nothing "
    "was done."
)
EXAMPLES = """
cancel 019a9f3c-5b7e
cancel nightly-report --reason "wrong month"
cancel --namespace shop --state running --dry-run
"""

JOBS_PER_QUERY = 500


def add_arguments(parser: CommandParser) -> None:
    add_selection(
        parser,
        metavar="RUN|JOB",
        help_text=f"{RUN_HELP}; or {JOB_HELP}, to cancel all its unfinished runs",
    )
    parser.add_argument(
        "--reason", default="", metavar="TEXT", help="shown with the run; your user name is added"
    )
    bulk_actions.add_confirmation(parser)
    add_json(parser)


def run(command: BaseCommand, options: dict[str, Any]) -> None:
    selected = select(options, find_job_or_run)
    reason = bulk_actions.reason_with_user(options["reason"])
    output = Output(command, options)
    runs = [row for row in selected.rows if isinstance(row, Run)]
    runs += _unfinished_runs([row for row in selected.rows if isinstance(row, Job)])
    if not runs and not output.is_json:
        output.line("Nothing to cancel: there are no unfinished runs.")
        return
    unique = {run.pk: run for run in runs}.values()
    plan = Plan(
        [bulk_actions.action_on_run(run) for run in unique],
        "cancel",
        lambda runs: _cancel(runs, reason),
        control.CANCELLED_AT_ONCE,
        noun="run",
    )
    bulk_actions.perform_plan(output, plan, options, asks=selected.by_criteria)


def _unfinished_runs(jobs: Sequence[Job]) -> Iterator[Run]:
    """Yield the unfinished runs of the jobs, job by job."""
    for batch in in_batches(jobs, JOBS_PER_QUERY):
        runs = Run.objects.using(alias_for(Run)).filter(
            job__in=[job.pk for job in batch], state__in=UNFINISHED
        )
        yield from runs.select_related("job").order_by(
            "job__namespace", "job__name", "due_at", "pk"
        )


def _cancel(runs: Sequence[Run], reason: str) -> list[ActionOutcome | Exception]:
    refused = control.cancel_many(runs, reason)
    return [refused.get(position) or _done(run) for position, run in enumerate(runs)]


def _done(run: Run) -> ActionOutcome:
    return ActionOutcome(cancelled_text(run).lower(), {"state": run.state})
