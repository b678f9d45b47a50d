"""What the other scheduler ran, held against what was due here: for jobs that are shadows.

Two are the same if the other's comes no more than ``LATE`` after ours: schedulers send a moment after the time that was meant. An
interval counts from where it began, which is elsewhere there: of these, any run within an interval will do. Otherwise each of ours is
the same as one there, the first that comes: a second one is there twice.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from django_dcron.domain.lifecycle import Trigger
from django_dcron.models import Job, Run
from django_dcron.models.database import alias_for
from django_dcron.moving.comparison import existing_jobs
from django_dcron.moving.found import Found, Ran
from django_dcron.moving.names import distinct
from django_dcron.targets.shadow import PREFIX

LATE = timedelta(seconds=60)
EARLY = timedelta(seconds=1)
"""Clocks of two machines differ."""
UNWRITTEN = timedelta(minutes=5)
"""How long a scheduler that keeps the latest run alone may take to write it: beat does within three."""
JOBS_AT_ONCE = 500


class Why(StrEnum):
    NOT_DUE = "not due here"
    NOT_RUN = "not run there"
    LATE = "late there"
    TWICE = "twice there"


@dataclass(frozen=True, slots=True)
class Difference:
    at: datetime
    why: Why
    other: datetime | None = None
    """Of what was late: probably the run on the other side. Of what ran twice: the one here."""


@dataclass(frozen=True, slots=True)
class Beside:
    """One shadow, and the entry it is of."""

    job: Job
    same: int
    """How many runs there have one here."""
    there: tuple[Difference, ...] = ()
    """Those that have none."""
    here: tuple[Difference, ...] = ()
    """Those here that have none there, though it was time."""
    late: timedelta = timedelta()
    """By how much one that is the same came after ours there, at most. Not of intervals, whose phases differ."""

    @property
    def differs(self) -> bool:
        return bool(self.there or self.here)


def beside(found: Iterable[Found], namespace: str, ran: Ran, since: datetime, now: datetime) -> list[Beside]:
    """In the order of ``found``. A shadow is looked at from its creation on, if that was after ``since``, but for what the other
    may have sent late. What is left there, as a one-off that has run, is left here: beat forgets when that was.
    ``ran`` begins ``LATE`` before ``since``."""
    entries = distinct(found)
    existing = existing_jobs(entries, namespace)
    shadows = {
        each.origin: job
        for each in entries
        if not each.left
        and each.origin not in ran.unread
        and (job := existing.get((each.namespace or namespace, each.name)))
        and job.target.startswith(PREFIX)
    }
    ours = _due([job.pk for job in shadows.values()], since)
    return [
        _compare(
            job,
            ours.get(job.pk, []),
            ran.times.get(origin, ()),
            ran.complete,
            max(since, job.created_at + LATE),
            now,
        )
        for origin, job in shadows.items()
    ]


def _due(job_ids: list[int], since: datetime) -> Mapping[int, list[datetime]]:
    found = defaultdict(list)
    runs = Run.objects.using(alias_for(Run)).filter(trigger=Trigger.SCHEDULE, scheduled_at__gte=since - LATE)
    for start in range(0, len(job_ids), JOBS_AT_ONCE):
        chosen = runs.filter(job_id__in=job_ids[start : start + JOBS_AT_ONCE])
        for job_id, at in chosen.values_list("job_id", "scheduled_at"):
            found[job_id].append(at)
    return found


def _compare(
    job: Job,
    ours: list[datetime],
    theirs: Collection[datetime],
    complete: bool,
    since: datetime,
    now: datetime,
) -> Beside:
    wide = job.parsed_schedule.interval or timedelta()
    late, early = LATE + wide, EARLY + wide
    ours, theirs = sorted(ours), sorted(theirs)
    there = [at for at in theirs if at >= since + wide]
    unmatched = [here for here in ours if not _between(theirs, here - early, here + late)]
    alone: list[Difference] = []
    latest = timedelta()
    taken: set[datetime] = set()
    for at in there:
        pairs = _between(ours, at - late, at + early)
        free = next((here for here in pairs if here not in taken), None)
        if not pairs:
            alone.append(_alone_there(at, unmatched))
        elif wide:
            continue
        elif free is None:
            alone.append(Difference(at, Why.TWICE, pairs[-1]))
        else:
            taken.add(free)
            latest = max(latest, at - free)
    # Of a scheduler that keeps the latest run alone, earlier ones cannot be told.
    begin, patience = (since, late) if complete else (there[-1] if there else since, UNWRITTEN + late)
    ours_alone = [_alone_here(here, ours, theirs) for here in unmatched if begin <= here <= now - patience]
    return Beside(job, len(there) - len(alone), tuple(alone), tuple(ours_alone), latest)


def _between(ordered: list[datetime], first: datetime, last: datetime) -> list[datetime]:
    return ordered[bisect_left(ordered, first) : bisect_right(ordered, last)]


def _alone_there(at: datetime, unmatched: list[datetime]) -> Difference:
    """``unmatched``: of ours."""
    before = max((here for here in unmatched if here <= at), default=None)
    return Difference(at, Why.NOT_DUE if before is None else Why.LATE, before)


def _alone_here(here: datetime, ours: list[datetime], theirs: list[datetime]) -> Difference:
    """One there that comes after it, and before our next one, is probably its own."""
    following, came = (next(iter(each[bisect_right(each, here) :]), None) for each in (ours, theirs))
    if came is None or (following is not None and came >= following):
        return Difference(here, Why.NOT_RUN)
    return Difference(here, Why.LATE, came)
