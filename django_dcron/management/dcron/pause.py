"""``manage.py dcron pause``: pause jobs, indefinitely or until a time."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any

from django.core.management.base import BaseCommand, CommandParser
from django.db import transaction
from django.db.models import Count, Q

from django_dcron import control
from django_dcron.db.contention import despite_contention
from django_dcron.db.now import database_now
from django_dcron.db.routing import alias_for
from django_dcron.jobs.bulk_skips import is_paused_already, why_not_paused
from django_dcron.jobs.locking import lock_cursors, lock_jobs
from django_dcron.management.dcron import bulk_actions, option_values
from django_dcron.management.dcron.bulk_actions import ActionOutcome, Plan
from django_dcron.management.dcron.job_selection import add_selection, select
from django_dcron.management.dcron.lookup import find_job
from django_dcron.management.dcron.output import Output, add_json, time_text
from django_dcron.models import Job, Run
from django_dcron.policies.lifecycle import UNFINISHED, State
from django_dcron.utils.counts import number_of

HELP = (
    "Pause jobs. Running runs continue, runs that are due still start, future runs are withdrawn, "
    "and no new occurrences are created. A selection by pattern or option asks for confirmation. "
    "It skips jobs that are paused, finished or waiting for a handover. Exit codes: 1 if no jobs "
    "match, or if a job couldn't be paused (the others are paused); 2 if a job doesn't exist or an "
    "option is invalid (nothing is changed)."
)
EXAMPLES = """
pause nightly-report --reason "until the disk is replaced"
pause import-orders sync-stock --until 18:00
pause shop/import-orders --until 2026-12-01T09:00
pause 'shop/*' --reason deploy --for 30m --yes
pause --tag billing --dry-run
"""


def add_arguments(parser: CommandParser) -> None:
    add_selection(parser)
    parser.add_argument(
        "--reason", metavar="TEXT", help="shown with the job; your user name is added"
    )
    option_values.add_end(parser, "the pause", "when you resume the jobs")
    bulk_actions.add_confirmation(parser)
    add_json(parser)


def run(command: BaseCommand, options: dict[str, Any]) -> None:
    now = database_now(alias_for(Job))
    until = option_values.parse_end(options, now)
    selected = select(options, find_job)
    reason = bulk_actions.reason_with_user(options["reason"] or "")
    # The rules of the admin:
    # - An automatic pause is always replaced.
    # - Another pause of a named job is replaced if --reason (even an empty one) or an end is given.
    # - The wait of a named job for the handover is replaced, so that it doesn't enable the job.
    named = {job.pk for job in selected.named}
    replaces = options["reason"] is not None or until is not None
    skipped = bulk_actions.skipped_jobs(selected, why_not_paused)
    plan = Plan(
        [bulk_actions.action_on_job(job) for job in selected.rows if job.pk not in skipped],
        "pause",
        lambda jobs: _pause(jobs, reason, until, named, replaces),
        bulk_actions.JOBS_AT_ONCE,
        skipped=[*skipped.values()],
    )
    bulk_actions.perform_plan(Output(command, options), plan, options, asks=selected.by_criteria)


def _pause(
    jobs: Sequence[Job],
    reason: str,
    until: datetime | None,
    named: Collection[int],
    replaces: bool,
) -> list[ActionOutcome | Exception]:
    """Pause the jobs. ``replaces``: whether the earlier pauses of ``named`` jobs are replaced."""
    using = alias_for(Job)
    with bulk_actions.refusing_contention(using):
        return despite_contention(
            lambda: _pause_locked(jobs, reason, until, named, replaces, using), using
        )


def _pause_locked(
    jobs: Sequence[Job],
    reason: str,
    until: datetime | None,
    named: Collection[int],
    replaces: bool,
    using: str,
) -> list[ActionOutcome | Exception]:
    """Pause the jobs in one transaction. Another user may have changed them since the selection."""
    refused: dict[int, Exception] = {}  # by primary key
    keys = [job.pk for job in jobs]
    with transaction.atomic(using=using):
        lock_cursors(keys, using)
        earlier: dict[int, dict[str, Any]] = {
            pk: {"reason": row.pause_reason, "until": row.paused_until}
            for pk, row in lock_jobs(keys, using).items()
            if not row.enabled
        }
        for is_named in (False, True):
            group = [job for job in jobs if (job.pk in named) is is_named]
            errors = control.pause_many(
                group, reason, until, replace=is_named and replaces, replace_wait=is_named
            )
            refused |= {group[position].pk: error for position, error in errors.items()}
    due = _due_runs(keys, using)

    def outcome_of(job: Job) -> ActionOutcome | Exception:
        before, error = earlier.get(job.pk), refused.get(job.pk)
        if before and (is_paused_already(error) or before == {"reason": reason, "until": until}):
            return _unchanged(**before)
        return error or _done(reason, until, before, _cautions(job, *due.get(job.pk, (0, 0))))

    return [outcome_of(job) for job in jobs]


def _due_runs(job_ids: Collection[int], using: str) -> dict[int, tuple[int, int]]:
    """Return how many due runs of each job start despite the pause, and how many a freeze holds."""
    runs = Run.objects.using(using).filter(job__in=job_ids, state__in=UNFINISHED - {State.RUNNING})
    all_due = runs.due(database_now(using)).order_by()
    start = Q(pk__in=all_due.not_frozen().values("pk"))
    counts = all_due.values_list("job").annotate(
        due=Count("pk", filter=start), held=Count("pk", filter=~start)
    )
    return {pk: (due, held) for pk, due, held in counts}


def _cautions(job: Job, due: int, held: int) -> tuple[str, ...]:
    """Name the runs that still start, and those that may start after the freeze."""
    texts = []
    if due:
        runs = number_of(due, "run that is due still starts", "runs that are due still start")
        texts.append(f"{runs} despite the pause.")
    if held:
        runs = number_of(held, "due run waits", "due runs wait")
        texts.append(
            f"{runs} for the end of the freeze. The misfire policy then decides, despite the pause."
        )
    if not texts:
        return ()
    states = " ".join(f"--state {state}" for state in sorted(UNFINISHED - {State.RUNNING}))
    how = f"manage.py dcron cancel {shlex.quote(str(job))} {states}"
    return (" ".join([*texts, f"To cancel the runs that haven't started: {how}"]),)


def _unchanged(reason: str, until: datetime | None) -> ActionOutcome:
    """Return the outcome for a job that stays paused as it was."""
    return ActionOutcome(
        f"already {_pause_text(reason, until)}",
        {"reason": reason, "until": until, "replaced": None},
    )


def _done(
    reason: str, until: datetime | None, replaced: dict[str, Any] | None, cautions: tuple[str, ...]
) -> ActionOutcome:
    instead = f" (replaces {_pause_text(**replaced)})" if replaced else ""
    return ActionOutcome(
        f"{_pause_text(reason, until)}{instead}",
        {"reason": reason, "until": until, "replaced": replaced},
        cautions,
    )


def _pause_text(reason: str, until: datetime | None) -> str:
    for_how_long = f"until {time_text(until)}" if until else "until resumed"
    return f"paused {for_how_long}: {reason}" if reason else f"paused {for_how_long}"
