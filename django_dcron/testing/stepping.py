"""``run_due``: a scheduler and a worker that a test steps, in its own thread and transaction.

Runs take the same path as in production. The tick of a node claims, releases, adopts and rescues.
The agenda dispatches what is due. ``execution`` starts, calls and completes attempts. Time jumps
from one due time to the next. Threads, brokers, locks between nodes, claims ahead of time and
check-ins with external services aren't used.
"""

from __future__ import annotations

import sys
import threading
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, redirect_stdout, suppress
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.db.models import Min, QuerySet
from django.test import override_settings

from django_dcron.conf import settings
from django_dcron.db import clock
from django_dcron.db.clock import ClusterClock
from django_dcron.db.now import database_now
from django_dcron.db.routing import alias_for
from django_dcron.dispatch import DueRun
from django_dcron.exceptions import UnknownRun
from django_dcron.execution.current import CurrentRun, current_run
from django_dcron.execution.executor import execute
from django_dcron.execution.heartbeat import Heartbeats
from django_dcron.locks.database import DatabaseLock
from django_dcron.models import Cursor, Job, Limit, LimitStart, Run
from django_dcron.models.cursor import CursorQuerySet
from django_dcron.models.run import RunQuerySet
from django_dcron.runs import deliveries, transitions
from django_dcron.scheduler.adoption import return_pending
from django_dcron.scheduler.agenda import Agenda
from django_dcron.scheduler.limit_lines import limit_shard
from django_dcron.scheduler.membership import Membership
from django_dcron.scheduler.tick import Ticker
from django_dcron.testing.empty_results import (
    CLOCK_BEFORE_SAVE,
    FOLLOWER_SAVED_LATE,
    NO_JOBS,
    cursors_placed_later,
    follower_saved_late,
    job_missed_by_clock,
    why_nothing_is_due,
)
from django_dcron.testing.manual_clock import set_clock, utc_time
from django_dcron.testing.raising import recording_exceptions
from django_dcron.testing.subjects import Subject, stored_jobs

MAX_ATTEMPTS = 10_000
"""The maximum number of attempts in one call. A schedule or a time is wrong if there are more."""
CREATION_TOLERANCE = timedelta(milliseconds=1)
"""The tolerance for runs created at the same instant, whose times differ by a few microseconds."""
WORKER = "run_due"
EXCLUDED_MIDDLEWARE = ("django_dcron.contrib.checkins.",)
"""Middleware that would contact external services."""
ONE_SHARD_PER_JOB = 2**62
"""A number of shards so high that each job has its own shard. A node can then lead single jobs."""


def run_due(
    at: datetime | None = None,
    *,
    jobs: Iterable[Subject] | None = None,
    namespace: str = "",
    raising: bool = False,
) -> list[Run]:
    """Do what nodes and workers do until ``at``, and return the runs that ended or were executed.

    The list is ordered by the time of dispatch, or of the end for runs that weren't dispatched.

    Without ``at``, everything that is due now runs. If the test has called ``clock.advance``, the
    occurrences in the skipped time are a backlog, as after an outage. With ``at``, a future aware
    datetime, time passes from one due time to the next. If the test has set a clock, the clock
    shows ``at`` afterwards.

    ``jobs`` and ``namespace`` restrict the call. Each of ``jobs`` is a job, or a function or task
    with ``@cron``. A declared job that isn't in the database is saved. A job that follows others in
    a chain runs only if it is one of ``jobs``, too. With ``raising``, the first exception of a
    job's code is raised after it is recorded. Raises ``ValueError`` if ``at`` is in the past.

    Warns if nothing runs although the test probably expects a run, for example because a job was
    saved at a later time than the clock shows.
    """
    if current_run().is_active:
        raise RuntimeError(
            "run_due can't be called by the code of a job, because it would run jobs inside a job."
        )
    begin = database_now(alias_for(Run))
    until = begin if at is None else utc_time("at", at)
    if until < begin:
        which_clock = (
            "the clock is set to"
            if clock.fixed_at is not None
            else "no clock is set, and the time is"
        )
        raise ValueError(
            f"run_due: {until.isoformat()} is in the past: {which_clock} {begin.isoformat()}. Set "
            "the time with set_clock; freezegun and time-machine don't change it."
        )
    follows_real_time = clock.fixed_at is None
    with set_clock(begin) if clock.fixed_at is None else nullcontext():
        stored_before = set(Job.objects.using(alias_for(Job)).values_list("pk", flat=True))
        chosen = None if jobs is None else {job.pk for job in stored_jobs(jobs)}
        placed_later = cursors_placed_later(chosen, namespace, begin)
        with _test_settings(single_jobs=chosen is not None), recording_exceptions() as exceptions:
            ended = _Stepper(chosen, namespace, exceptions, raising=raising).run_until(until)
        if not ended and chosen is None and not Job.objects.using(alias_for(Job)).exists():
            warnings.warn(NO_JOBS, stacklevel=2)
        if not ended and (job := job_missed_by_clock(placed_later, begin, until)):
            warnings.warn(CLOCK_BEFORE_SAVE.format(job=job), stacklevel=2)
        saved = set() if chosen is None else chosen - stored_before
        if not ended and (late := follower_saved_late(saved)):
            warnings.warn(FOLLOWER_SAVED_LATE.format(job=late), stacklevel=2)
        if not ended and chosen and at is None:
            problem = why_nothing_is_due(chosen, saved, follows_real_time=follows_real_time)
            if problem:
                warnings.warn(problem, stacklevel=2)
        return ended


@contextmanager
def _test_settings(*, single_jobs: bool) -> Iterator[None]:
    """Apply settings for a node that claims nothing ahead of time and contacts no external service.

    With ``single_jobs``, each job has its own shard.
    """
    changed = {
        "DCRON_DISPATCHER": "thread",
        "DCRON_LOOK_AHEAD": timedelta(),
        "DCRON_MIDDLEWARE": [
            "django_dcron.testing.raising.record_exceptions",
            *(path for path in settings.MIDDLEWARE if not path.startswith(EXCLUDED_MIDDLEWARE)),
        ],
    }
    if single_jobs:
        changed["DCRON_SHARDS"] = ONE_SHARD_PER_JOB
    # The capture of a job's output wraps stdout, and in a worker the wrapper remains there.
    with override_settings(**changed), redirect_stdout(sys.stdout):
        yield


class _Stepper:
    def __init__(
        self,
        jobs: set[int] | None,
        namespace: str,
        exceptions: list[BaseException],
        *,
        raising: bool,
    ):
        """``exceptions`` is filled as attempts end.

        With ``raising``, the first one is raised at once.
        """
        self._clock = ClusterClock()
        self._membership = _SingleNode(jobs, namespace, self._clock)
        self._jobs = jobs
        self._namespace = namespace
        self._exceptions = exceptions
        self._raising = raising
        self._heartbeats = _ManualHeartbeats()
        self._attempts = 0
        self._reported: dict[UUID, None] = {}
        """Runs that were dispatched or have ended, in order."""
        self._executed: set[UUID] = set()

    def run_until(self, until: datetime) -> list[Run]:
        before = set(self._ended_now())
        # Without a set clock, ``control.trigger`` sends a message. No worker of the test gets it.
        deliveries.return_queued(self._runs().queued().values_list("pk", "attempt"))
        try:
            self._run_due_now()
            while (next_instant := self._next_instant(clock.now(), until)) is not None:
                clock.fixed_at = next_instant
                self._run_due_now()
            if clock.now() < until:
                clock.fixed_at = until
                self._run_due_now()
            elif clock.now() <= until + CREATION_TOLERANCE:  # otherwise, a job has moved the clock
                clock.fixed_at = until
        finally:
            return_pending(self._membership.id)
        runs = transitions.runs().select_related("job").in_bulk(set(self._reported) - before)
        reported = [runs[run_id] for run_id in self._reported if run_id in runs]
        return [run for run in reported if run.is_final or run.pk in self._executed]

    def _run_due_now(self) -> None:
        """Run everything due now, including followers and retries that become due meanwhile."""
        while True:
            dispatched = self._tick()
            self._report(self._ended_now())
            self._report(run.run_id for run in dispatched)
            try:
                for run in dispatched:
                    self._execute(run)
            except BaseException:
                # Runs that have started aren't queued any more.
                deliveries.return_queued(run.key for run in dispatched)
                raise
            self._report(self._ended_now())
            if not dispatched or not self._more_is_due():
                return

    def _report(self, run_ids: Iterable[UUID]) -> None:
        self._reported |= dict.fromkeys(run_ids)

    def _tick(self) -> list[DueRun]:
        queue = CollectingDispatcher()
        agenda = Agenda(queue, self._clock)
        ticker = Ticker(self._membership, agenda, self._clock)
        try:
            ticker.tick(once=True)
        finally:
            ticker.close()
        agenda.publish_due()
        ticker.mark_dispatched()
        return queue.messages

    def _execute(self, run: DueRun) -> None:
        self._attempts += 1
        if self._attempts > MAX_ATTEMPTS:
            raise RuntimeError(
                f"run_due stopped after {MAX_ATTEMPTS} attempts at {clock.now().isoformat()}; the "
                f"next attempt is for {run.job_name}. Choose an earlier time, or pass jobs=."
            )
        with _timers_joined(), suppress(UnknownRun):  # an earlier job has deleted the run
            if execute(run.run_id, run.attempt, worker=WORKER, heartbeats=self._heartbeats):
                self._executed.add(run.run_id)
        while self._exceptions:
            exception = self._exceptions.pop()
            # Exceptions such as that of ``pytest.fail`` are raised in any case.
            if self._raising or not isinstance(exception, (Exception, SystemExit)):
                raise exception

    def _more_is_due(self) -> bool:
        """Return whether another tick at this instant may find something to do.

        This check is cheaper than a tick.
        """
        now, runs = clock.now(), self._runs()
        due = runs.pending().due(now) | runs.waiting()
        return due.exists() or self._cursors().due(now).exists()

    def _next_instant(self, after: datetime, until: datetime) -> datetime | None:
        """Return the next time, up to ``until``, at which something may happen, or None.

        An occurrence or a run is due, a pause ends, or the interval of a limit lets a run start.
        """
        using = alias_for(Run)
        paused = self._selected(Job.objects.using(using).filter(enabled=False), "pk", "namespace")
        ahead = [
            _earliest(self._cursors().filter(problem=""), "next_at", after, until),
            _earliest(self._runs().pending(), "due_at", after, until + CREATION_TOLERANCE),
            _earliest(paused, "paused_until", after, until),
            self._next_start_in_limits(after, until),
        ]
        return min((instant for instant in ahead if instant is not None), default=None)

    def _next_start_in_limits(self, after: datetime, until: datetime) -> datetime | None:
        """Return the next time at which the interval of a limit allows a waiting run to start."""
        waiting = self._runs().waiting().filter(limited=True)
        limits = Limit.objects.using(alias_for(Limit)).filter(places__run__in=waiting)
        starts = LimitStart.objects.using(alias_for(LimitStart))
        ahead = []
        for name, interval in limits.values_list("pk", "interval").distinct():
            if interval is not None:
                of_limit = starts.filter(limit=name)
                first = _earliest(of_limit, "started_at", after - interval, until - interval)
                ahead += [first + interval] if first else []
        return min(ahead, default=None)

    def _ended_now(self) -> Sequence[UUID]:
        """Return the runs that ended at this instant, including runs that never started."""
        ended = self._runs().finished().filter(finished_at=clock.now())
        return list(ended.order_by("scheduled_at", "pk").values_list("pk", flat=True))

    def _runs(self) -> RunQuerySet:
        runs: RunQuerySet = self._selected(transitions.runs(), "job", "job__namespace")
        return runs

    def _cursors(self) -> CursorQuerySet:
        cursors: CursorQuerySet = self._selected(
            Cursor.objects.using(alias_for(Cursor)), "job", "namespace"
        )
        return cursors

    def _selected(self, rows: Any, job: str, namespace: str) -> Any:
        if self._jobs is not None:
            rows = rows.filter(**{f"{job}__in": self._jobs})
        return rows.filter(**{namespace: self._namespace}) if self._namespace else rows


@contextmanager
def _timers_joined() -> Iterator[None]:
    """Wait for the timers of job timeouts.

    They are cancelled, but their threads end a little later.
    """
    before = set(threading.enumerate())
    try:
        yield
    finally:
        for thread in set(threading.enumerate()) - before:
            if isinstance(thread, threading.Timer) and thread.finished.is_set():
                thread.join()


def _earliest(rows: QuerySet[Any], field: str, after: datetime, until: datetime) -> datetime | None:
    ahead = rows.filter(**{f"{field}__gt": after, f"{field}__lte": until})
    first: datetime | None = ahead.aggregate(first=Min(field))["first"]
    return first


class _SingleNode(Membership):
    """Leads the given shards without heartbeat, row or lock, because there is no other node."""

    def __init__(self, jobs: set[int] | None, namespace: str, clock: ClusterClock):
        super().__init__(WORKER, namespace, DatabaseLock(), clock)
        self._shards = frozenset(range(settings.SHARDS) if jobs is None else _shards_of(jobs))

    @property
    def shards(self) -> frozenset[int]:
        return self._shards

    def ticked(self) -> None:
        """Do nothing: there is no row to update."""


def _shards_of(jobs: set[int]) -> set[int]:
    """Return the shards of the jobs and of their limits; each job has its own shard."""
    limited = Job.objects.using(alias_for(Job)).filter(pk__in=jobs).exclude(limit=None)
    return jobs | {limit_shard(name) for name in limited.values_list("limit_id", flat=True)}


class CollectingDispatcher:
    """A dispatcher that collects the runs instead of publishing them."""

    address = "this thread"
    batch_size = 2000

    def __init__(self) -> None:
        self.messages: list[DueRun] = []

    def prepare(self, run: DueRun) -> DueRun:
        return run

    def publish(self, prepared: Sequence[DueRun]) -> None:
        self.messages += prepared

    def revoke(self, run_id: UUID, attempt: int, worker: str = "") -> None:
        """Do nothing: no run executes while another caller could cancel it."""

    def take_unstarted(self) -> list[tuple[UUID, int]]:
        return []

    def executing(self) -> list[str]:
        return []

    def close(self, wait: bool = True) -> None:
        """Do nothing: there is nothing to close."""


class _ManualHeartbeats(Heartbeats):
    """A heartbeat without a thread, because a thread couldn't see the test's transaction.

    The job's code sends it with ``current_run().heartbeat()``.
    """

    @contextmanager
    def keep_alive(
        self, run: CurrentRun, *, extra_rounds: int | None = None, last_sent_at: float | None = None
    ) -> Iterator[None]:
        run.request_heartbeat = lambda: _beat(run)
        yield


def _beat(run: CurrentRun) -> None:
    cancel_requested = transitions.runs().filter(pk=run.id).exclude(cancel_requested_at=None)
    if not transitions.renew_heartbeat(run.id, run.attempt) or cancel_requested.exists():
        run.cancel()
