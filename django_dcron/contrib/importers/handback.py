"""Hand imported jobs back to the scheduler that they came from.

Invariants:

- A job is paused only if the source has stored the job's last run. Otherwise it stays enabled and
  continues here.
- If one job fails, the others are still handed back.
- The pause creates runs for occurrences that were due and that no node has claimed, because no node
  is running. The source runs these occurrences, so the runs end as missed in the same transaction.
- An enabled job whose entry is disabled in the source can't be handed back, because then neither
  scheduler would run it. It stays enabled.
- Repeating the handback is safe. The source's last run isn't moved back.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from typing import Protocol, cast

from django.db import transaction
from django.db.models import F, Max

from django_dcron import control
from django_dcron.contrib.importers.entry_plans import (
    DEFAULT_OPTIONS,
    Changes,
    differing_values,
    with_values,
)
from django_dcron.contrib.importers.origins import imported_jobs_of, match_entries
from django_dcron.contrib.importers.source_contents import SourceContents, SourceEntry
from django_dcron.contrib.importers.sources import SCHEDULERS, can_hand_back
from django_dcron.db.contention import despite_contention
from django_dcron.db.errors import in_one_line
from django_dcron.db.now import database_now
from django_dcron.db.routing import alias_for
from django_dcron.jobs.locking import lock_cursors
from django_dcron.jobs.pausing import SWITCHED_AT_ONCE
from django_dcron.models import Cursor, Job, Run
from django_dcron.models.job_states import HANDED_BACK
from django_dcron.policies.job_labels import DEFAULT_NAMESPACE, JobKey
from django_dcron.policies.lifecycle import State, Trigger, states_before
from django_dcron.runs import endings
from django_dcron.schedules.schedule import Schedule, parse_schedule
from django_dcron.schedules.timetable import MICROSECOND
from django_dcron.targets.shadow import is_shadow
from django_dcron.utils.batches import in_batches

LEFT_TO_SOURCE = "handed back before a node claimed it; {} runs it"
"""The reason of a run that the source executes instead."""

SHOWN_IF_EDITED = ("target", "schedule", "timezone", "args", "kwargs", "queue")
"""The fields whose edits here are reported, because the source runs its entry without them."""

DISABLED_THERE = (
    "is disabled in {}, so neither scheduler would run it; enable its entry there or pause the job "
    "here"
)
"""Why a job can't be handed back. The next handover wouldn't enable it, either."""


class HandbackSource(Protocol):
    def read(self, now: datetime) -> SourceContents: ...

    def hand_back(self, ran_until: Mapping[str, datetime | None]) -> set[str]: ...


HANDBACK_SOURCES = {
    name: cast("HandbackSource", source)
    for name, source in SCHEDULERS.items()
    if can_hand_back(name)
}


@dataclass(frozen=True, slots=True)
class Handback:
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


@dataclass(frozen=True, slots=True)
class HandbackPlan:
    handbacks: list[Handback]
    """The jobs to hand back, including those that were already handed back."""
    paused_here: list[Job]
    """The jobs that are paused here but enabled in the source."""
    deleted_here: dict[int, JobKey]
    """The entries that are enabled in the source, and whose jobs were deleted here.

    Maps the key of the job's ``DeletedImport`` to the entry.
    """


def plan_handback(source: str) -> HandbackPlan:
    """Plan the handback of all jobs of the source. Raises ``SourceProblem``."""
    entries = HANDBACK_SOURCES[source].read(database_now(alias_for(Job))).entries
    matches = match_entries(entries, DEFAULT_NAMESPACE, source)
    entries_by_job = {matched.job.pk: matched.entry for matched in matches if matched.job}
    runs_there = [
        matched for matched in matches if matched.entry.is_enabled and not matched.entry.omitted
    ]
    paused_here = [
        matched.job
        for matched in runs_there
        if matched.job
        and not (matched.job.enabled or matched.job.awaits_handover)
        and not is_shadow(matched.job.target)
    ]
    deleted_here = {
        matched.deletion: JobKey(matched.entry.namespace or DEFAULT_NAMESPACE, matched.entry.name)
        for matched in runs_there
        if matched.deletion is not None
    }
    handbacks = [
        _handback_of(job, entries_by_job.get(job.pk))
        for job in imported_jobs_of(source)
        if (job.enabled or job.pause_reason == HANDED_BACK) and not is_shadow(job.target)
    ]
    return HandbackPlan(handbacks, paused_here, deleted_here)


def _handback_of(job: Job, entry: SourceEntry | None) -> Handback:
    if entry is None:
        return Handback(job, None)
    orphaned = job.enabled and not entry.is_enabled
    error = DISABLED_THERE.format(job.import_source) if orphaned else ""
    if "schedule" not in entry.values:
        return Handback(job, entry.key, error=error)
    schedule = parse_schedule(entry.values["schedule"], entry.values["timezone"])
    names = [name for name in SHOWN_IF_EDITED if name in entry.values]
    values = {name: entry.values[name] for name in names}
    edited = differing_values(job, with_values(job, values, DEFAULT_OPTIONS), names)
    return Handback(job, entry.key, schedule, edited, error)


def deleted_since(plan: HandbackPlan, source: str) -> set[int]:
    """Return the keys of the planned and the paused jobs that were deleted after ``plan``."""
    planned = [*(each.job for each in plan.handbacks), *plan.paused_here]
    return {job.pk for job in planned} - {job.pk for job in imported_jobs_of(source)}


def hand_back_all(
    handbacks: Sequence[Handback],
    source: HandbackSource,
    on_progress: Callable[[list[Handback]], None],
) -> None:
    """Hand the jobs back batch by batch. ``on_progress`` gets the finished jobs of each batch."""
    using = alias_for(Job)
    for batch in in_batches(handbacks, SWITCHED_AT_ONCE):
        on_progress(_hand_back_or_halve(batch, source, using))


def _hand_back_or_halve(
    batch: Sequence[Handback], source: HandbackSource, using: str
) -> list[Handback]:
    """Hand a batch back. If a job makes it fail, try smaller batches, down to this job."""
    possible = [each for each in batch if each.key is not None and not each.error]
    if not possible:
        return [*batch]
    try:
        despite_contention(partial(_hand_back_batch, possible, source, using), using)
    except _EntriesMissing as error:
        left = [replace(each, key=None) if each.key in error.keys else each for each in batch]
        return _hand_back_or_halve(left, source, using)
    except Exception as error:  # raised by the schedule, the job's database or the source
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


def _hand_back_batch(batch: Sequence[Handback], source: HandbackSource, using: str) -> None:
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
        _leave_to_source(
            {pk: at for pk, at in next_at.items() if at and at <= cursors[pk].placed_at}, using
        )
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


def _leave_to_source(unclaimed_since: Mapping[int, datetime], using: str) -> None:
    """End the runs that the pause has created, without starting them.

    ``unclaimed_since``: the first unclaimed occurrence of each job that has one.
    """
    if not unclaimed_since:
        return
    runs = Run.objects.using(using).filter(
        job__in=[*unclaimed_since],
        trigger=Trigger.SCHEDULE,
        state__in=states_before(State.MISSED),
    )
    for run in runs.select_related("job"):
        if run.scheduled_at >= unclaimed_since[run.job_id]:
            endings.end_unstarted(run, State.MISSED, LEFT_TO_SOURCE.format(run.job.import_source))


def _ran_until(
    each: Handback, cursor: Cursor, next_at: datetime | None, ahead: datetime | None
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
    if next_at is not None and next_at <= paused_at:  # no node has claimed it
        return next_at - interval
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
