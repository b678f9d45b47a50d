"""The planned load: how many occurrences the enabled jobs have in each hour of seven days, where they crowd, and how many
start in a certain minute.

Jobs with the same timetable are counted once (``domain.load``), whatever their number. Reading and counting 10,000 jobs
takes about a third of a second, so the last answers are kept, each for the state of the jobs it was made from: an
answer is never older than the last change of a job.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from functools import lru_cache
from typing import Any, NamedTuple

from django.db.models import Case, Count, F, Max, Sum, When

from django_dcron.domain.crowding import Crowd, Group, crowds
from django_dcron.domain.load import HOUR, MINUTE, Hours, Minute
from django_dcron.domain.schedule import Schedule, WallClock, has_hash, parse_drawn
from django_dcron.domain.timetable import Timetable
from django_dcron.exceptions import InvalidSchedule
from django_dcron.models import Job
from django_dcron.models.database import alias_for
from django_dcron.models.job import JobQuerySet
from django_dcron.models.scheduled import kept_off
from django_dcron.observability.scope import EVERYTHING, Scope
from django_dcron.observability.selection import Selection

DAYS = 7
ANSWERS_KEPT = 8
SPREAD = timedelta(minutes=1)
"""A jitter of so much and more spreads jobs over another minute than that of their schedule."""


@dataclass(frozen=True, slots=True)
class Load:
    begin: datetime
    """The first day's midnight."""
    zone: tzinfo
    jobs: int
    """How many were counted."""
    hours: tuple[int, ...]
    """The number of occurrences in each real hour. A day on which clocks change has 23 or 25 of them."""
    crowds: tuple[Crowd, ...]

    def start_of(self, hour: int) -> datetime:
        """In the zone."""
        return (self.begin + hour * HOUR).astimezone(self.zone)


class _Row(NamedTuple):
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
        return f"{self.namespace}/{self.name}"


def planned_load(
    first_day: date, zone: tzinfo, selection: Selection | None = None, scope: Scope = EVERYTHING
) -> Load:
    """Of ``DAYS`` days by the clocks of ``zone``. One query, and another if a job has changed since the last time. Of a narrowed
    scope no answer is kept: the next reader's rows may be others."""
    selection = selection or Selection()
    if scope.narrows(Job):
        return _count(first_day, zone, scheduled_jobs(selection, scope))
    return _load(first_day, zone, selection, alias_for(Job), _state(scheduled_jobs(selection)))


@lru_cache(maxsize=ANSWERS_KEPT)
def _load(first_day: date, zone: tzinfo, selection: Selection, using: str, state: object) -> Load:
    """``state``: of the jobs; with another one the answer is another."""
    return _count(first_day, zone, scheduled_jobs(selection))


def _count(first_day: date, zone: tzinfo, jobs: JobQuerySet) -> Load:
    begin = _midnight(first_day, zone)
    hours = Hours(begin, (_midnight(first_day + timedelta(days=DAYS), zone) - begin) // HOUR)
    groups = groups_of(jobs, hours)
    counts = [0] * hours.count
    for group in groups:
        for hour, number in hours.occurrences(group.timetable, group.known):
            counts[hour] += number * len(group.keys)
    counted = sum(len(group.keys) for group in groups)
    return Load(begin, zone, counted, tuple(counts), tuple(crowds(hours, groups)))


def starting_in(instant: datetime, *, but: int | None = None, scope: Scope = EVERYTHING) -> int:
    """How many jobs start in the minute of ``instant``, not counting the one with the key ``but``, those of every minute, and those
    that an `H` or a jitter spreads. One query, which sums up jobs of the same schedule."""
    minute, columns = (
        Minute(instant),
        (
            "schedule",
            "timezone",
            "cursor__calendar_dates",
            "calendar_policy",
            "starts_at",
            "ends_at",
            "known",
        ),
    )
    known = Case(When(schedule__icontains="@every", then=F("cursor__next_at")))
    jobs = scheduled_jobs(Selection(), scope).filter(jitter__lt=SPREAD).annotate(known=known)
    if but is not None:
        jobs = jobs.exclude(pk=but)
    found = 0
    rows = jobs.values_list(*columns).annotate(number=Count("pk"))
    for text, zone, dates, policy, starts, ends, phase, number in rows:
        try:
            schedule = kept_off(parse_drawn(text, zone, hash_key=""), dates, policy)
        except InvalidSchedule:
            continue
        if not has_hash(text) and not in_every_minute(schedule):
            found += number * minute.has_start(Timetable(schedule, starts, ends), phase)
    return found


def in_every_minute(schedule: Schedule) -> bool:
    """Of the hours in which it starts at all."""
    if isinstance(schedule.rule, WallClock):
        return schedule.rule.cron.minute.everything
    return schedule.interval is not None and schedule.interval <= MINUTE


def _midnight(day: date, zone: tzinfo) -> datetime:
    return datetime.combine(day, time.min, zone).astimezone(UTC)


def scheduled_jobs(selection: Selection, scope: Scope = EVERYTHING) -> JobQuerySet:
    """Those that are scheduled. One written past ``control`` has no cursor until a node has seen it."""
    jobs = scope.jobs.enabled().filter(cursor__problem="")
    return jobs.filter(**selection.lookups()).order_by()


def _state(jobs: JobQuerySet) -> tuple[Any, ...]:
    """Another one whenever a job has come, gone, or changed: every change raises its version, or places its cursor."""
    state = jobs.aggregate(
        count=Count("pk"), versions=Sum("version"), saved=Max("updated_at"), placed=Max("cursor__placed_at")
    )
    return tuple(state.values())


def groups_of(jobs: JobQuerySet, hours: Hours) -> list[Group]:
    """The jobs by what decides when they occur."""
    groups: dict[tuple[Timetable, datetime | None, bool], Group] = {}
    for row in map(_Row._make, jobs.values_list(*_Row._fields).iterator(chunk_size=5000)):
        try:
            drawn = parse_drawn(row.schedule, row.timezone, hash_key=row.hash_key)
            schedule = kept_off(drawn, row.cursor__calendar_dates, row.calendar_policy)
        except InvalidSchedule:
            continue  # the scheduler will say so of it
        timetable = Timetable(schedule, *_bounds(row, hours))
        known = row.cursor__next_at if schedule.interval else None
        spread = row.jitter >= SPREAD or has_hash(row.schedule)
        alike = (timetable, known, spread)
        if alike not in groups:
            groups[alike] = Group(timetable, known, row.schedule, spread, [])
        groups[alike].keys.append(row.hash_key)
    return list(groups.values())


def _bounds(row: _Row, hours: Hours) -> tuple[datetime | None, datetime | None]:
    """When it starts and ends, if that is within the hours: what lies beyond makes no difference."""
    starts = row.starts_at if row.starts_at and row.starts_at > hours.begin else None
    ends = row.ends_at if row.ends_at and row.ends_at < hours.begin + hours.count * HOUR else None
    return starts, ends
