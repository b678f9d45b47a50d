"""``manage.py dcron cancel``: cancel runs that haven't started, and ask executing runs to stop."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any
from uuid import UUID

from django.core.management.base import BaseCommand, CommandParser

from django_dcron import control
from django_dcron.db.now import database_now
from django_dcron.db.routing import alias_for
from django_dcron.diagnosis.overdue import overdue_cursors
from django_dcron.jobs.action_texts import cancelled_text
from django_dcron.management.dcron import bulk_actions
from django_dcron.management.dcron.bulk_actions import ActionOutcome, Plan, SkippedRow
from django_dcron.management.dcron.job_selection import add_selection, select
from django_dcron.management.dcron.lookup import JOB_HELP, RUN_HELP, find_job_or_run
from django_dcron.management.dcron.output import WARNING, Output, add_json, time_text
from django_dcron.models import Cursor, Job, Run
from django_dcron.models.run import claimed_ahead
from django_dcron.policies.lifecycle import UNFINISHED, State, Trigger
from django_dcron.utils.batches import in_batches
from django_dcron.utils.counts import number_of
from django_dcron.utils.docs_links import with_link

HELP = (
    "Cancel runs. A run that hasn't started ends; a running run is asked to stop. With a job: "
    "cancel all its unfinished runs. Its schedule continues; use dcron pause to stop that. A "
    "selection of jobs by pattern or option asks for confirmation, and skips runs whose scheduled "
    "time is in the future. Exit codes: 1 if a run couldn't be cancelled (the others are) or no "
    "jobs match; 2 if there is no such run or job and nothing was done."
)
EXAMPLES = """
cancel 019a9f3c-5b7e-7123-8abc
cancel nightly-report --reason "wrong month"
cancel --queue shop --state queued --dry-run
cancel import-orders --state waiting --trigger manual
"""

JOBS_PER_QUERY = 500
AHEAD = "The run's scheduled time is in the future."


def add_arguments(parser: CommandParser) -> None:
    add_selection(
        parser,
        metavar="RUN|JOB",
        help_text=f"{RUN_HELP}; or {JOB_HELP}, to cancel all its unfinished runs",
        by_state=False,
    )
    parser.add_argument(
        "--state",
        action="append",
        default=[],
        choices=[state.value for state in State if state in UNFINISHED],
        help="only runs in this state (repeatable)",
    )
    parser.add_argument(
        "--trigger",
        action="append",
        default=[],
        choices=[trigger.value for trigger in Trigger],
        help="only runs with this trigger (repeatable)",
    )
    parser.add_argument(
        "--reason", default="", metavar="TEXT", help="shown with the run; your user name is added"
    )
    bulk_actions.add_confirmation(parser)
    add_json(parser)


def run(command: BaseCommand, options: dict[str, Any]) -> None:
    selected = select(options, find_job_or_run, by_state=False)
    reason = bulk_actions.reason_with_user(options["reason"])
    output = Output(command, options)
    states = options["state"] or UNFINISHED
    runs = {row.pk: row for row in selected.rows if isinstance(row, Run)}
    named = {*selected.named}
    ahead: set[UUID] = set()
    skipped: set[UUID] = set()
    jobs = [row for row in selected.rows if isinstance(row, Job)]
    for each, is_ahead in _runs_in(jobs, states, options["trigger"]):
        runs[each.pk] = each
        if is_ahead:
            is_named = each in named or each.job in named
            (ahead if is_named else skipped).add(each.pk)
    overdue = 0 if output.is_json else _number_overdue(jobs)
    ends_here = not runs and not output.is_json
    if ends_here:
        output.line(f"Nothing to cancel: there are no {_kind(options)} runs.")
    if overdue:
        output.line(_overdue_text(overdue), WARNING)
    if ends_here:
        return
    actions = [bulk_actions.action_on_run(run) for run in runs.values()]
    plan = Plan(
        [each for each in actions if each.row.pk not in skipped],
        "cancel",
        lambda batch: _cancel(batch, reason, states, ahead),
        control.CANCELLED_AT_ONCE,
        noun="run",
        skipped=[
            SkippedRow(each.identity, each.name, AHEAD)
            for each in actions
            if each.row.pk in skipped
        ],
    )
    bulk_actions.perform_plan(output, plan, options, asks=selected.by_criteria)


def _kind(options: Mapping[str, Any]) -> str:
    state = " or ".join(options["state"]) or "unfinished"
    return f"{state} {' or '.join(options['trigger'])}".rstrip()


def _number_overdue(jobs: Sequence[Job]) -> int:
    """Return how many of the jobs have an occurrence that no node has claimed in time."""
    now, cursors = database_now(alias_for(Run)), Cursor.objects.using(alias_for(Cursor))
    return sum(
        overdue_cursors(cursors.filter(pk__in=[job.pk for job in batch]), now).count()
        for batch in in_batches(jobs, JOBS_PER_QUERY)
    )


def _overdue_text(number: int) -> str:
    text = (
        f"{number_of(number, 'job has', 'jobs have')} overdue occurrences that have no run yet. "
        "When a node claims them, the misfire policy decides whether they run. To see these jobs: "
        "manage.py dcron list --sort next. To drop the occurrences, pause the jobs first."
    )
    return with_link(text, "troubleshooting.md#the-nodes-were-down")


def _runs_in(
    jobs: Sequence[Job], states: Collection[str], triggers: Collection[str]
) -> Iterator[tuple[Run, bool]]:
    """Yield the runs of the jobs in these states, job by job, and whether each is claimed ahead.

    ``triggers``: only runs with one of these triggers. Empty: with any.
    """
    now = database_now(alias_for(Run))
    for batch in in_batches(jobs, JOBS_PER_QUERY):
        runs = Run.objects.using(alias_for(Run)).filter(
            job__in=[job.pk for job in batch], state__in=states
        )
        runs = runs.shown_as(*triggers) if triggers else runs
        rows = runs.select_related("job").annotate(is_ahead=claimed_ahead(now))
        for run in rows.order_by("job__namespace", "job__name", "due_at", "pk"):
            yield run, run.is_ahead  # type: ignore[attr-defined]  # annotated


def _cancel(
    runs: Sequence[Run], reason: str, states: Collection[str], ahead: Collection[UUID]
) -> list[ActionOutcome | Exception]:
    """Cancel the runs. ``ahead``: the runs of named jobs that are claimed ahead."""
    # A worker may have started a run since it was selected.
    refused = control.cancel_many(runs, reason, states=states)
    return [
        refused.get(position) or _done(run, is_ahead=run.pk in ahead)
        for position, run in enumerate(runs)
    ]


def _done(run: Run, *, is_ahead: bool) -> ActionOutcome:
    text = cancelled_text(run).lower()
    if is_ahead:
        text = f"{text}, it was scheduled for {time_text(run.scheduled_at)}"
    return ActionOutcome(text, {"state": run.state})
