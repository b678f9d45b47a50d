"""Find schedulers that still run jobs that were imported from them, and changes of their entries.

Invariants:

- Only three facts count: a run that the scheduler itself recorded, a message that a worker received
  from it, or a lock that it holds. Schedulers without any of these aren't found.
- A run counts if it is clearly later than the job's last change here. Until then, the job may have
  been paused or a shadow.
- A message names only its task. It counts if each entry of this task is an enabled job here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db import DatabaseError

from django_dcron.contrib.importers import celery_config
from django_dcron.contrib.importers.comparison import compare_entries, jobs_without_entry
from django_dcron.contrib.importers.entry_plans import (
    PAUSE,
    ComparisonOptions,
    EntryPlan,
    ImportOutcome,
)
from django_dcron.contrib.importers.origins import match_entries
from django_dcron.contrib.importers.source_contents import SourceProblem
from django_dcron.contrib.importers.sources import SCHEDULERS
from django_dcron.db.now import database_now
from django_dcron.db.routing import alias_for
from django_dcron.models import Job
from django_dcron.models.job import JobQuerySet
from django_dcron.models.job_states import HANDOVER_REASONS
from django_dcron.policies.job_labels import DEFAULT_NAMESPACE
from django_dcron.targets.shadow import PREFIX

MARGIN = timedelta(minutes=1)
"""The tolerance for a switch that overlaps, and for different clocks."""


@dataclass(frozen=True, slots=True)
class OtherRuns:
    """Evidence that a scheduler still runs."""

    source: str
    job: Job | None
    """A job that the scheduler ran, too. None: the scheduler holds its lock."""
    at: datetime | None = None
    reason: str = ""
    """Why the scheduler probably runs. Empty if there is a ``job``."""


def find_other_runs(jobs: JobQuerySet, since: datetime, now: datetime) -> Iterator[OtherRuns]:
    """Yield what the schedulers did after ``since``. A source that can't be read is skipped."""
    rows = list(_working(jobs).values_list("pk", "import_source", "updated_at"))
    changed = {job_id: changed_at for job_id, _source, changed_at in rows}
    for source in sorted({source for _job_id, source, _changed_at in rows}):
        with suppress(SourceProblem, DatabaseError):
            yield from _runs_of(source, changed, since, now)
        if source == celery_config.SOURCE:
            with suppress(SourceProblem, DatabaseError):
                yield from _received_from_beat(changed, since, now)
        with suppress(SourceProblem, DatabaseError):
            why_running = getattr(SCHEDULERS[source], "why_running", None)
            if why_running is not None and (reason := why_running()):
                yield OtherRuns(source, None, reason=reason)


@dataclass(frozen=True, slots=True)
class SourceChanges:
    """How a source differs from the jobs that were imported from it.

    Entries have the names that their jobs have or would get.
    """

    source: str
    added: tuple[str, ...]
    """The enabled entries without a job, whose jobs the next import starts.

    None if jobs await a handover.
    """
    edited: tuple[str, ...]
    """The other entries that have no job or were changed."""
    disabled: tuple[Job, ...]
    """The jobs that run here although their entries were disabled. None if all entries were."""
    gone: tuple[Job, ...]
    """The jobs that are paused until a handover although their entries were deleted."""


def find_changes(jobs: JobQuerySet, now: datetime) -> Iterator[SourceChanges]:
    """Yield the changes in sources whose jobs run here or wait for a handover.

    A source that can't be read is skipped. Entries are compared only if jobs of the source run
    here. New entries that are disabled don't count, nor do disabled entries if none is enabled:
    after a switch, people disable all entries of the old scheduler.
    """
    working = dict(_working(jobs).order_by().values_list("pk", "import_source"))
    waiting = {job.pk: job.import_source for job in awaiting_jobs(jobs)}
    sources_at_work = {*working.values()}
    for source in sorted({*sources_at_work, *waiting.values()}):
        with suppress(SourceProblem, DatabaseError):
            plans = compare_entries(
                SCHEDULERS[source].read(now).entries, options=ComparisonOptions(source=source)
            )
            edited = [plan for plan in plans if source in sources_at_work and _is_edited(plan)]
            yield SourceChanges(
                source,
                tuple(str(plan) for plan in edited if _is_added(plan)),
                tuple(str(plan) for plan in edited if not _is_added(plan)),
                _jobs_of_disabled_entries(plans, working),
                tuple(job for job in jobs_without_entry(source, plans) if job.pk in waiting),
            )


def awaiting_jobs(jobs: JobQuerySet) -> JobQuerySet:
    """Return the jobs of known schedulers that are paused until a handover."""
    return jobs.filter(
        enabled=False, pause_reason__in=HANDOVER_REASONS, import_source__in=[*SCHEDULERS]
    )


def _jobs_of_disabled_entries(
    plans: Sequence[EntryPlan], working: Collection[int]
) -> tuple[Job, ...]:
    matched = [(plan, plan.existing) for plan in plans if plan.existing is not None]
    at_work = [(plan, job) for plan, job in matched if job.pk in working]
    if not any(plan.entry.is_enabled for plan, _job in at_work):
        return ()
    return tuple(
        job for plan, job in at_work if not plan.entry.is_enabled and "enabled" in plan.changes
    )


def _is_added(plan: EntryPlan) -> bool:
    is_new = plan.outcome is ImportOutcome.CREATE
    return is_new and plan.job is not None and plan.job.enabled


def _is_edited(plan: EntryPlan) -> bool:
    if plan.outcome is ImportOutcome.CREATE:
        return plan.entry.is_enabled
    return plan.outcome is ImportOutcome.CHANGE and not plan.changes.keys() <= set(PAUSE)


def _working(jobs: JobQuerySet) -> JobQuerySet:
    """Return the jobs that are enabled and do the work of an entry of a known scheduler."""
    return jobs.filter(enabled=True, import_source__in=[*SCHEDULERS]).exclude(
        target__startswith=PREFIX
    )


def _runs_of(
    source: str, changed: dict[int, datetime], since: datetime, now: datetime
) -> Iterator[OtherRuns]:
    """Yield the latest run of each job that the source ran after the job's change (``changed``)."""
    times = SCHEDULERS[source].runs_since(since).times
    if not any(times.values()):
        return
    for matched in match_entries(SCHEDULERS[source].read(now).entries, DEFAULT_NAMESPACE, source):
        job = matched.job
        if job is None or job.pk not in changed or not times.get(matched.entry.origin):
            continue
        at = max(times[matched.entry.origin])
        if at > changed[job.pk] + MARGIN:
            yield OtherRuns(source, job, at)


def _received_from_beat(
    changed: dict[int, datetime], since: datetime, now: datetime
) -> Iterator[OtherRuns]:
    """Yield a job of each task that a worker received from beat after ``since``."""
    source = celery_config.SOURCE
    ages = celery_config.sent_by_beat()
    if not ages:
        return
    now = database_now(alias_for(Job))  # the workers took their time to reply
    keys = celery_config.entries_by_task()
    matches = match_entries(celery_config.read(now).entries, DEFAULT_NAMESPACE, source)
    jobs = {each.entry.key: each.job for each in matches if each.job and each.job.pk in changed}
    for task, age in ages.items():
        working = [jobs[key] for key in sorted(keys.get(task, ())) if key in jobs]
        if not working or len(working) < len(keys[task]):
            continue
        at, last_change = now - age, max(changed[job.pk] for job in working)
        if at > max(last_change + MARGIN, since):
            yield OtherRuns(source, working[0], at)
