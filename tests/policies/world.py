"""A job of every ten minutes, its scheduler and its workers, and a clock that a test moves.

All of it is real: each pass of the scheduler is a node that registers, claims, adopts, rescues, hands over and leaves; what
a worker takes goes through ``execute``, in a thread of its own, on the database of the session. Only time is not waited
for: to let it pass, everything that was written is moved into the past. And the queue between the two is a list, so
that a test says when the workers take what is in it.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

from django.db import connections
from django.db.models import F

from django_dcron import current_run
from django_dcron.dispatch import DueRun
from django_dcron.domain.lifecycle import FINAL, State
from django_dcron.exceptions import RunCancelled
from django_dcron.execution.executor import execute
from django_dcron.execution.start import start
from django_dcron.locks import get_lock
from django_dcron.models import Attempt, Cursor, Job, Run, Statistics
from django_dcron.models.database import database_now
from django_dcron.scheduler.runner import Runner
from django_dcron.testing.stepping import Queue
from tests.factories import make_job
from tests.waiting import wait_until

INTERVAL = timedelta(minutes=10)
PATIENCE = 60.0
INSTANT = timedelta(microseconds=1)

LETTERS = {
    State.SUCCEEDED: {"S": ""},
    State.FAILED: {"F": "gave no sign of life", "E": "RuntimeError"},
    State.SKIPPED: {"K": "was unfinished", "r": "replaced by the run of"},
    State.CANCELLED: {"C": "by hand", "R": "replaced by the run of"},
    State.MISSED: {"M": "within 0:03:00", "D": "by its start deadline"},
}
"""How an outcome is written, by the run's state and what its reason says."""


def every_ten_minutes(phase: datetime) -> str:
    """A schedule of which ``phase`` is an occurrence."""
    return f"{phase.second} {phase.minute % 10}/10 * * * *"


def move_into_the_past(delta: timedelta, *, heartbeats: bool = True) -> None:
    """Everything that was written. By tens of minutes, so that the schedule's occurrences stay where they are; and row by
    row, oldest first: two runs of a job may not be at the same instant even for a moment."""
    assert not delta % INTERVAL
    columns = ["scheduled_at", "due_at", "claimed_at", "queued_at", "started_at", "finished_at"]
    columns += ["missed_from", "cancel_requested_at"] + ["heartbeat_at"] * heartbeats
    moved = {name: F(name) - delta for name in columns}
    for pk in Run.objects.order_by("scheduled_at").values_list("pk", flat=True):
        Run.objects.filter(pk=pk).update(**moved)
    Attempt.objects.update(started_at=F("started_at") - delta, finished_at=F("finished_at") - delta)
    Cursor.objects.update(**{name: F(name) - delta for name in ("next_at", "previous_at", "placed_at")})
    Statistics.objects.update(last_finished_at=F("last_finished_at") - delta)


class World:
    """``into``: how long after an occurrence it is whenever the clock stands still, to the second."""

    def __init__(self, register: Callable[..., str], *, into: timedelta = timedelta(), **job: Any):
        self.queue = Queue()
        self.long = False
        """Whether work takes until it may end, and when told to stop also the tidying up; else no time at all."""
        self.failing = 0
        """So many of the next attempts raise an error."""
        self.workers = True
        """Whether there are any: only then do heartbeats stay fresh as time passes."""
        self.most_at_once = 0
        self.started: list[UUID] = []
        self._told: set[UUID] = set()
        """Those whose code was told to stop."""
        self._at_work: dict[UUID, threading.Event] = {}
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        phase = database_now("default").replace(microsecond=0) - into
        self.job: Job = make_job(
            **{
                "target": register(self._work),
                "schedule": every_ten_minutes(phase),
                "misfire_grace": timedelta(minutes=3),
            }
            | job
        )
        self.first = next_occurrence(self.job)
        self.began = self.first - INSTANT

    # --- what a test lets happen --------------------------------------------------------------------------------------

    def pass_minutes(self, minutes: int) -> None:
        delta = timedelta(minutes=minutes)
        move_into_the_past(delta, heartbeats=not self.workers)
        self.first -= delta
        self.began -= delta

    def tick(self) -> None:
        """One pass of the scheduler, as ``runcron --once`` makes it."""
        Runner(name="node", namespace="", lock=get_lock("database"), dispatcher=self.queue).run_once()

    def deliver(self) -> None:
        """Workers take all that is queued: each message once the one before is at work or has come to nothing."""
        messages, self.queue.messages = self.queue.messages, []
        for message in messages:
            thread = threading.Thread(target=self._execute, args=message.key)
            self._threads.append(thread)
            thread.start()
            wait_until(lambda: self._has_settled(thread, message), PATIENCE, what="a delivery")  # noqa: B023

    def occurrence(self) -> None:
        """The next one falls due, is handed over and taken."""
        self.pass_minutes(10)
        self.tick()
        self.deliver()

    def die_at_work(self) -> None:
        """Workers take what is queued, and are gone without a word."""
        for message in self.queue.messages:
            assert start(*message.key, token=uuid4(), worker="gone/1")
        self.queue.messages = []
        self.workers = False

    def settle(self) -> None:
        """All that is at work may end, and whatever follows from that is done; quickly."""
        self.long = False
        for _ in range(20):
            self._end_work()
            if not self.queue.messages and not self._unfinished():
                return
            self.tick()
            self.deliver()
        raise AssertionError(f"still unfinished: {list(self._unfinished().values())}")

    def close(self) -> None:
        self.long = False
        self._end_work()

    def run(self, number: int) -> Run:
        """The run of the job's ``number``-th occurrence, from 1."""
        return Run.objects.select_related("job").get(scheduled_at=self.first + (number - 1) * INTERVAL)

    # --- what came of it ----------------------------------------------------------------------------------------------

    def outcomes(self) -> str:
        """A letter for each occurrence up to now."""
        return outcomes(self.job, self.first)

    def copies(self) -> Counter[UUID]:
        """How many messages of each run are queued."""
        return Counter(message.run_id for message in self.queue.messages)

    def order(self) -> list[int]:
        """The numbers of the occurrences that were started, in the order of their first starts."""
        at = dict(Run.objects.values_list("pk", "scheduled_at"))
        return [round((at[run_id] - self.first) / INTERVAL) + 1 for run_id in dict.fromkeys(self.started)]

    def _unfinished(self) -> Any:
        return Run.objects.filter(scheduled_at__lte=database_now("default")).exclude(state__in=FINAL)

    # --- the workers --------------------------------------------------------------------------------------------------

    def _execute(self, run_id: UUID, attempt: int) -> None:
        try:
            execute(run_id, attempt, worker="w/1")
        finally:
            connections.close_all()

    def _work(self) -> None:
        run = current_run()
        assert run is not None
        with self._lock:
            may_end = self._at_work[run.id] = threading.Event()
            self.started.append(run.id)
            self.most_at_once = max(self.most_at_once, len(self._at_work))
            fails, self.failing = self.failing > 0, self.failing - 1
            if not self.long:
                may_end.set()
        try:
            if fails:
                raise RuntimeError("as asked")
            _wait(may_end)
        except RunCancelled:
            assert run.cancelled
            self._told.add(run.id)
            _wait(may_end)
            raise
        finally:
            with self._lock:
                del self._at_work[run.id]

    def _has_settled(self, thread: threading.Thread, message: DueRun) -> bool:
        return not thread.is_alive() or (self.long and message.run_id in self._at_work)

    def _end_work(self) -> None:
        """Whatever was asked to stop has been told by then: nobody would know otherwise which of the two came first."""
        asked = Run.objects.running().filter(pk__in=list(self._at_work), cancel_requested_at__isnull=False)
        for run in asked:
            wait_until(lambda: run.pk in self._told, PATIENCE, what=f"{run} to be told to stop")  # noqa: B023
        with self._lock:
            for may_end in self._at_work.values():
                may_end.set()
        for thread in self._threads:
            thread.join(PATIENCE)
            assert not thread.is_alive()
        self._threads.clear()


def _wait(event: threading.Event) -> None:
    """Little by little: an exception reaches a thread only between two steps."""
    while not event.wait(0.005):
        pass


def next_occurrence(job: Job) -> datetime:
    next_at = Cursor.objects.get(pk=job.pk).next_at
    assert next_at is not None
    return next_at


def outcomes(job: Job, first: datetime) -> str:
    """A letter for each of the job's occurrences from ``first`` up to now."""
    now = database_now("default")
    runs = {run.scheduled_at: run for run in Run.objects.filter(job=job, scheduled_at__lte=now)}
    instants = [first + number * INTERVAL for number in range((now - first) // INTERVAL + 1)]
    return "".join(
        _letter(runs[instant]) if instant in runs else _counted(instant, runs.values())
        for instant in instants
    )


def _counted(instant: datetime, runs: Iterable[Run]) -> str:
    stand = [run for run in runs if run.missed_from and run.missed_from <= instant < run.scheduled_at]
    return "m" if len(stand) == 1 else "?"


def _letter(run: Run) -> str:
    letters = LETTERS.get(State(run.state), {})
    return next(
        (letter for letter, said in letters.items() if said in run.reason), f"({run.state}: {run.reason})"
    )
