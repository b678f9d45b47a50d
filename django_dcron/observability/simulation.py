"""What would run between two times by the schedules as they are now: how much in each minute, which minutes are the fullest, and
which jobs start in them together.

Jobs with the same timetable are counted once (``domain.load``), and no occurrence is listed by itself: 10,000 jobs over a day take a
few seconds, whatever their schedules. Jitter, retries, pauses to come and what policies would skip are left aside: this is what
schedules ask for. Paused jobs are not in it, nor those out of scheduling. A job that starts in every minute clashes with nobody, or
with everybody: it is counted apart. One query.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from heapq import nlargest

from django_dcron.domain.crowding import Crowd, Group, crowds
from django_dcron.domain.load import MINUTE, Hours
from django_dcron.domain.load import Minute as MinuteOfTime
from django_dcron.observability.load import groups_of, in_every_minute, scheduled_jobs
from django_dcron.observability.selection import Selection

LONGEST = timedelta(days=7)
NAMED = 10
"""Jobs of a minute that are named."""


@dataclass(frozen=True, slots=True)
class OfJob:
    job: str
    """As ``namespace/name``."""
    schedule: str
    timezone: str
    occurrences: int


@dataclass(frozen=True, slots=True)
class FullMinute:
    at: datetime
    occurrences: int
    jobs: int
    """How many start in it, but for those of every minute: more than one is a clash."""
    names: tuple[str, ...]
    """The first ``NAMED`` of them, as ``namespace/name``."""


@dataclass(frozen=True, slots=True)
class Simulation:
    since: datetime
    """A whole minute, as is ``until``."""
    until: datetime
    """Not included."""
    jobs: int
    """How many were looked at."""
    by_job: tuple[OfJob, ...]
    """Those with an occurrence, the most frequent first."""
    occurrences: tuple[int, ...]
    """In each minute."""
    starting: tuple[int, ...]
    """How many jobs start in each minute, but for those of every minute."""
    in_every_minute: int
    """How many jobs those are."""
    fullest: tuple[FullMinute, ...]
    """By the jobs that start, then by occurrences, then by time."""
    crowds: tuple[Crowd, ...]
    """Where jobs start together that an ``H`` for their minute would spread; of whole hours from ``since`` on."""

    @property
    def total(self) -> int:
        return sum(self.occurrences)

    @property
    def clashes(self) -> int:
        """In how many minutes more than one job starts."""
        return sum(jobs > 1 for jobs in self.starting)

    def minute(self, number: int) -> datetime:
        return self.since + number * MINUTE


def simulate(
    since: datetime, until: datetime, selection: Selection | None = None, fullest: int = 10
) -> Simulation:
    """From the minute of ``since`` up to ``until``, at most ``LONGEST``. Raises ``ValueError`` if that is not so."""
    begin = since.astimezone(UTC).replace(second=0, microsecond=0)
    count = -((begin - until) // MINUTE)
    if not timedelta() < until - since <= LONGEST:
        raise ValueError(
            f"{since.isoformat()} to {until.isoformat()}: allowed is a time of up to {LONGEST.days} days"
        )
    hours = Hours(begin, -(-count // 60))
    groups = groups_of(scheduled_jobs(selection or Selection()), hours)
    moving = [group for group in groups if not in_every_minute(group.timetable.schedule)]
    occurrences, starting = [0] * count, [0] * count
    by_job: list[OfJob] = []
    for group in groups:
        counted = [occurrences] if in_every_minute(group.timetable.schedule) else [occurrences, starting]
        by_job += _of_jobs(group, _add(hours, group, *counted))
    return Simulation(
        since=begin,
        until=begin + count * MINUTE,
        jobs=sum(len(group.keys) for group in groups),
        by_job=tuple(sorted(by_job, key=lambda each: (-each.occurrences, each.job))),
        occurrences=tuple(occurrences),
        starting=tuple(starting),
        in_every_minute=sum(len(group.keys) for group in groups) - sum(len(group.keys) for group in moving),
        fullest=tuple(_fullest(begin, moving, occurrences, starting, fullest)),
        crowds=tuple(crowds(hours, groups)),
    )


def _add(hours: Hours, group: Group, occurrences: list[int], starting: list[int] | None = None) -> int:
    """Count a group into the minutes. Returns how many occurrences each of its jobs has."""
    found, jobs, count = 0, len(group.keys), len(occurrences)
    for minute, number in hours.minutes(group.timetable, group.known):
        if minute < count:
            occurrences[minute] += number * jobs
            found += number
            if starting is not None:
                starting[minute] += jobs
    return found


def _of_jobs(group: Group, occurrences: int) -> list[OfJob]:
    if not occurrences:
        return []
    zone = group.timetable.schedule.timezone
    return [OfJob(key, group.text, zone, occurrences) for key in group.keys]


def _fullest(
    begin: datetime, groups: Sequence[Group], occurrences: Sequence[int], starting: Sequence[int], number: int
) -> list[FullMinute]:
    busy = (minute for minute, jobs in enumerate(starting) if jobs)
    chosen = nlargest(number, busy, key=lambda minute: (starting[minute], occurrences[minute], -minute))
    found = []
    for minute in chosen:
        at = begin + minute * MINUTE
        names = tuple(_names_in(at, groups))
        found.append(FullMinute(at, occurrences[minute], starting[minute], names))
    return found


def _names_in(at: datetime, groups: Sequence[Group]) -> list[str]:
    minute, names = MinuteOfTime(at), []
    for group in groups:
        if minute.has_start(group.timetable, group.known):
            names += group.keys
    return sorted(names)[:NAMED]
