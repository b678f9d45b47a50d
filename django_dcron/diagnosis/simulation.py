"""Simulate the current schedules: occurrences per minute, the fullest minutes, and clashes of jobs.

Jobs with the same timetable are counted once (see ``schedules.load``), without listing occurrences.
10,000 jobs over a day take a few seconds, with any schedules. Jobs are read with one query.

The simulation shows what the schedules ask for:

- It ignores jitter, retries, future pauses and what policies would skip.
- Paused and quarantined jobs aren't included.
- A job that starts in every minute would clash with all others, so it is counted separately.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from heapq import nlargest

from django_dcron.diagnosis.job_filters.selection import JobSelection
from django_dcron.diagnosis.load import groups_of, in_every_minute, scheduled_jobs
from django_dcron.schedules.crowding import CrowdedMinute, TimetableGroup, crowded_minutes_of
from django_dcron.schedules.load import MINUTE, RealHours, RealMinute

LONGEST = timedelta(days=7)
NAMED = 10
"""The maximum number of jobs named per minute."""


@dataclass(frozen=True, slots=True)
class JobForecast:
    job: str
    """``namespace/name``"""
    schedule: str
    timezone: str
    occurrences: int


@dataclass(frozen=True, slots=True)
class FullMinute:
    at: datetime
    occurrences: int
    jobs: int
    """The number of jobs that start in the minute, without those that start in every minute.

    More than one is a clash.
    """
    names: tuple[str, ...]
    """The first ``NAMED`` of these jobs, as ``namespace/name``."""


@dataclass(frozen=True, slots=True)
class Simulation:
    since: datetime
    """At a whole minute, as is ``until``."""
    until: datetime
    """Exclusive."""
    jobs: int
    """The number of jobs simulated."""
    by_job: tuple[JobForecast, ...]
    """Jobs with at least one occurrence, the most frequent first."""
    occurrences: tuple[int, ...]
    """The number of occurrences in each minute."""
    starting: tuple[int, ...]
    """The number of jobs in each minute, without those that start in every minute."""
    in_every_minute: int
    """The number of jobs that start in every minute."""
    fullest: tuple[FullMinute, ...]
    """Ordered by number of starting jobs, then by occurrences, then by time."""
    crowded_minutes: tuple[CrowdedMinute, ...]
    """Crowds of jobs that an ``H`` could spread, in whole hours from ``since`` on."""

    @property
    def total(self) -> int:
        return sum(self.occurrences)

    @property
    def clashes(self) -> int:
        """The number of minutes in which more than one job starts."""
        return sum(jobs > 1 for jobs in self.starting)

    def minute(self, number: int) -> datetime:
        return self.since + number * MINUTE


def simulate(
    since: datetime, until: datetime, selection: JobSelection | None = None, fullest: int = 10
) -> Simulation:
    """Simulate from the minute of ``since`` up to ``until``.

    Raises ``ValueError`` if ``until`` isn't after ``since``, or if the period is longer than
    ``LONGEST``.
    """
    begin = since.astimezone(UTC).replace(second=0, microsecond=0)
    count = -((begin - until) // MINUTE)  # rounded up
    if not timedelta() < until - since <= LONGEST:
        raise ValueError(
            f"{since.isoformat()} to {until.isoformat()} can't be simulated (allowed: an end after "
            f"the start, at most {LONGEST.days} days later)"
        )
    hours = RealHours(begin, -(-count // 60))
    groups = groups_of(scheduled_jobs(selection or JobSelection()), hours)
    other_groups = [group for group in groups if not in_every_minute(group.timetable.schedule)]
    occurrences, starting = [0] * count, [0] * count
    by_job: list[JobForecast] = []
    for group in groups:
        clashing = not in_every_minute(group.timetable.schedule)
        number = _count_group(hours, group, occurrences, starting if clashing else None)
        by_job += _job_forecasts(group, number)
    return Simulation(
        since=begin,
        until=begin + count * MINUTE,
        jobs=sum(len(group.keys) for group in groups),
        by_job=tuple(sorted(by_job, key=lambda each: (-each.occurrences, each.job))),
        occurrences=tuple(occurrences),
        starting=tuple(starting),
        in_every_minute=sum(len(group.keys) for group in groups)
        - sum(len(group.keys) for group in other_groups),
        fullest=tuple(_fullest(begin, other_groups, occurrences, starting, fullest)),
        crowded_minutes=tuple(crowded_minutes_of(hours, groups)),
    )


def _count_group(
    hours: RealHours,
    group: TimetableGroup,
    occurrences: list[int],
    starting: list[int] | None,
) -> int:
    """Add a group to the counts per minute. Return the number of occurrences of each job in it."""
    found, jobs, count = 0, len(group.keys), len(occurrences)
    for minute, number in hours.minutes(group.timetable, group.phase):
        if minute < count:
            occurrences[minute] += number * jobs
            found += number
            if starting is not None:
                starting[minute] += jobs
    return found


def _job_forecasts(group: TimetableGroup, occurrences: int) -> list[JobForecast]:
    if not occurrences:
        return []
    zone = group.timetable.schedule.timezone
    return [JobForecast(key, group.text, zone, occurrences) for key in group.keys]


def _fullest(
    begin: datetime,
    groups: Sequence[TimetableGroup],
    occurrences: Sequence[int],
    starting: Sequence[int],
    number: int,
) -> list[FullMinute]:
    busy = (minute for minute, jobs in enumerate(starting) if jobs)
    chosen = nlargest(
        number, busy, key=lambda minute: (starting[minute], occurrences[minute], -minute)
    )
    found = []
    for minute in chosen:
        at = begin + minute * MINUTE
        names = tuple(_names_in(at, groups))
        found.append(FullMinute(at, occurrences[minute], starting[minute], names))
    return found


def _names_in(at: datetime, groups: Sequence[TimetableGroup]) -> list[str]:
    minute, names = RealMinute(at), []
    for group in groups:
        if minute.has_start(group.timetable, group.phase):
            names += group.keys
    return sorted(names)[:NAMED]
