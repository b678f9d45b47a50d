"""Compute the planned load: occurrences of enabled jobs per hour for a week, and crowded minutes.

Jobs with the same timetable are counted once (see ``schedules.load``). Reading and counting 10,000
jobs takes about a third of a second, so the latest results are cached by the state of the jobs. A
result is never older than the last change of a job.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime, timedelta, tzinfo
from functools import lru_cache
from typing import Any, NamedTuple

from django.db.models import Case, Count, F, Max, Sum, When

from django_dcron.db.routing import alias_for
from django_dcron.diagnosis.job_filters.selection import JobSelection
from django_dcron.diagnosis.scope import EVERYTHING, Scope
from django_dcron.exceptions import InvalidSchedule
from django_dcron.models import Job
from django_dcron.models.job import JobQuerySet
from django_dcron.models.parsed_schedule import with_calendar
from django_dcron.schedules.crowding import CrowdedMinute, TimetableGroup, crowded_minutes_of
from django_dcron.schedules.hashing import hash_key_of
from django_dcron.schedules.load import HOUR, MINUTE, RealHours, RealMinute
from django_dcron.schedules.schedule import Schedule, has_hash, parse_with_drawn_values
from django_dcron.schedules.timetable import Timetable
from django_dcron.schedules.upcoming_days import midnight

DAYS = 7
RESULTS_CACHED = 8
SPREAD = timedelta(minutes=1)
"""A jitter of at least this spreads jobs beyond the minute of their schedule."""


@dataclass(frozen=True, slots=True)
class Load:
    begin: datetime
    """Midnight of the first day."""
    zone: tzinfo
    jobs: int
    """The number of jobs counted."""
    hours: tuple[int, ...]
    """The number of occurrences in each real hour. A day with a clock change has 23 or 25 hours."""
    crowded_minutes: tuple[CrowdedMinute, ...]

    def start_of(self, hour: int) -> datetime:
        """Return the start of an hour, in the load's zone."""
        return (self.begin + hour * HOUR).astimezone(self.zone)


class _JobColumns(NamedTuple):
    namespace: str
    name: str
    schedule: str
    timezone: str
    cursor__calendar_dates: str | None
    calendar_policy: str
    starts_at: datetime | None
    ends_at: datetime | None
    jitter: timedelta
    cursor__next_at: datetime | None

    @property
    def hash_key(self) -> str:
        return hash_key_of(self.namespace, self.name)


class _ScheduleColumns(NamedTuple):
    """The columns that determine the occurrences of jobs, and the number of jobs with them."""

    schedule: str
    timezone: str
    cursor__calendar_dates: str | None
    calendar_policy: str
    starts_at: datetime | None
    ends_at: datetime | None
    phase: datetime | None
    """An occurrence from which ``@every`` counts; None for other schedules."""
    number: int


def planned_load(
    first_day: date, zone: tzinfo, selection: JobSelection | None = None, scope: Scope = EVERYTHING
) -> Load:
    """Return the load of ``DAYS`` days in the local time of ``zone``.

    This takes one query, and another one if a job has changed since the last call. The result for a
    narrowed scope isn't cached, because the next reader may see other rows.
    """
    selection = selection or JobSelection()
    if scope.narrows(Job):
        return _count(first_day, zone, scheduled_jobs(selection, scope))
    return _load(first_day, zone, selection, alias_for(Job), _state(scheduled_jobs(selection)))


@lru_cache(maxsize=RESULTS_CACHED)
def _load(
    first_day: date, zone: tzinfo, selection: JobSelection, using: str, state: object
) -> Load:
    """Compute the load; ``state`` is the jobs' state and only serves as a cache key."""
    return _count(first_day, zone, scheduled_jobs(selection))


def _count(first_day: date, zone: tzinfo, jobs: JobQuerySet) -> Load:
    begin = midnight(first_day, zone)
    hours = RealHours(begin, (midnight(first_day + timedelta(days=DAYS), zone) - begin) // HOUR)
    groups = groups_of(jobs, hours)
    counts = [0] * hours.count
    for group in groups:
        for hour, number in hours.occurrences(group.timetable, group.phase):
            counts[hour] += number * len(group.keys)
    counted = sum(len(group.keys) for group in groups)
    return Load(begin, zone, counted, tuple(counts), tuple(crowded_minutes_of(hours, groups)))


def count_jobs_starting_in(
    instant: datetime, *, except_job: int | None = None, scope: Scope = EVERYTHING
) -> int:
    """Return the number of jobs that start in the minute of ``instant``.

    The job with the key ``except_job``, jobs that start every minute, and jobs spread by an ``H``
    or a jitter aren't counted. One query groups jobs with the same schedule.
    """
    minute = RealMinute(instant)
    phase = Case(When(schedule__icontains="@every", then=F("cursor__next_at")))
    jobs = scheduled_jobs(JobSelection(), scope).filter(jitter__lt=SPREAD).annotate(phase=phase)
    if except_job is not None:
        jobs = jobs.exclude(pk=except_job)
    found = 0
    rows = jobs.values_list(*_ScheduleColumns._fields[:-1]).annotate(number=Count("pk"))
    for row in map(_ScheduleColumns._make, rows):
        try:
            drawn = parse_with_drawn_values(row.schedule, row.timezone, hash_key="")
            schedule = with_calendar(drawn, row.cursor__calendar_dates, row.calendar_policy)
        except InvalidSchedule:
            continue
        if not has_hash(row.schedule) and not in_every_minute(schedule):
            timetable = Timetable(schedule, row.starts_at, row.ends_at)
            found += row.number * minute.has_start(timetable, row.phase)
    return found


def in_every_minute(schedule: Schedule) -> bool:
    """Return whether the schedule starts in every minute of the hours in which it starts at all."""
    for line in schedule.lines:
        if line.wall_clock and line.wall_clock.cron.minute.everything:
            return True
    return schedule.interval is not None and schedule.interval <= MINUTE


def scheduled_jobs(selection: JobSelection, scope: Scope = EVERYTHING) -> JobQuerySet:
    """Return the scheduled jobs.

    A job saved without ``control`` isn't included until a node has created its cursor.
    """
    jobs = scope.jobs.enabled().filter(cursor__problem="")
    return jobs.filter(**selection.lookups()).order_by()


def _state(jobs: JobQuerySet) -> tuple[Any, ...]:
    """Return a value that differs whenever a job was added, deleted or changed.

    Each change raises the job's version or places its cursor.
    """
    state = jobs.aggregate(
        count=Count("pk"),
        versions=Sum("version"),
        saved=Max("updated_at"),
        placed=Max("cursor__placed_at"),
    )
    return tuple(state.values())


def groups_of(jobs: JobQuerySet, hours: RealHours) -> list[TimetableGroup]:
    """Group the jobs by what determines their occurrences."""
    groups: dict[tuple[Timetable, datetime | None, bool], TimetableGroup] = {}
    for row in map(
        _JobColumns._make, jobs.values_list(*_JobColumns._fields).iterator(chunk_size=5000)
    ):
        try:
            drawn = parse_with_drawn_values(row.schedule, row.timezone, hash_key=row.hash_key)
            schedule = with_calendar(drawn, row.cursor__calendar_dates, row.calendar_policy)
        except InvalidSchedule:
            continue  # The scheduler reports it.
        timetable = Timetable(schedule, *_bounds(row, hours))
        phase = row.cursor__next_at if schedule.interval else None
        spread = row.jitter >= SPREAD or has_hash(row.schedule)
        key = (timetable, phase, spread)
        if key not in groups:
            groups[key] = TimetableGroup(timetable, phase, row.schedule, spread, [])
        groups[key].keys.append(row.hash_key)
    return list(groups.values())


def _bounds(row: _JobColumns, hours: RealHours) -> tuple[datetime | None, datetime | None]:
    """Return the job's start and end if they are within the hours; others make no difference."""
    starts = row.starts_at if row.starts_at and row.starts_at > hours.begin else None
    ends = row.ends_at if row.ends_at and row.ends_at < hours.begin + hours.count * HOUR else None
    return starts, ends
