"""Compare the runs of another scheduler with the due times of the shadow jobs here.

Invariants:

- A run there matches a due time here if it comes at most ``LATE`` after it, or ``EARLY`` before it.
  Schedulers send runs a moment late, and clocks differ.
- The phase of an interval differs between the schedulers, so any run within one interval matches.
- Otherwise, a due time here matches one run there. A second run counts as a duplicate.
- As many runs as possible match. Each run matches the latest due time that no later run needs.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import NamedTuple

from django_dcron.contrib.importers.origins import match_entries
from django_dcron.contrib.importers.reading import SourceEntry, SourceRuns
from django_dcron.db.routing import alias_for
from django_dcron.models import Job, Run
from django_dcron.policies.lifecycle import Trigger
from django_dcron.targets.shadow import PREFIX

LATE = timedelta(seconds=60)
EARLY = timedelta(seconds=1)
"""The tolerance for different clocks of two machines."""
WRITE_DELAY = timedelta(minutes=5)
"""How long a scheduler that stores only the latest run may take to write it.

Beat takes up to three minutes.
"""
JOBS_AT_ONCE = 500


class DifferenceKind(StrEnum):
    NOT_DUE = "not due here"
    NOT_RUN = "not run there"
    LATE = "late there"
    TWICE = "twice there"


@dataclass(frozen=True, slots=True)
class Difference:
    at: datetime
    kind: DifferenceKind
    other: datetime | None = None
    """For a late run, probably the run on the other side. For a duplicate, the run here."""


@dataclass(frozen=True, slots=True)
class ShadowComparison:
    """One shadow job, compared with the entry it shadows."""

    job: Job
    same: int
    """The number of runs there that match a run here."""
    there: tuple[Difference, ...] = ()
    """Runs there without a match."""
    here: tuple[Difference, ...] = ()
    """Runs here without a match there, although enough time has passed."""
    late: timedelta = timedelta()
    """The greatest delay of a matching run there. Zero for intervals, whose phases differ."""
    runs: int = 0
    """The number of runs here since the start of the comparison."""

    @property
    def differs(self) -> bool:
        return bool(self.there or self.here)

    @property
    def compared(self) -> int:
        """The number of runs that could be compared. Zero: there was nothing to compare."""
        return self.same + len(self.there) + len(self.here)


@dataclass(frozen=True, slots=True)
class Coverage:
    """The numbers of shadows and runs that a report compared."""

    shadows: int
    due: int
    """Shadows that ran here or there since the start of the comparison."""
    compared: int
    """Shadows with at least one compared run."""
    runs: int
    """Runs here since the start of the comparison."""
    compared_runs: int

    @classmethod
    def of(cls, shadows: Collection[ShadowComparison]) -> Coverage:
        return cls(
            shadows=len(shadows),
            due=sum(bool(each.runs or each.compared) for each in shadows),
            compared=sum(bool(each.compared) for each in shadows),
            runs=sum(each.runs for each in shadows),
            compared_runs=sum(each.compared for each in shadows),
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
        matched.entry.origin: matched.job
        for matched in match_entries(entries, namespace, source)
        if not matched.entry.omitted
        and matched.entry.origin not in source_runs.unread
        and matched.job is not None
        and matched.job.target.startswith(PREFIX)
    }
    our_times = _due([job.pk for job in shadows.values()], since)
    return [
        _compare(
            job,
            our_times.get(job.pk, []),
            source_runs.times.get(origin, ()),
            source_runs.complete,
            max(since, job.created_at + LATE),
            now,
        )
        for origin, job in shadows.items()
    ]


def _due(job_ids: list[int], since: datetime) -> Mapping[int, list[datetime]]:
    times = defaultdict(list)
    runs = Run.objects.using(alias_for(Run)).filter(
        trigger=Trigger.SCHEDULE, scheduled_at__gte=since - LATE
    )
    for start in range(0, len(job_ids), JOBS_AT_ONCE):
        chunk = runs.filter(job_id__in=job_ids[start : start + JOBS_AT_ONCE])
        for job_id, at in chunk.values_list("job_id", "scheduled_at"):
            times[job_id].append(at)
    return times


def _compare(
    job: Job,
    our_times: list[datetime],
    their_times: Collection[datetime],
    complete: bool,
    since: datetime,
    now: datetime,
) -> ShadowComparison:
    interval = job.parsed_schedule.interval or timedelta()
    late, early = LATE + interval, EARLY + interval
    our_times, their_times = sorted(our_times), sorted(their_times)
    there = [at for at in their_times if at >= since + interval]
    candidates = [
        here for here in our_times if not _between(their_times, here - early, here + late)
    ]
    matches, unmatched_there = _match(there, our_times, candidates, interval)
    latest = max((at - here for here, at in matches.items()), default=timedelta())
    # If the scheduler stores only the latest run, earlier runs can't be compared.
    if complete:
        begin, timeout = since, late
    else:
        begin, timeout = (there[-1] if there else since), WRITE_DELAY + late
    unmatched_here = [
        _difference_here(here, our_times, their_times)
        for here in candidates
        if begin <= here <= now - timeout
    ]
    return ShadowComparison(
        job,
        len(there) - len(unmatched_there),
        tuple(unmatched_there),
        tuple(unmatched_here),
        max(latest, timedelta()),
        runs=len(_between(our_times, since, now)),
    )


class _Matches(NamedTuple):
    matched: dict[datetime, datetime]
    """Runs there by the due time here that they match. Empty for an interval: any phase matches."""
    unmatched: list[Difference]
    """Runs there that match no due time here, and repeated runs, in order of time."""


def _match(
    there: list[datetime],
    our_times: list[datetime],
    candidates: list[datetime],
    interval: timedelta,
) -> _Matches:
    """Match the runs there with due times here. ``candidates``: those without any run nearby."""
    late, early = LATE + interval, EARLY + interval
    unmatched: list[Difference] = []
    matched: dict[datetime, datetime] = {}
    # Match the last run first, each with its latest free due time. Otherwise, a run that comes a
    # moment early, or exactly one occurrence after another run, would count as late.
    for at in reversed(there):
        pairs = _between(our_times, at - late, at + early)
        free = next((here for here in reversed(pairs) if here not in matched), None)
        if not pairs:
            unmatched.append(_difference_there(at, candidates))
        elif interval:
            continue
        elif free is None:
            again, matched[pairs[-1]] = matched[pairs[-1]], at
            unmatched.append(Difference(again, DifferenceKind.TWICE, pairs[-1]))
        else:
            matched[free] = at
    unmatched.sort(key=lambda difference: difference.at)
    return _Matches(matched, unmatched)


def _between(ordered: list[datetime], first: datetime, last: datetime) -> list[datetime]:
    return ordered[bisect_left(ordered, first) : bisect_right(ordered, last)]


def _first_after(at: datetime, ordered: list[datetime]) -> datetime | None:
    return next(iter(ordered[bisect_right(ordered, at) :]), None)


def _difference_there(at: datetime, unmatched: list[datetime]) -> Difference:
    """Return the difference for a run there. ``unmatched``: runs here without a match."""
    before = max((here for here in unmatched if here <= at), default=None)
    return Difference(at, DifferenceKind.NOT_DUE if before is None else DifferenceKind.LATE, before)


def _difference_here(
    here: datetime, our_times: list[datetime], their_times: list[datetime]
) -> Difference:
    """Return the difference for a run here.

    A run there that comes later, but before the next one here, is probably this run.
    """
    next_here = _first_after(here, our_times)
    later_there = _first_after(here, their_times)
    if later_there is None or (next_here is not None and later_there >= next_here):
        return Difference(here, DifferenceKind.NOT_RUN)
    return Difference(here, DifferenceKind.LATE, later_there)
