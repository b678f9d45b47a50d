"""``manage.py dcron resume``: resume jobs that a user or a policy paused."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterable, Sequence
from datetime import datetime
from functools import cache, partial
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from django_dcron import control
from django_dcron.db.now import database_now
from django_dcron.db.routing import alias_for
from django_dcron.diagnosis.job_arguments import unknown_target_problem
from django_dcron.diagnosis.job_state import next_run_of
from django_dcron.diagnosis.pause_occurrences import PauseOccurrences, counted_pauses, without_run
from django_dcron.diagnosis.start_caution import handover_cautions, twin_cautions
from django_dcron.diagnosis.why.explanation_data import schedule_zone_of
from django_dcron.jobs.bulk_skips import why_not_resumed
from django_dcron.jobs.sync import is_no_longer_declared
from django_dcron.management.dcron import bulk_actions
from django_dcron.management.dcron.bulk_actions import ActionOutcome, Plan
from django_dcron.management.dcron.exits import usage_error
from django_dcron.management.dcron.job_selection import add_selection, select
from django_dcron.management.dcron.lookup import find_job
from django_dcron.management.dcron.output import Output, add_json, time_text
from django_dcron.models import Cursor, Job

HELP = (
    "Resume jobs. Occurrences during the pause aren't run. For jobs that are named one by one, the "
    "output has their number and the dcron backfill command that runs them. A "
    "selection by pattern or option skips jobs that aren't paused, that code no longer declares or "
    "that wait for a handover, and asks for confirmation. Without --reason, it includes jobs that "
    "were paused for other reasons. Exit codes: 1 if a job couldn't be resumed (the others are) or "
    "none match; 2 if there is no such job and nothing was done."
)
EXAMPLES = """
resume nightly-report
resume import-orders sync-stock
resume --namespace shop --dry-run
resume --reason deploy --yes
"""


def add_arguments(parser: CommandParser) -> None:
    add_selection(parser)
    parser.add_argument(
        "--reason",
        dest="pause_reason",
        metavar="TEXT",
        help="only jobs that were paused with this reason; the user name that the pause added can "
        "be omitted",
    )
    bulk_actions.add_confirmation(parser)
    add_json(parser)


def run(command: BaseCommand, options: dict[str, Any]) -> None:
    if options["pause_reason"] is not None and not options["pause_reason"].strip():
        raise usage_error("--reason is empty. Enter the reason of the pause, or omit the option.")
    selected = select(options, find_job)
    skipped = bulk_actions.skipped_jobs(selected, why_not_resumed)
    plan = Plan(
        [bulk_actions.action_on_job(job) for job in selected.rows if job.pk not in skipped],
        "resume",
        partial(_resume, named=selected.named),
        bulk_actions.JOBS_AT_ONCE,
        skipped=[*skipped.values()],
    )
    bulk_actions.perform_plan(Output(command, options), plan, options, asks=selected.by_criteria)


def _resume(jobs: Sequence[Job], named: Collection[Job]) -> list[ActionOutcome | Exception]:
    pauses = counted_pauses([job for job in jobs if job in named])
    before = [(job.enabled, job.version) for job in jobs]
    of_handover = {job.pk: handover_cautions(job) for job in jobs}
    refused = control.resume_many(jobs)
    next_runs = _next_runs(jobs)
    problem_of = cache(unknown_target_problem)
    twins = twin_cautions(jobs)
    return [
        refused.get(position)
        or _done(
            job,
            (job.enabled, job.version) == earlier,
            next_runs.get(job.pk),
            problem_of(job.target),
            (
                twins.get(job.pk, ""),
                *of_handover[job.pk],
                _pause_caution(job, without_run(job, pauses.get(job.pk))),
            ),
        )
        for position, (job, earlier) in enumerate(zip(jobs, before, strict=True))
    ]


def _next_runs(jobs: Sequence[Job]) -> dict[int, datetime | None]:
    using = alias_for(Job)
    cursors = Cursor.objects.using(using).in_bulk([job.pk for job in jobs])
    now = database_now(using)
    for job in jobs:
        if job.pk in cursors:
            job.cursor = cursors[job.pk]
    return {job.pk: next_run_of(job, now) for job in jobs if job.pk in cursors}


def _done(
    job: Job, is_unchanged: bool, next_run: datetime | None, problem: str, repeats: Iterable[str]
) -> ActionOutcome:
    if not job.enabled:
        text = f"backfilled runs continue; {job.pause_reason}"
    else:
        text = "not paused" if is_unchanged else "resumed"
    cautions = (problem,) if problem else ()
    if job.enabled and is_no_longer_declared(job):
        cautions = ("Code no longer declares the job, so the next sync pauses it.", *cautions)
    cautions = (*filter(None, repeats), *cautions)
    return ActionOutcome(
        f"{text}; next run {time_text(next_run)}" if next_run else text,
        {"enabled": job.enabled, "next": next_run},
        cautions,
    )


def _pause_caution(job: Job, during_pause: PauseOccurrences | None) -> str:
    if during_pause is None:
        return ""
    start = during_pause.since.astimezone(schedule_zone_of(job)).isoformat(timespec="seconds")
    command = f"manage.py dcron backfill {shlex.quote(str(job))} {start} now"
    # No full stop after a command, so that it can be copied.
    return f"{during_pause} To run them: {command}"
