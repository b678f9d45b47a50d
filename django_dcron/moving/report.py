"""What the other scheduler ran, held against what was due here: for jobs that are shadows.

Two are the same if the other's comes no more than ``LATE`` after ours: schedulers send a moment after the time that was meant. An
interval counts from where it began, which is elsewhere there: of these, any run within an interval will do.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

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


@dataclass(frozen=True, slots=True)
class Beside:
    """One shadow, and the entry it is of."""

    job: Job
    same: int
    """How many runs there have one here."""
    there: tuple[datetime, ...]
    """Those that have none."""
    here: tuple[datetime, ...]
    """Those here that have none there, though it was time."""

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

    def is_pair(here: datetime, there: datetime) -> bool:
        return here - early <= there <= here + late

    there = sorted(at for at in theirs if at >= since + wide)
    alone = tuple(at for at in there if not any(is_pair(here, at) for here in ours))
    # Of a scheduler that keeps the latest run alone, earlier ones cannot be told.
    begin, patience = (since, late) if complete else (there[-1] if there else since, UNWRITTEN + late)
    ours_alone = tuple(
        here
        for here in sorted(ours)
        if begin <= here <= now - patience and not any(is_pair(here, at) for at in theirs)
    )
    return Beside(job, len(there) - len(alone), alone, ours_alone)
