"""Compare the runs of another scheduler, the source, with the runs of its shadow jobs.

Invariants:

- A source run matches a shadow run if it starts at most ``LATE`` after the shadow run was due, or
  ``EARLY`` before that. Schedulers send runs a moment late, and clocks differ.
- The phase of an interval differs between the schedulers, so any source run within one interval
  matches.
- Otherwise, a shadow run matches one source run. A second source run counts as a duplicate.
- A shadow that is paused here although its entry is enabled is compared until the source run that
  matches its last run. Later source runs don't count.
- As many runs as possible match. Each source run matches the latest shadow run that no later source
  run needs.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import NamedTuple

from django_dcron.contrib.importers.entry_plans import (
    DEFAULT_OPTIONS,
    Changes,
    differing_values,
    with_values,
)
from django_dcron.contrib.importers.origins import match_entries
from django_dcron.contrib.importers.source_contents import WRITE_DELAY, SourceEntry, SourceRuns
from django_dcron.db.routing import alias_for
from django_dcron.models import Job, Run
from django_dcron.policies.lifecycle import Trigger
from django_dcron.targets.shadow import is_shadow
from django_dcron.utils.batches import in_batches

LATE = timedelta(seconds=60)
EARLY = timedelta(seconds=1)
"""The tolerance for different clocks of two machines."""
JOBS_AT_ONCE = 500
TIMES = ("schedule", "timezone")
"""The fields that decide when a job runs."""


class DifferenceKind(StrEnum):
    """Why a run has no match, for programs; a value is never renamed."""

    NOT_DUE = "not_due"
    """The shadow job wasn't due when the source ran it."""
    NOT_RUN = "not_run"
    """The source didn't run it."""
    LATE = "late"
    """The source probably ran it, but too late."""
    TWICE = "twice"
    """The source ran it twice."""


@dataclass(frozen=True, slots=True)
class Difference:
    at: datetime
    kind: DifferenceKind
    other: datetime | None = None
    """For a late run, its probable counterpart on the other side. For a duplicate, the shadow run.

    None for other kinds.
    """


@dataclass(frozen=True, slots=True)
class ShadowComparison:
    """One shadow job, compared with the entry it shadows."""

    job: Job
    matched: int
    """The number of source runs that match a shadow run."""
    only_in_source: tuple[Difference, ...] = ()
    """Source runs without a match."""
    only_in_shadow: tuple[Difference, ...] = ()
    """Shadow runs without a match, although enough time has passed."""
    late: timedelta = timedelta()
    """The greatest delay of a matching source run. Zero for intervals, whose phases differ."""
    runs: int = 0
    """The number of shadow runs since the start of the comparison."""
    shared_task: str = ""
    """The task that other entries run, too, so that the job can't be compared. Usually empty."""
    paused: bool = False
    """Whether the job is paused here although its entry is enabled."""
    edited: Changes = field(default_factory=dict)
    """Maps the fields of ``TIMES`` that differ to the job's value and the source's.

    Empty if no run was compared.
    """

    @property
    def is_comparable(self) -> bool:
        return not (self.shared_task or self.is_left_out)

    @property
    def is_left_out(self) -> bool:
        """Whether nothing was compared because the job is paused."""
        return self.paused and not (self.compared or self.shared_task)

    @property
    def differs(self) -> bool:
        return bool(self.only_in_source or self.only_in_shadow)

    @property
    def compared(self) -> int:
        """The number of runs that could be compared. Zero: there was nothing to compare."""
        return self.matched + len(self.only_in_source) + len(self.only_in_shadow)


@dataclass(frozen=True, slots=True)
class Coverage:
    """The numbers of shadows and runs that a report compared.

    Shadows that can't be compared count only in ``shared`` and ``paused``.
    """

    shadows: int
    due: int
    """Shadows with a shadow run or a source run since the start of the comparison."""
    compared: int
    """Shadows with at least one compared run."""
    runs: int
    """Shadow runs since the start of the comparison."""
    compared_runs: int
    shared: int = 0
    """Shadows that share their task with other entries."""
    paused: int = 0
    """Shadows with nothing to compare that are paused here although their entries are enabled."""

    @classmethod
    def of(cls, shadows: Collection[ShadowComparison]) -> Coverage:
        comparable = [each for each in shadows if each.is_comparable]
        return cls(
            shadows=len(comparable),
            due=sum(bool(each.runs or each.compared) for each in comparable),
            compared=sum(bool(each.compared) for each in comparable),
            runs=sum(each.runs for each in comparable),
            compared_runs=sum(each.compared for each in comparable),
            shared=sum(bool(each.shared_task) for each in shadows),
            paused=sum(each.is_left_out for each in shadows),
        )

    def suffices(self, percent: int) -> bool:
        """Return whether at least one shadow, and ``percent`` of those that ran, were compared."""
        return bool(self.compared) and 100 * self.compared >= percent * self.due


def compare_shadows(
    entries: Iterable[SourceEntry],
    namespace: str,
    source_runs: SourceRuns,
    since: datetime,
    now: datetime,
    source: str = "",
) -> list[ShadowComparison]:
    """Compare the shadows of ``entries``, in that order.

    ``source_runs`` begins ``LATE`` before ``since``. A shadow that is newer than ``since`` is
    compared from ``LATE`` after its creation. Entries that aren't imported, such as a one-off that
    has run, are omitted: beat doesn't store when it ran.
    """
    shadows = {
        matched.job: matched.entry
        for matched in match_entries(entries, namespace, source)
        if not matched.entry.omitted
        and matched.entry.origin not in source_runs.unread
        and matched.job is not None
        and is_shadow(matched.job.target)
    }
    shadow_times = _due_times([job.pk for job in shadows], since)
    return [
        _with_edits(
            _compare(
                job,
                shadow_times.get(job.pk, []),
                source_runs.times.get(entry.origin, ()),
                source_runs,
                max(since, job.created_at + LATE),
                now,
                source_runs.shared_tasks.get(entry.origin, ""),
                paused=job.is_paused and entry.is_enabled,
            ),
            entry,
        )
        for job, entry in shadows.items()
    ]


def _with_edits(compared: ShadowComparison, entry: SourceEntry) -> ShadowComparison:
    """Add the differences of the schedules, which may explain those of the runs.

    A run may match although the job skips others: an occurrence that the job no longer has looks
    like a late run of the one before.
    """
    if not compared.compared:
        return compared
    values = {name: entry.values[name] for name in TIMES if name in entry.values}
    planned = with_values(compared.job, values, DEFAULT_OPTIONS)
    return replace(compared, edited=differing_values(compared.job, planned, values))


def _due_times(job_ids: list[int], since: datetime) -> Mapping[int, list[datetime]]:
    times = defaultdict(list)
    runs = Run.objects.using(alias_for(Run)).filter(
        trigger=Trigger.SCHEDULE, scheduled_at__gte=since - LATE
    )
    for batch in in_batches(job_ids, JOBS_AT_ONCE):
        of_jobs = runs.filter(job_id__in=batch)
        for job_id, at in of_jobs.values_list("job_id", "scheduled_at"):
            times[job_id].append(at)
    return times


def _compare(
    job: Job,
    shadow_times: list[datetime],
    source_times: Collection[datetime],
    source_runs: SourceRuns,
    since: datetime,
    now: datetime,
    shared_task: str,
    *,
    paused: bool,
) -> ShadowComparison:
    """Compare one shadow job with its ``source_times``, which are part of ``source_runs``."""
    interval = job.parsed_schedule.interval or timedelta()
    late, early = LATE + interval, EARLY + interval
    shadow_times, source_times = sorted(shadow_times), sorted(source_times)
    compared = source_times[bisect_left(source_times, since + interval) :]
    if paused:
        compared = _until_last_match(compared, shadow_times, late, early)
    candidates = [
        due for due in shadow_times if not _between(source_times, due - early, due + late)
    ]
    matches, only_in_source = _match(compared, shadow_times, candidates, interval)
    latest = max((at - due for due, at in matches.items()), default=timedelta())
    # If the source stores only the latest run, earlier runs can't be compared.
    if source_runs.complete:
        begin, timeout = since, late
    else:
        begin, timeout = max([since, *source_times[-1:]]), WRITE_DELAY + late
    only_in_shadow = [
        _shadow_difference(due, shadow_times, source_times)
        for due in candidates
        if source_runs.missing_means_not_run and begin <= due <= now - timeout
    ]
    matched = len(compared) - len(only_in_source)
    if not source_runs.missing_means_not_run:  # the message may have waited in its queue
        only_in_source = [each for each in only_in_source if each.kind is not DifferenceKind.LATE]
    return ShadowComparison(
        job,
        matched,
        tuple(only_in_source),
        tuple(only_in_shadow),
        max(latest, timedelta()),
        runs=len(_between(shadow_times, since, now)),
        shared_task=shared_task,
        paused=paused,
    )


class _Matches(NamedTuple):
    source_run_of: dict[datetime, datetime]
    """The matching source run of each shadow run. Empty for an interval: any phase matches."""
    unmatched: list[Difference]
    """Source runs that match no shadow run, and repeated ones, in order of time."""


def _match(
    source_times: list[datetime],
    shadow_times: list[datetime],
    candidates: list[datetime],
    interval: timedelta,
) -> _Matches:
    """Match source runs with shadow runs.

    ``candidates`` are the shadow runs without any source run nearby.
    """
    late, early = LATE + interval, EARLY + interval
    unmatched: list[Difference] = []
    source_run_of: dict[datetime, datetime] = {}
    # Match the last run first, each with its latest free shadow run. Otherwise, a run that starts a
    # moment early, or exactly one occurrence after another run, would count as late.
    for at in reversed(source_times):
        near = _between(shadow_times, at - late, at + early)
        free = next((due for due in reversed(near) if due not in source_run_of), None)
        if not near:
            unmatched.append(_source_difference(at, candidates))
        elif interval:
            continue
        elif free is None:
            duplicate, source_run_of[near[-1]] = source_run_of[near[-1]], at
            unmatched.append(Difference(duplicate, DifferenceKind.TWICE, near[-1]))
        else:
            source_run_of[free] = at
    unmatched.sort(key=lambda difference: difference.at)
    return _Matches(source_run_of, unmatched)


def _until_last_match(
    source_times: list[datetime], shadow_times: list[datetime], late: timedelta, early: timedelta
) -> list[datetime]:
    """Return the source runs until the last shadow run, or until the later one that matches it."""
    if not shadow_times:
        return []
    last_due = shadow_times[-1]
    matching = _between(source_times, last_due - early, last_due + late)[:1]
    return source_times[: bisect_right(source_times, max([last_due, *matching]))]


def _between(ordered: list[datetime], first: datetime, last: datetime) -> list[datetime]:
    return ordered[bisect_left(ordered, first) : bisect_right(ordered, last)]


def _first_after(at: datetime, ordered: list[datetime]) -> datetime | None:
    return next(iter(ordered[bisect_right(ordered, at) :]), None)


def _source_difference(at: datetime, unmatched_shadow_times: list[datetime]) -> Difference:
    """Return the difference for a source run. It may be a late run of the last unmatched one."""
    before = max((due for due in unmatched_shadow_times if due <= at), default=None)
    return Difference(at, DifferenceKind.NOT_DUE if before is None else DifferenceKind.LATE, before)


def _shadow_difference(
    due: datetime, shadow_times: list[datetime], source_times: list[datetime]
) -> Difference:
    """Return the difference for a shadow run.

    A source run that starts later, but before the next shadow run, is probably its late run.
    """
    next_due = _first_after(due, shadow_times)
    later = _first_after(due, source_times)
    if later is None or (next_due is not None and later >= next_due):
        return Difference(due, DifferenceKind.NOT_RUN)
    return Difference(due, DifferenceKind.LATE, later)
