"""A job with an occurrence every ten minutes, its scheduler and workers, and a simulated clock.

All parts are real. Each pass of the scheduler is a node that registers, claims, adopts, rescues,
dispatches and leaves. Each message that a worker takes goes through ``execute``, in its own thread,
on the real database.

Only the time is simulated: to let it pass, the test moves all rows into the past. The queue is a
list, so that a test decides when workers take messages.
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
from django_dcron.db.now import database_now
from django_dcron.dispatch import DueRun
from django_dcron.exceptions import RunCancelled
from django_dcron.execution.executor import execute
from django_dcron.locks import get_lock
from django_dcron.models import Attempt, Cursor, Job, Run, Statistics
from django_dcron.policies.lifecycle import FINAL, State
from django_dcron.runs.start import start_attempt
from django_dcron.scheduler.runner import Runner
from django_dcron.testing.stepping import CollectingDispatcher
from tests.factories import make_job
from tests.waiting import TIMEOUT, wait_until

INTERVAL = timedelta(minutes=10)
MICROSECOND = timedelta(microseconds=1)

LETTERS = {
    State.SUCCEEDED: {"S": ""},
    State.FAILED: {"F": "no heartbeat from", "E": "RuntimeError"},
    State.SKIPPED: {"K": "was unfinished", "r": "replaced by the run of"},
    State.CANCELLED: {"C": "by hand", "R": "replaced by the run of"},
    State.MISSED: {"M": "within 3m", "D": "start deadline"},
}
"""The letter of an outcome, by the run's state and a part of its reason."""


def every_ten_minutes(phase: datetime) -> str:
    """A schedule that has ``phase`` as an occurrence."""
    return f"{phase.second} {phase.minute % 10}/10 * * * *"


def move_into_the_past(delta: timedelta, *, heartbeats: bool = True) -> None:
    """Move all rows into the past, by a multiple of ten minutes, so that they match the schedule.

    Rows move one by one, oldest first: two runs of a job may never have the same instant, even for
    a moment.
    """
    assert not delta % INTERVAL
    columns = ["scheduled_at", "due_at", "claimed_at", "queued_at", "started_at", "finished_at"]
    columns += ["missed_from", "cancel_requested_at"] + ["heartbeat_at"] * heartbeats
    moved = {name: F(name) - delta for name in columns}
    for pk in Run.objects.order_by("scheduled_at").values_list("pk", flat=True):
        Run.objects.filter(pk=pk).update(**moved)
    Attempt.objects.update(started_at=F("started_at") - delta, finished_at=F("finished_at") - delta)
    Cursor.objects.update(
        **{name: F(name) - delta for name in ("next_at", "previous_at", "placed_at")}
    )
    Statistics.objects.update(last_finished_at=F("last_finished_at") - delta)


class World:
    """The simulated clock starts ``into`` after an occurrence, and only the test moves it."""

    def __init__(self, register: Callable[..., str], *, into: timedelta = timedelta(), **job: Any):
        self.queue = CollectingDispatcher()
        self.holds_work = False
        """Whether the job's code waits until the test lets it end. Otherwise, it ends at once.

        The same applies to the cleanup after a cancellation.
        """
        self.failing = 0
        """Number of the next attempts that raise an error."""
        self.workers = True
        """Whether there are workers. Only then do heartbeats stay recent as time passes."""
        self.max_concurrent = 0
        self.started: list[UUID] = []
        self._stopped: set[UUID] = set()
        """Ids of the runs whose code has been cancelled."""
        self._executing: dict[UUID, threading.Event] = {}
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
        self.began = self.first - MICROSECOND

    # --- actions ---------------------------------------------------------------------------------

    def pass_minutes(self, minutes: int) -> None:
        delta = timedelta(minutes=minutes)
        move_into_the_past(delta, heartbeats=not self.workers)
        self.first -= delta
        self.began -= delta

    def tick(self) -> None:
        """One pass of the scheduler, as with ``runcron --once``."""
        Runner(
            name="node", namespace="", lock=get_lock("database"), dispatcher=self.queue
        ).run_once()

    def deliver(self) -> None:
        """Let workers take all messages, each once the previous one executes or is dropped."""
        messages, self.queue.messages = self.queue.messages, []
        for message in messages:
            thread = threading.Thread(target=self._execute, args=message.key)
            self._threads.append(thread)
            thread.start()
            wait_until(lambda: self._has_settled(thread, message), TIMEOUT, what="a delivery")  # noqa: B023

    def occurrence(self) -> None:
        """Let the next occurrence become due, dispatch it and deliver it."""
        self.pass_minutes(10)
        self.tick()
        self.deliver()

    def die_while_executing(self) -> None:
        """Let workers start the queued runs and then die silently."""
        for message in self.queue.messages:
            assert start_attempt(*message.key, token=uuid4(), worker="gone/1")
        self.queue.messages = []
        self.workers = False

    def settle(self) -> None:
        """Let all executing runs end quickly, and process everything that follows."""
        self.holds_work = False
        for _ in range(20):
            self._end_work()
            if not self.queue.messages and not self._unfinished():
                return
            self.tick()
            self.deliver()
        raise AssertionError(f"still unfinished: {list(self._unfinished().values())}")

    def close(self) -> None:
        self.holds_work = False
        self._end_work()

    def run(self, number: int) -> Run:
        """The run of the job's ``number``-th occurrence, counted from 1."""
        return Run.objects.select_related("job").get(
            scheduled_at=self.first + (number - 1) * INTERVAL
        )

    # --- outcomes --------------------------------------------------------------------------------

    def outcomes(self) -> str:
        """A letter for each occurrence up to now."""
        return outcomes(self.job, self.first)

    def copies(self) -> Counter[UUID]:
        """The number of queued messages of each run."""
        return Counter(message.run_id for message in self.queue.messages)

    def order(self) -> list[int]:
        """The numbers of the started occurrences, in the order of their first starts."""
        at = dict(Run.objects.values_list("pk", "scheduled_at"))
        return [
            round((at[run_id] - self.first) / INTERVAL) + 1
            for run_id in dict.fromkeys(self.started)
        ]

    def _unfinished(self) -> Any:
        return Run.objects.filter(scheduled_at__lte=database_now("default")).exclude(
            state__in=FINAL
        )

    # --- the workers -----------------------------------------------------------------------------

    def _execute(self, run_id: UUID, attempt: int) -> None:
        try:
            execute(run_id, attempt, worker="w/1")
        finally:
            connections.close_all()

    def _work(self) -> None:
        run = current_run()
        assert run is not None
        with self._lock:
            may_end = self._executing[run.id] = threading.Event()
            self.started.append(run.id)
            self.max_concurrent = max(self.max_concurrent, len(self._executing))
            fails, self.failing = self.failing > 0, self.failing - 1
            if not self.holds_work:
                may_end.set()
        try:
            if fails:
                raise RuntimeError("as requested")
            _wait(may_end)
        except RunCancelled:
            assert run.cancelled
            self._stopped.add(run.id)
            _wait(may_end)
            raise
        finally:
            with self._lock:
                del self._executing[run.id]

    def _has_settled(self, thread: threading.Thread, message: DueRun) -> bool:
        return not thread.is_alive() or (self.holds_work and message.run_id in self._executing)

    def _end_work(self) -> None:
        """End all work once the code of each cancelled run has been interrupted.

        This makes the order certain.
        """
        asked = Run.objects.running().filter(
            pk__in=list(self._executing), cancel_requested_at__isnull=False
        )
        for run in asked:
            wait_until(lambda: run.pk in self._stopped, TIMEOUT, what=f"the cancel of {run}")  # noqa: B023
        with self._lock:
            for may_end in self._executing.values():
                may_end.set()
        for thread in self._threads:
            thread.join(TIMEOUT)
            assert not thread.is_alive()
        self._threads.clear()


def _wait(event: threading.Event) -> None:
    """Wait in short steps, because a thread gets an exception only between two steps."""
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
    counting = [
        run for run in runs if run.missed_from and run.missed_from <= instant < run.scheduled_at
    ]
    return "m" if len(counting) == 1 else "?"


def _letter(run: Run) -> str:
    letters = LETTERS.get(State(run.state), {})
    return next(
        (letter for letter, text in letters.items() if text in run.reason),
        f"({run.state}: {run.reason})",
    )
