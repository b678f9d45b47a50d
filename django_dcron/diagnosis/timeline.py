"""Build the timeline: the runs of the last hour and the occurrences of the next, one lane per job.

Occurrences of the last hour that should have a run and have none are listed, too.

The cost doesn't depend on the number of jobs and runs:

- There are at most ``LANES`` lanes. If there are more jobs, three kinds are chosen in turn: jobs
  with running runs, jobs that failed within the last hour, and jobs that are due next. Each kind is
  found through an index and in a bounded number of rows.
- The database sums up the runs of the last hour by job, minute and state. A job that runs each
  second yields about sixty rows, a job that runs every five minutes yields twelve. Consecutive
  minutes that are alike are then merged.
- A run scheduled before the last hour is included if it still runs. Each job's last run from before
  the hour is included if it ended within the hour.
- Future occurrences less than ``NEAR`` apart form one stretch. Stretches are found in steps of half
  of that, so there are at most 120 steps per timetable, regardless of its schedule.
"""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import chain, groupby, zip_longest
from typing import Any, NamedTuple

from django.db.models import CharField, Count, Func, Max, Min, OuterRef, Subquery, Sum, TextField
from django.db.models.functions import Cast

from django_dcron.db.routing import alias_for
from django_dcron.diagnosis.job_filters.selection import JobSelection
from django_dcron.diagnosis.overdue import overdue_cursors, takeover_time
from django_dcron.diagnosis.run_durations import (
    ENDED_BEFORE_NEXT_ATTEMPT,
    ended_before_next_attempt,
)
from django_dcron.diagnosis.scope import EVERYTHING, Scope
from django_dcron.exceptions import InvalidSchedule
from django_dcron.jobs.placement import timetable_of
from django_dcron.models import Cursor, Job, Run
from django_dcron.models.run import RunQuerySet
from django_dcron.policies.lifecycle import State
from django_dcron.schedules.timetable import MICROSECOND, Timetable

HOUR, MINUTE = timedelta(hours=1), timedelta(minutes=1)
LANES = 30
NEAR = MINUTE
RUNS_READ_LIMIT = 300
"""The maximum number of runs to read in one query."""
JOBS_COUNTED = 10_000


@dataclass(frozen=True, slots=True)
class RunStretch:
    """Runs of one job in one state, scheduled in the same minute.

    Consecutive minutes are merged if each has more than one run, all in that state.
    """

    state: str
    number: int
    last_scheduled_at: datetime
    scheduled_at: datetime
    """The earliest time of these runs, as in the next two fields."""
    due_at: datetime
    started_at: datetime | None
    """None if no run has started, and for a run that ended during its backoff. The row of such a
    run doesn't have the end of its last attempt.
    """
    finished_at: datetime | None
    """The latest end of these runs; None if none has ended."""
    missed_before: int
    """The number of earlier missed occurrences that the runs count."""
    run_id: uuid.UUID | None
    """The run's id if this is a single run."""


@dataclass(frozen=True, slots=True)
class OccurrenceStretch:
    """Occurrences of a job, each less than ``NEAR`` after the previous one; mostly only one."""

    first: datetime
    last: datetime


class _Upcoming(NamedTuple):
    """The occurrences of a timetable from now on."""

    stretches: tuple[OccurrenceStretch, ...] = ()
    """Those within the hour."""
    next_at: datetime | None = None
    """The next occurrence, within the hour or later."""


@dataclass(frozen=True, slots=True)
class Lane:
    job: Job
    runs: tuple[RunStretch, ...]
    upcoming: tuple[OccurrenceStretch, ...]
    next_at: datetime | None
    """The next occurrence, within the hour or later."""
    without_run: tuple[OccurrenceStretch, ...] = ()
    """Occurrences of the last hour that no node has claimed in time, so they have no runs."""


@dataclass(frozen=True, slots=True)
class Timeline:
    since: datetime
    now: datetime
    until: datetime
    lanes: tuple[Lane, ...]
    """Lanes with runs first, then by name.

    A lane moves only when its job gets its first run or loses its last one.
    """
    jobs: int
    """The number of jobs to choose from; ``JOBS_COUNTED + 1`` if there are more."""


def timeline(
    now: datetime,
    selection: JobSelection | None = None,
    *,
    with_runs: bool = True,
    scope: Scope = EVERYTHING,
) -> Timeline:
    """Return the hours before and after ``now``, with at most ten queries."""
    selection, since = selection or JobSelection(), now - HOUR
    job_ids, number = _choose(selection, since, with_runs, scope)
    earlier = scope.runs.filter(job=OuterRef("pk"), scheduled_at__lte=since).order_by(
        "-scheduled_at"
    )
    jobs = list(
        scope.jobs.filter(pk__in=job_ids)
        .select_related("cursor", "calendar")
        .annotate(earlier_run=Subquery(earlier.values("pk")[:1]))
        .order_by("namespace", "name")
    )
    runs = _runs_of(jobs, since, now, scope.runs) if with_runs else {}
    computed: dict[Any, _Upcoming] = {}
    without_run = _occurrences_without_run(jobs, since, now)
    lanes = []
    for job in jobs:
        upcoming = _upcoming_occurrences(job, now, computed)
        lanes.append(
            Lane(
                job=job,
                runs=tuple(runs.get(job.pk, ())),
                upcoming=upcoming.stretches,
                next_at=upcoming.next_at,
                without_run=without_run.get(job.pk, ()),
            )
        )
    lanes.sort(key=lambda lane: not lane.runs)
    return Timeline(since, now, now + HOUR, tuple(lanes), number)


def _choose(
    selection: JobSelection, since: datetime, with_runs: bool, scope: Scope
) -> tuple[list[int], int]:
    """Return the keys of the jobs that get a lane, and the number of jobs to choose from."""
    jobs = scope.jobs.filter(**selection.lookups()).order_by()
    first_jobs = list(jobs.values_list("pk", flat=True)[: LANES + 1])
    if len(first_jobs) <= LANES:
        return first_jobs, len(first_jobs)
    running: Iterable[int] = ()
    failed: Iterable[int] = ()
    if with_runs:
        selected = scope.runs.filter(**selection.lookups("job__")).order_by("-due_at")
        running = selected.running().values_list("job", flat=True)[:RUNS_READ_LIMIT]
        recent_failures = selected.filter(state=State.FAILED, due_at__gt=since)
        failed = recent_failures.values_list("job", flat=True)[:RUNS_READ_LIMIT]
    scheduled = Cursor.objects.using(alias_for(Cursor)).filter(
        enabled=True, problem="", **selection.lookups()
    )
    cursors = scope.of_jobs(scheduled, "pk")
    due = (
        cursors.exclude(next_at=None).order_by("next_at", "pk").values_list("pk", flat=True)[:LANES]
    )
    in_turn = zip_longest(*(dict.fromkeys(kind) for kind in (running, failed, due)))
    chosen = dict.fromkeys(pk for pk in chain(*in_turn, first_jobs) if pk is not None)
    return list(chosen)[:LANES], jobs[: JOBS_COUNTED + 1].count()


class _Minute(Func):
    """SQL value that is the same for all times of one minute.

    On SQLite, ``TruncMinute`` would call a Python function.
    """

    arity = 1
    output_field = CharField()
    template = "SUBSTR(%(expressions)s, 1, 16)"

    def as_postgresql(self, compiler: Any, connection: Any, **context: Any) -> Any:
        return self.as_sql(
            compiler, connection, template="DATE_TRUNC('minute', %(expressions)s)", **context
        )


def _runs_of(
    jobs: list[Job], since: datetime, now: datetime, rows: RunQuerySet
) -> dict[int, list[RunStretch]]:
    found: defaultdict[int, list[RunStretch]] = defaultdict(list)
    for run in _runs_from_before(jobs, since, rows):
        found[run.job_id].append(_one_run(run))
    summed = (
        rows.filter(job__in=[job.pk for job in jobs], scheduled_at__gt=since, scheduled_at__lte=now)
        .order_by()
        .values("job_id", "state", minute=_Minute("scheduled_at"))
        .annotate(
            number=Count("pk"),
            last=Max("scheduled_at"),
            scheduled=Min("scheduled_at"),
            due=Min("due_at"),
            started=Min("started_at", filter=~ENDED_BEFORE_NEXT_ATTEMPT),
            finished=Max("finished_at"),
            missed=Sum("missed_before"),
            one=Min(Cast("pk", TextField())),
        )
    )
    for row in summed:
        found[row["job_id"]].append(
            RunStretch(
                state=row["state"],
                number=row["number"],
                last_scheduled_at=row["last"],
                scheduled_at=row["scheduled"],
                due_at=row["due"],
                started_at=row["started"],
                finished_at=row["finished"],
                missed_before=row["missed"],
                run_id=uuid.UUID(row["one"]) if row["number"] == 1 else None,
            )
        )
    return {job_id: list(_merge_minutes(runs)) for job_id, runs in found.items()}


def minute_of(runs: RunStretch) -> datetime:
    return runs.scheduled_at.replace(second=0, microsecond=0)


def _merge_minutes(runs: list[RunStretch]) -> Iterator[RunStretch]:
    """Yield the runs in order of time, with similar consecutive minutes merged."""
    before: RunStretch | None = None  # a summary of whole minutes that isn't yielded yet
    for _minute, group in groupby(
        sorted(runs, key=lambda each: (each.scheduled_at, each.state)), minute_of
    ):
        same = list(group)
        if before and not (len(same) == 1 and _continues(before, same[0])):
            yield before
            before = None
        if len(same) > 1 or same[0].number == 1:
            yield from same
        else:
            before = _merged(before, same[0]) if before else same[0]
    if before:
        yield before


def _continues(before: RunStretch, after: RunStretch) -> bool:
    next_minute = before.last_scheduled_at.replace(second=0, microsecond=0) + MINUTE
    return after.number > 1 and after.state == before.state and minute_of(after) == next_minute


def _merged(before: RunStretch, after: RunStretch) -> RunStretch:
    ends = [each.finished_at for each in (before, after) if each.finished_at]
    return replace(
        before,
        number=before.number + after.number,
        last_scheduled_at=after.last_scheduled_at,
        started_at=before.started_at or after.started_at,
        finished_at=max(ends, default=None),
        missed_before=before.missed_before + after.missed_before,
    )


def _runs_from_before(jobs: list[Job], since: datetime, rows: RunQuerySet) -> Iterator[Run]:
    """Yield earlier runs that reach into the hour.

    These are the runs that still run, and each job's last earlier run if it ended within the hour.
    """
    running = rows.running().filter(job__in=[job.pk for job in jobs], scheduled_at__lte=since)
    yield from running.order_by("-due_at")[:RUNS_READ_LIMIT]
    last = [job.earlier_run for job in jobs if job.earlier_run]  # type: ignore[attr-defined]
    yield from (
        rows.filter(pk__in=last, finished_at__gt=since).exclude(state=State.RUNNING).order_by()
    )


def _one_run(run: Run) -> RunStretch:
    return RunStretch(
        state=run.state,
        number=1,
        last_scheduled_at=run.scheduled_at,
        scheduled_at=run.scheduled_at,
        due_at=run.due_at,
        started_at=None if ended_before_next_attempt(run) else run.started_at,
        finished_at=run.finished_at,
        missed_before=run.missed_before,
        run_id=run.pk,
    )


def _upcoming_occurrences(job: Job, now: datetime, computed: dict[Any, _Upcoming]) -> _Upcoming:
    """Return the job's occurrences after ``now``.

    Jobs with the same timetable share the result, which is stored in ``computed``.
    """
    cursor: Cursor | None = getattr(job, "cursor", None)
    if not job.enabled or cursor is None or cursor.problem or cursor.next_at is None:
        return _Upcoming()
    try:
        timetable = timetable_of(job)
    except InvalidSchedule:
        return _Upcoming()
    key = (timetable, cursor.next_at if timetable.schedule.interval else None)
    if key not in computed:
        stretches = tuple(_stretches(timetable, cursor.next_at, now, now + HOUR))
        computed[key] = _Upcoming(stretches, timetable.first_after(now, cursor.next_at))
    return computed[key]


def _occurrences_without_run(
    jobs: list[Job], since: datetime, now: datetime
) -> dict[int, tuple[OccurrenceStretch, ...]]:
    """Return the overdue occurrences by job. Without an overdue cursor, no query is needed."""
    horizon = now - takeover_time()
    late = [job for job in jobs if (at := _next_at(job)) is not None and at <= horizon]
    if not late:
        return {}
    cursors = Cursor.objects.using(alias_for(Cursor)).filter(pk__in=[job.pk for job in late])
    overdue = set(overdue_cursors(cursors, now).values_list("pk", flat=True))
    found = {}
    for job in late:
        phase = _next_at(job)
        if job.pk in overdue and phase is not None:
            with suppress(InvalidSchedule):
                after = max(phase, since) - MICROSECOND
                stretches = _stretches(timetable_of(job), phase, after, now)
                found[job.pk] = tuple(stretches)
    return found


def _next_at(job: Job) -> datetime | None:
    """Return the next unclaimed occurrence of an enabled job without a problem."""
    cursor: Cursor | None = getattr(job, "cursor", None)
    return cursor.next_at if job.enabled and cursor is not None and not cursor.problem else None


def _stretches(
    timetable: Timetable, phase: datetime, after: datetime, until: datetime
) -> Iterator[OccurrenceStretch]:
    at = timetable.first_after(after, phase)
    while at is not None and at <= until:
        first = last = at
        at = timetable.first_after(at + NEAR / 2 - MICROSECOND, phase)
        while at is not None and at <= until and at - last < NEAR:
            last = at
            at = timetable.first_after(at + NEAR / 2 - MICROSECOND, phase)
        yield OccurrenceStretch(first, last)
