"""``run_due``: the scheduler and a worker, stepped by a test, in its own thread and transaction.

It is the road that all runs go: the tick of a node (``scheduler.ticking``) claims, releases, adopts and rescues; the agenda hands over
what is due; ``execution`` starts, calls and concludes. Left out is what a test is to be spared: threads, brokers, locks between nodes,
claims ahead of the time, and check-ins with services outside. Time steps from one instant at which something falls due to the next.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, redirect_stdout, suppress
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.db.models import Min, QuerySet
from django.test import override_settings

from django_dcron import transitions
from django_dcron.conf import settings
from django_dcron.dispatch import DueRun
from django_dcron.domain import clock
from django_dcron.domain.clock import ClusterClock
from django_dcron.exceptions import UnknownRun
from django_dcron.execution.current import CurrentRun, current_run
from django_dcron.execution.executor import execute
from django_dcron.execution.heart import Heart
from django_dcron.locks.database import DatabaseLock
from django_dcron.models import Cursor, Job, Run
from django_dcron.models.cursor import CursorQuerySet
from django_dcron.models.database import alias_for, database_now
from django_dcron.models.run import RunQuerySet
from django_dcron.scheduler.adoption import give_back
from django_dcron.scheduler.agenda import Agenda
from django_dcron.scheduler.membership import Membership
from django_dcron.scheduler.ticking import Ticker
from django_dcron.testing.raising import noting
from django_dcron.testing.setting_time import checked, set_clock
from django_dcron.testing.subjects import Subject, stored_jobs

MOST = 10_000
"""Attempts in one call: beyond, somebody has mistaken a schedule or a time."""
BESIDE = timedelta(milliseconds=1)
"""Runs made at one and the same instant lie a few microseconds beside each other; all of them are due at it."""
WORKER = "run_due"
NOT_IN_TESTS = ("django_dcron.execution.checkins.",)
"""Middleware that would tell somebody outside."""
A_SHARD_EACH = 2**62
"""So many shards that each job has one of its own: then a node may lead some jobs and no others."""


def run_due(
    at: datetime | None = None,
    *,
    jobs: Iterable[Subject] | None = None,
    namespace: str = "",
    raising: bool = False,
) -> list[Run]:
    """Do what nodes and workers would do up to ``at``, here and now, and return the runs that were executed or concluded, in order.

    Without ``at``: all that is due by now. A backlog, as after ``clock.advance``, is judged as after an outage. With ``at``, an aware
    datetime ahead: as if nodes and workers were there all the time, from one due time to the next, each with the clock at that time; a
    clock that is set stands at ``at`` afterwards.

    ``jobs``: these alone, by the job, or by the function or Celery task that ``@cron`` declares one for, which is saved if it was not;
    ``namespace``: those in it alone. ``raising``: the first exception that ends an attempt is raised, once it is recorded; by default it
    is only recorded. Raises ``ValueError`` for a time that is not ahead.
    """
    if current_run() is not None:
        raise RuntimeError("run_due is called by the code of a job, which it would run within itself")
    begin = database_now(alias_for(Run))
    until = begin if at is None else checked("at", at)
    if until < begin:
        whose = "the clock is set to" if clock.stands_at is not None else "no clock is set, and it is"
        raise ValueError(f"run_due: {until.isoformat()} has passed: {whose} {begin.isoformat()}")
    with set_clock(begin) if clock.stands_at is None else nullcontext():
        chosen = None if jobs is None else {job.pk for subject in jobs for job in stored_jobs(subject)}
        with _prepared(apart=chosen is not None), noting() as exceptions:
            return _Stepper(chosen, namespace, exceptions, raising=raising).run_until(until)


@contextmanager
def _prepared(*, apart: bool) -> Iterator[None]:
    """The settings of a node that does nothing ahead and tells nobody outside. ``apart``: it leads single jobs."""
    changed = {
        "DCRON_DISPATCHER": "thread",
        "DCRON_LOOK_AHEAD": timedelta(),
        "DCRON_MIDDLEWARE": [
            "django_dcron.testing.raising.note_exceptions",
            *(path for path in settings.MIDDLEWARE if not path.startswith(NOT_IN_TESTS)),
        ],
    }
    if apart:
        changed["DCRON_SHARDS"] = A_SHARD_EACH
    # What a job prints is kept by a wrapper around stdout, which stays there for good in a worker.
    with override_settings(**changed), redirect_stdout(sys.stdout):
        yield


class _Stepper:
    def __init__(
        self, jobs: set[int] | None, namespace: str, exceptions: list[BaseException], *, raising: bool
    ):
        """``exceptions``: filled as attempts end. ``raising``: one is raised as soon as it is there."""
        self._clock = ClusterClock()
        self._membership = _OnlyNode(jobs, namespace, self._clock)
        self._jobs = jobs
        self._namespace = namespace
        self._exceptions = exceptions
        self._raising = raising
        self._keeper = _KeptByHand()
        self._attempts = 0
        self._handled: dict[UUID, None] = {}
        """The runs that were handed over or have ended, in order."""
        self._executed: set[UUID] = set()

    def run_until(self, until: datetime) -> list[Run]:
        before = set(self._ended_now())
        try:
            self._run_what_is_due()
            while (following := self._next_instant(clock.now(), until)) is not None:
                clock.stands_at = following
                self._run_what_is_due()
            if clock.now() < until:
                clock.stands_at = until
                self._run_what_is_due()
            elif clock.now() <= until + BESIDE:  # else a job has moved it
                clock.stands_at = until
        finally:
            give_back(self._membership.id)
        runs = transitions.runs().select_related("job").in_bulk(set(self._handled) - before)
        handled = [runs[run_id] for run_id in self._handled if run_id in runs]
        return [run for run in handled if run.is_final or run.pk in self._executed]

    def _run_what_is_due(self) -> None:
        """All of it: what ends now may be followed by others, or try again at once."""
        while True:
            handed_over = self._tick()
            self._handle(self._ended_now())
            self._handle(run.run_id for run in handed_over)
            try:
                for run in handed_over:
                    self._execute(run)
            except BaseException:
                transitions.take_back(run.key for run in handed_over)  # those not begun
                raise
            self._handle(self._ended_now())
            if not handed_over or not self._more_is_due():
                return

    def _handle(self, run_ids: Iterable[UUID]) -> None:
        self._handled |= dict.fromkeys(run_ids)

    def _tick(self) -> list[DueRun]:
        queue = Queue()
        agenda = Agenda(queue, self._clock)
        ticker = Ticker(self._membership, agenda, self._clock)
        try:
            ticker.tick(adopt_own=True, once=True)
        finally:
            ticker.close()
        agenda.hand_over_due()
        ticker.mark_delivered()
        return queue.messages

    def _execute(self, run: DueRun) -> None:
        self._attempts += 1
        if self._attempts > MOST:
            raise RuntimeError(
                f"run_due has made {MOST} attempts, the next one of {run.job_name}, and it is {clock.now().isoformat()}: "
                "choose an earlier time, or some jobs"
            )
        with _no_timers_left(), suppress(UnknownRun):  # deleted by a job that ran before it
            if execute(run.run_id, run.attempt, worker=WORKER, keeper=self._keeper):
                self._executed.add(run.run_id)
        while self._exceptions:
            exception = self._exceptions.pop()
            if self._raising or not isinstance(exception, (Exception, SystemExit)):  # pytest.fail, say
                raise exception

    def _more_is_due(self) -> bool:
        """Whether another tick at this instant may find something: it takes longer than to look."""
        now, runs = clock.now(), self._runs()
        due = runs.pending().due(now) | runs.waiting()
        return due.exists() or self._cursors().due(now).exists()

    def _next_instant(self, after: datetime, until: datetime) -> datetime | None:
        """When something falls due next, or a pause is over; None: not until then."""
        using = alias_for(Run)
        paused = self._of_mine(Job.objects.using(using).filter(enabled=False), "pk", "namespace")
        ahead = [
            _first(self._cursors().filter(problem=""), "next_at", after, until),
            _first(self._runs().pending(), "due_at", after, until + BESIDE),
            _first(paused, "paused_until", after, until),
        ]
        return min((instant for instant in ahead if instant is not None), default=None)

    def _ended_now(self) -> Sequence[UUID]:
        """The runs that have ended at this very instant, be it that they never started."""
        ended = self._runs().finished().filter(finished_at=clock.now())
        return list(ended.order_by("scheduled_at", "pk").values_list("pk", flat=True))

    def _runs(self) -> RunQuerySet:
        runs: RunQuerySet = self._of_mine(transitions.runs(), "job", "job__namespace")
        return runs

    def _cursors(self) -> CursorQuerySet:
        cursors: CursorQuerySet = self._of_mine(Cursor.objects.using(alias_for(Cursor)), "job", "namespace")
        return cursors

    def _of_mine(self, rows: Any, job: str, namespace: str) -> Any:
        if self._jobs is not None:
            rows = rows.filter(**{f"{job}__in": self._jobs})
        return rows.filter(**{namespace: self._namespace}) if self._namespace else rows


@contextmanager
def _no_timers_left() -> Iterator[None]:
    """Those of a job's timeout are cancelled, which each notices in its own time."""
    before = set(threading.enumerate())
    try:
        yield
    finally:
        for thread in set(threading.enumerate()) - before:
            if isinstance(thread, threading.Timer) and thread.finished.is_set():
                thread.join()


def _first(rows: QuerySet[Any], field: str, after: datetime, until: datetime) -> datetime | None:
    ahead = rows.filter(**{f"{field}__gt": after, f"{field}__lte": until})
    first: datetime | None = ahead.aggregate(first=Min(field))["first"]
    return first


class _OnlyNode(Membership):
    """Leads whatever it is to lead, without heartbeat, row or lock: there is no other node to share with."""

    def __init__(self, jobs: set[int] | None, namespace: str, clock: ClusterClock):
        super().__init__(WORKER, namespace, DatabaseLock(), clock)
        self._jobs = jobs

    @property
    def shards(self) -> frozenset[int]:
        return frozenset(range(settings.SHARDS) if self._jobs is None else self._jobs)

    def ticked(self) -> None:
        """There is no row to say so."""


class Queue:
    """The dispatcher: what was handed over."""

    address = "this thread"
    batch_size = 2000

    def __init__(self) -> None:
        self.messages: list[DueRun] = []

    def prepare(self, run: DueRun) -> DueRun:
        return run

    def publish(self, prepared: Sequence[DueRun]) -> None:
        self.messages += prepared

    def revoke(self, run_id: UUID, attempt: int, worker: str = "") -> None:
        """Nothing is executed while somebody else could ask for it."""

    def take_back(self) -> list[tuple[UUID, int]]:
        return []

    def executing(self) -> list[str]:
        return []

    def close(self, wait: bool = True) -> None:
        """There is nothing to let go of."""


class _KeptByHand(Heart):
    """Without a thread, which would not see what is in a test's transaction: it beats when the job's code asks for it."""

    @contextmanager
    def watching(self, run: CurrentRun, *, looks: int | None = None) -> Iterator[None]:
        run.ask_for_beat = lambda: _beat(run)
        yield


def _beat(run: CurrentRun) -> None:
    asked_to_stop = transitions.runs().filter(pk=run.id).exclude(cancel_requested_at=None)
    if not transitions.beat(run.id, run.attempt) or asked_to_stop.exists():
        run.cancel()
