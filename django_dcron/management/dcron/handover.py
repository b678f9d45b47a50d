"""``manage.py dcron handover``: switch between another scheduler and the jobs imported from it.

Exit codes: those of ``import``. With ``--back``: 0, 1 if a job can't be handed back, or 2 if the
source can't be read or can't continue.

Invariants of ``--back``:

- A job is paused only if the source has stored the job's last run. Otherwise it stays enabled and
  continues here.
- If one job fails, the others are still handed back.
- The command can be repeated. It doesn't move the source's last run back.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from typing import Any, Protocol, cast

from django.core.management.base import BaseCommand, CommandParser
from django.db import transaction
from django.db.models import F, Max

from django_dcron import control
from django_dcron.conf import settings
from django_dcron.contrib.importers import celery_config
from django_dcron.contrib.importers.entry_plans import (
    DEFAULT_OPTIONS,
    HANDED_BACK,
    Changes,
    awaits_handover,
    differing_values,
    with_values,
)
from django_dcron.contrib.importers.origins import imported_jobs_of, match_entries
from django_dcron.contrib.importers.reading import Reading, SourceEntry, SourceProblem
from django_dcron.contrib.importers.sources import (
    OPTIONS_OF_SOURCES,
    SCHEDULERS,
    can_hand_back,
    process_name,
)
from django_dcron.db.contention import despite_contention
from django_dcron.db.errors import in_one_line
from django_dcron.db.now import database_now
from django_dcron.db.routing import alias_for
from django_dcron.jobs.locking import lock_cursors
from django_dcron.jobs.pausing import SWITCHED_AT_ONCE
from django_dcron.jobs.representation import JOB_FIELDS
from django_dcron.management.dcron import import_
from django_dcron.management.dcron.exits import negative_result, usage_error
from django_dcron.management.dcron.import_output import does_work
from django_dcron.management.dcron.output import BAD, GOOD, WARNING, Output, add_json
from django_dcron.management.dcron.progress_bar import ProgressLines
from django_dcron.models import Cursor, Job, Node, Run
from django_dcron.policies.lifecycle import Trigger
from django_dcron.schedules.schedule import Schedule, parse_schedule
from django_dcron.schedules.timetable import MICROSECOND
from django_dcron.targets.shadow import PREFIX
from django_dcron.utils.counts import number_of

HELP = (
    "Take over the work of another scheduler that was just stopped, or hand it back, without "
    "missed or repeated runs. Without --back, the command imports the jobs again, and continues "
    "each job after its last run in the source. --back pauses the jobs and has the source continue "
    "after their last occurrence. "
    "Shows what would be done; --apply does it."
)
EXAMPLES = """
handover django-celery-beat
handover django-celery-beat --apply
handover django-celery-beat --back --apply
"""

SHOWN_IF_EDITED = ("schedule", "timezone", "args", "kwargs")
"""The fields that ``--back`` shows if they differ from the entry, which the source runs."""


class DetectsRunning(Protocol):
    def why_running(self) -> str: ...


class Resumable(Protocol):
    def read(self, now: datetime) -> Reading: ...

    def hand_back(self, ran_until: Mapping[str, datetime | None]) -> set[str]: ...


RESUMABLE = {
    name: cast("Resumable", source) for name, source in SCHEDULERS.items() if can_hand_back(name)
}


DETECT_RUNNING = {
    name: cast("DetectsRunning", source)
    for name, source in SCHEDULERS.items()
    if hasattr(source, "why_running")
}
"""The sources that can detect that their scheduler still runs."""


def add_arguments(parser: CommandParser) -> None:
    parser.add_argument(
        "source",
        metavar="SOURCE",
        choices=list(SCHEDULERS),
        help=f"the other scheduler: {', '.join(SCHEDULERS)}",
    )
    parser.add_argument(
        "--back",
        action="store_true",
        help=f"hand the work back to the source ({', '.join(RESUMABLE)})",
    )
    parser.add_argument("--apply", action="store_true", help="write the changes")
    import_.add_source_options(parser)
    add_json(parser)


def run(command: BaseCommand, options: dict[str, Any]) -> None:
    if options["back"]:
        _hand_back(Output(command, options), options)
        return
    out = Output(command, options)
    _show_preconditions(out, options)
    defaults: dict[str, Any] = {
        "format": None,
        "namespace": None,
        "disabled": False,
        "atomic": False,
        "shadow": False,
        "report": False,
        "overwrite": [],
        "restore": [],
    }
    options = {**defaults, **options, "take_over": True}
    result = import_.import_entries(out, options, import_.read_source(options))
    if options["apply"]:
        _conclude(out, options["source"], result)
    else:
        import_.raise_for_problems(out, options, result)


def _conclude(out: Output, source: str, result: import_.ImportResult) -> None:
    """Show the result of the handover. Raises ``CommandError`` if entries can't be imported."""
    if not out.is_json:
        _show_next_step(out, source)
    running = sum(does_work(plan.job or plan.existing) for plan in result.plans)
    complete = f"The handover is complete: {number_of(running, 'job runs', 'jobs run')} here."
    if result.problems:
        above = "" if out.is_json else "; see above"
        refused = number_of(result.problems, "entry", "entries")
        raise negative_result(f"{complete} {refused} can't be imported{above}.")
    if not out.is_json:
        out.line(complete, GOOD)


def _show_next_step(out: Output, source: str) -> None:
    if not _leaves_traces(source):
        return
    scheduler = process_name(source)
    out.line(f"In five minutes, check with manage.py dcron doctor that {scheduler} runs no jobs.")


def _show_preconditions(out: Output, options: dict[str, Any]) -> None:
    if out.is_json:
        return
    scheduler = process_name(options["source"])
    out.line(f"{scheduler} must be stopped. Otherwise, both schedulers run the jobs.", WARNING)
    if reason := _why_running(options["source"]):
        out.line(f"! {scheduler} may still be running: {reason}", BAD)
    if not Node.objects.live(settings.LEASE).exists():
        out.line("! No node is running. Start one before the handover: manage.py runcron", WARNING)


def _leaves_traces(source: str) -> bool:
    """Return whether ``dcron doctor`` sees that the scheduler still runs."""
    if source == celery_config.SOURCE:
        return True
    with suppress(SourceProblem):
        SCHEDULERS[source].runs_since(database_now(alias_for(Job)))
        return True
    return False


def _why_running(source: str) -> str:
    if source not in DETECT_RUNNING:
        return ""
    try:
        return DETECT_RUNNING[source].why_running()
    except SourceProblem as error:
        raise usage_error(str(error)) from error


@dataclass(frozen=True, slots=True)
class _Handback:
    """One job to hand back."""

    job: Job
    key: str | None
    """The key of its entry in the source. None if the entry is gone."""
    source_schedule: Schedule | None = None
    """The schedule of the entry, which may differ from that of the job."""
    edited: Changes = field(default_factory=dict)
    """Maps fields that were edited here to the job's value and the source's."""
    error: str = ""
    """Why the job can't be handed back. It stays enabled."""


def _hand_back(out: Output, options: dict[str, Any]) -> None:
    source = options["source"]
    _check_can_hand_back(options)
    if not out.is_json and (reason := _why_running(source)):
        out.line(f"! {source} may still be running: {reason}", BAD)
    try:
        planned, paused_here = _plan(source)
    except SourceProblem as error:
        raise usage_error(str(error)) from error
    if paused_here and not out.is_json:
        _warn_of_paused_jobs(out, source, paused_here)
    if not out.is_json:
        _warn_of_edited_jobs(out, source, planned)
    done: list[_Handback] = []
    progress = ProgressLines(out, "handover", len(planned))

    def show(batch: Sequence[_Handback]) -> None:
        done.extend(batch)
        if not out.is_json:
            for each in batch:
                _show(out, each, applied=options["apply"])
            out.flush()
        progress.show(len(done))

    if options["apply"]:
        _hand_back_all(planned, RESUMABLE[source], show)
    else:
        show(planned)
    _show_result(out, source, done, paused_here, applied=options["apply"])


def _check_can_hand_back(options: dict[str, Any]) -> None:
    source = options["source"]
    for name in OPTIONS_OF_SOURCES:
        if options[name]:
            raise usage_error(f"--{name} can't be combined with --back.")
    if source not in RESUMABLE:
        raise usage_error(
            f"--back isn't available for {source}, because it stores no last run that the "
            f"command could set (available for: {', '.join(RESUMABLE)}). Instead, pause the "
            f"imported jobs here, {_how_to_start(source)}"
        )


def _how_to_start(source: str) -> str:
    """Return how to start a scheduler whose last runs can't be set."""
    if source == celery_config.SOURCE:
        return (
            "delete beat's schedule files (celerybeat-schedule*), and start beat. With these "
            "files, beat sends everything that was due while it was stopped at once, although it "
            "ran here."
        )
    return (
        f"and start {process_name(source)}. It may then run again what was due while it was "
        "stopped, although it ran here."
    )


def _warn_of_paused_jobs(out: Output, source: str, paused_here: Sequence[Job]) -> None:
    for job in paused_here:
        out.line(f"! {job} is paused here, but enabled in {source}", WARNING)
    them = "it" if len(paused_here) == 1 else "them"
    out.line(
        f"! {source} runs {them} once it starts. To prevent this, disable {them} there first.",
        WARNING,
    )


def _warn_of_edited_jobs(out: Output, source: str, planned: Sequence[_Handback]) -> None:
    for each in planned:
        if each.edited:
            texts = [
                f"{name}: {JOB_FIELDS[name].text(here)} here, {JOB_FIELDS[name].text(there)} there"
                for name, (here, there) in each.edited.items()
            ]
            out.line(f"! {each.job} differs from {source}: {'; '.join(texts)}", WARNING)


def _show_result(
    out: Output,
    source: str,
    done: Sequence[_Handback],
    paused_here: Sequence[Job],
    *,
    applied: bool,
) -> None:
    """Show the result. Raises ``CommandError`` if a job can't be handed back."""
    failed = [each for each in done if each.error]
    returned = [each for each in done if each.key is not None and not each.error]
    if out.is_json:
        gone = [each for each in done if each.key is None]
        out.json(
            {
                "version": 1,
                "source": source,
                "applied": applied,
                "jobs": [_reference(each.job) for each in returned],
                "gone": [_reference(each.job) for each in gone],
                "paused_here": [_reference(job) for job in paused_here],
                "failed": [{**_reference(each.job), "error": each.error} for each in failed],
            }
        )
    elif not applied:
        out.line(
            f"Nothing was written. To write, use --apply. {shlex.quote(source)} must be stopped."
        )
    else:
        start = "" if failed else f" Start {source} now."
        out.line(f"{number_of(len(returned), 'job')} handed back.{start}")
    if failed:
        continues, them = ("continues", "it") if len(failed) == 1 else ("continue", "them")
        raise negative_result(
            f"{number_of(len(failed), 'job')} can't be handed back and {continues} here. Correct "
            f"or pause {them}, and repeat the command before you start {source}."
        )


def _reference(job: Job) -> dict[str, str]:
    return {"namespace": job.namespace, "name": job.name}


def _show(out: Output, each: _Handback, *, applied: bool) -> None:
    if each.error:
        out.line(f"failed {each.job} {each.error}", BAD)
    elif each.key is None:
        out.line(f"! {each.job} is gone from the source, and stays as it is here", WARNING)
    else:
        out.line(f"{'paused' if applied else 'pause'} {each.job}", GOOD)


def _plan(source: str) -> tuple[list[_Handback], list[Job]]:
    """Return the jobs to hand back, and the jobs that are paused here but enabled in the source.

    The former include jobs that were already handed back. Raises ``SourceProblem``.
    """
    entries = RESUMABLE[source].read(database_now(alias_for(Job))).entries
    matches = [each for each in match_entries(entries, "default", source) if each.job]
    entries_by_job = {matched.job.pk: matched.entry for matched in matches if matched.job}
    paused_here = [
        matched.job
        for matched in matches
        if matched.job
        and not (matched.job.enabled or awaits_handover(matched.job))
        and not matched.entry.omitted
        and matched.entry.values.get("enabled", True)
    ]
    planned = [
        _handback_of(job, entries_by_job.get(job.pk))
        for job in imported_jobs_of(source)
        if (job.enabled or job.pause_reason == HANDED_BACK) and not job.target.startswith(PREFIX)
    ]
    return planned, paused_here


def _handback_of(job: Job, entry: SourceEntry | None) -> _Handback:
    if entry is None or "schedule" not in entry.values:
        return _Handback(job, None if entry is None else entry.key)
    schedule = parse_schedule(entry.values["schedule"], entry.values["timezone"])
    names = [name for name in SHOWN_IF_EDITED if name in entry.values]
    values = {name: entry.values[name] for name in names}
    edited = differing_values(job, with_values(job, values, DEFAULT_OPTIONS), names)
    return _Handback(job, entry.key, schedule, edited)


def _hand_back_all(
    planned: Sequence[_Handback], source: Resumable, on_progress: Callable[[list[_Handback]], None]
) -> None:
    """Hand the jobs back batch by batch. ``on_progress`` gets the finished jobs of each batch."""
    using = alias_for(Job)
    for start in range(0, len(planned), SWITCHED_AT_ONCE):
        on_progress(_hand_back_or_halve(planned[start : start + SWITCHED_AT_ONCE], source, using))


def _hand_back_or_halve(
    batch: Sequence[_Handback], source: Resumable, using: str
) -> list[_Handback]:
    """Hand a batch back. If a job makes it fail, try smaller batches, down to this job."""
    there = [each for each in batch if each.key is not None]
    if not there:
        return [*batch]
    try:
        despite_contention(partial(_hand_back_batch, there, source, using), using)
    except _EntriesMissing as error:
        left = [replace(each, key=None) if each.key in error.keys else each for each in batch]
        return _hand_back_or_halve(left, source, using)
    except Exception as error:  # the schedule, the job's database or the source
        if len(batch) == 1:
            return [replace(batch[0], error=in_one_line(error))]
        middle = len(batch) // 2
        return [
            *_hand_back_or_halve(batch[:middle], source, using),
            *_hand_back_or_halve(batch[middle:], source, using),
        ]
    return [*batch]


class _EntriesMissing(Exception):
    def __init__(self, keys: Collection[str]) -> None:
        super().__init__(keys)
        self.keys = keys


def _hand_back_batch(batch: Sequence[_Handback], source: Resumable, using: str) -> None:
    """Pause the jobs, and have the source continue after their last occurrences here.

    The pauses are committed after the source has stored the times. Until then, the jobs' locks keep
    nodes from claiming their occurrences. Raises an exception, and pauses nothing, if a job can't
    be handed back: ``_EntriesMissing`` if the source no longer has some of the entries.
    """
    jobs = [each.job for each in batch]
    with transaction.atomic(using=using):
        before = lock_cursors([job.pk for job in jobs], using)
        next_at = {pk: cursor.next_at for pk, cursor in before.items() if cursor.enabled}
        if refused := control.pause_many(jobs, HANDED_BACK):
            raise next(iter(refused.values()))
        cursors = Cursor.objects.using(using).in_bulk([job.pk for job in jobs])
        ahead = _claimed_ahead(jobs, using)
        ran_until = {
            each.key: _ran_until(
                each, cursors[each.job.pk], next_at.get(each.job.pk), ahead.get(each.job.pk)
            )
            for each in batch
            if each.key is not None
        }
        if gone := {*ran_until} - source.hand_back(ran_until):
            raise _EntriesMissing(gone)


def _ran_until(
    each: _Handback, cursor: Cursor, next_at: datetime | None, ahead: datetime | None
) -> datetime | None:
    """Return the time of the last run from which the source computes the next occurrence.

    For a cron schedule, it is the source's latest occurrence until the pause. It ran here, or a
    person skipped it. An interval counts from its last occurrence, so that it keeps its phase.
    Returns None if nothing was due.

    ``cursor`` is that of the paused job. ``next_at``: the next occurrence before the pause.
    ``ahead``: the last occurrence after the pause that still runs here.
    """
    interval, paused_at = each.job.parsed_schedule.interval, cursor.placed_at
    if ahead is not None:
        return ahead
    if each.source_schedule is not None and each.source_schedule.interval is None:
        not_run = paused_at + MICROSECOND  # or an earlier occurrence that no node has claimed
        return each.source_schedule.previous_before(min(next_at or not_run, not_run))
    if interval is None:
        return paused_at
    if cursor.previous_at is None:
        first = next_at or cursor.starts_at
        return paused_at if first is None else min(first - interval, paused_at)
    if cursor.previous_at > paused_at:  # it was claimed ahead, and the pause has withdrawn it
        return cursor.previous_at + (paused_at - cursor.previous_at) // interval * interval
    return cursor.previous_at


def _claimed_ahead(jobs: Sequence[Job], using: str) -> dict[int, datetime]:
    """Return the last occurrences after the pause that were dispatched and so still run here."""
    runs = Run.objects.using(using).filter(
        job__in=[job.pk for job in jobs],
        trigger=Trigger.SCHEDULE,
        scheduled_at__gt=F("job__cursor__placed_at"),
    )
    return dict(runs.order_by().values_list("job").annotate(Max("scheduled_at")))
