"""Explain why ``run_due`` ran nothing, if the author of the test probably expected a run."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from datetime import datetime, timedelta

from django_dcron.db import clock
from django_dcron.db.routing import alias_for
from django_dcron.jobs.placement import timetable_of
from django_dcron.models import Cursor, Job, Run
from django_dcron.runs import transitions
from django_dcron.schedules.timetable import MICROSECOND

NO_JOBS = (
    "run_due: the test's database has no jobs. Pass the functions or tasks with @cron in jobs=, or "
    "create jobs first."
)
NOTHING_DUE = (
    "run_due: nothing is due. The next occurrence is that of {job} at {at}. Pass at=, or set a "
    "clock and advance it."
)
CURSORS_EXAMINED = 100
CLOCK_BEFORE_SAVE = (
    "run_due: nothing is due, because {job} was saved at a later time than the clock shows. Set "
    "the clock before you save the job."
)
SAVED_TOO_LATE = (
    "run_due: nothing is due. {job} was saved after {missed}, so its first occurrence is {at}. Set "
    "the clock to an earlier time, call run_due, which saves the job, and advance the clock."
)

FOLLOWER_SAVED_LATE = (
    "run_due: nothing is due, because {job} was saved after the run that it would have followed. "
    "Pass all jobs of a chain in jobs= of one call."
)


def cursors_placed_later(
    job_ids: Collection[int] | None, namespace: str, begin: datetime
) -> list[Cursor]:
    """Return cursors of jobs without runs that were placed at a later time than ``begin``.

    The test probably saved the job first, and then set the clock to an earlier time.
    """
    cursors = Cursor.objects.using(alias_for(Run)).filter(
        placed_at__gt=begin, next_at__isnull=False, job__runs=None
    )
    if job_ids is not None:
        cursors = cursors.filter(job__in=job_ids)
    if namespace:
        cursors = cursors.filter(namespace=namespace)
    return list(cursors.select_related("job").order_by("pk")[:CURSORS_EXAMINED])


def job_missed_by_clock(cursors: Iterable[Cursor], begin: datetime, until: datetime) -> Job | None:
    """Return a job that the test may expect to run. ``cursors`` were placed after ``begin``.

    If no time passes, it isn't known how far the test has advanced the clock before. Then the job
    must have an occurrence before it was placed.
    """
    for cursor in cursors:
        end = until if until > begin else cursor.placed_at
        timetable = timetable_of(cursor)
        interval = timetable.schedule.interval
        first = timetable.first_after(begin) if interval is None else begin + interval
        if first is not None and first <= end:
            return cursor.job
    return None


def follower_saved_late(saved: Collection[int]) -> Job | None:
    """Return one of the jobs ``saved`` by this call that follows a job which has already run."""
    followers = Job.objects.using(alias_for(Job)).filter(pk__in=saved, runs=None)
    has_run = followers.filter(links__after__runs__in=transitions.runs().finished())
    return has_run.order_by("pk").first()


def why_nothing_is_due(
    job_ids: Collection[int], saved: Collection[int], *, follows_real_time: bool
) -> str:
    """Return the text of a warning if the jobs have no runs, and an occurrence ahead.

    If the test has set a clock, the occurrence may be ahead on purpose. Then there is a warning
    only if this call has saved the job right after another occurrence. ``saved``: the jobs that
    this call has saved.
    """
    using = alias_for(Run)
    if Run.objects.using(using).filter(job__in=job_ids).exists():
        return ""
    cursors = Cursor.objects.using(using).filter(job__in=job_ids, next_at__gt=clock.now())
    cursors = cursors.select_related("job").order_by("next_at")
    if follows_real_time:
        first = cursors.first()
        return NOTHING_DUE.format(job=first.job, at=_iso(first.next_at)) if first else ""
    for cursor in cursors.filter(job__in=saved):
        if (missed := _occurrence_before_save(cursor)) is not None:
            at = _iso(cursor.next_at)
            return SAVED_TOO_LATE.format(job=cursor.job, missed=_iso(missed), at=at)
    return ""


def _iso(at: datetime | None) -> str:
    return at.isoformat() if at else ""


def _occurrence_before_save(cursor: Cursor) -> datetime | None:
    """Return an occurrence up to a minute before now, and nearer to it than the next occurrence.

    In a test whose clock stands there, the author expects a run.
    """
    now, schedule = clock.now(), cursor.parsed_schedule
    if cursor.next_at is None or schedule.interval is not None:
        return None
    ahead = min(cursor.next_at - now, timedelta(minutes=1) + MICROSECOND)
    earlier = timetable_of(cursor).next_after(now - ahead)
    return earlier if earlier is not None and earlier <= now else None
