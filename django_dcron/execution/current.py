"""The run under execution, as its own code sees it: ``current_run()``."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime, timedelta
from functools import cached_property
from uuid import UUID

from django_dcron.conf import settings
from django_dcron.domain import clock
from django_dcron.exceptions import RunCancelled, RunTimedOut
from django_dcron.execution.bounded_text import BoundedText, storable
from django_dcron.execution.interruption import Interruption
from django_dcron.models import Job, Run

NOTE_LIMIT = 255
LARGEST = 2**63 - 1
"""The largest number a column of progress takes."""
BEAT_AT_MOST_EVERY = 1.0
"""Seconds; ``heartbeat()`` in a tight loop must not become a load."""
PROGRESS_COLUMNS = ("progress_done", "progress_total", "progress_note")

_current: ContextVar[CurrentRun | None] = ContextVar("dcron_current_run", default=None)


def current_run() -> CurrentRun | None:
    """The run this code is executed for; None outside of one (and in threads the job's code starts)."""
    return _current.get()


@contextmanager
def as_current(run: CurrentRun) -> Iterator[None]:
    token = _current.set(run)
    try:
        yield
    finally:
        _current.reset(token)


class CurrentRun:
    """One attempt of a run, while it executes. Made by the thread that executes it."""

    def __init__(
        self,
        run: Run,
        started_at: datetime,
        *,
        token: UUID,
        worker: str,
        timeout_exception: type[Exception] = RunTimedOut,
        end_process: Callable[[], None] | None = None,
    ):
        self.run = run
        self.started_at = started_at
        """By the database's clock."""
        self.attempt = run.attempt
        """From 1."""
        self.token = token
        self.worker = worker
        self.timeout_exception = timeout_exception
        self.end_process = end_process
        self.interruption = Interruption()
        self.log = BoundedText(settings.LOG_LIMIT)
        self.ask_for_beat: Callable[[], None] | None = None
        """Beats at once; set by the heart that watches it."""
        self._beaten_at = -BEAT_AT_MOST_EVERY
        self._began = time.monotonic()
        self.unheard = False
        """Whether it was stopped because its heartbeats could not be written."""
        self._cancelled = threading.Event()
        self._progress: tuple[int, int | None, str] | None = None

    def __repr__(self) -> str:
        return f"<CurrentRun {self.job} of {self.scheduled_at:%Y-%m-%d %H:%M:%S} UTC, attempt {self.attempt}>"

    @property
    def id(self) -> UUID:
        return self.run.pk

    @property
    def job(self) -> Job:
        return self.run.job

    @cached_property
    def scheduled_at(self) -> datetime:
        """The occurrence it is for, aware UTC: not when it happens to run. A rerun is for that of the first run."""
        return (self.run.rerun_of or self.run).scheduled_at

    @cached_property
    def previous_scheduled_at(self) -> datetime | None:
        """The occurrence, by the job's schedule, before the one this run is for, and before the missed ones it stands for.

        ``[previous_scheduled_at, scheduled_at)`` is this run's share of time. Runs before it may have failed or been
        skipped: code that must leave nothing out has to keep its own mark of how far it got.
        """
        run = self.run.rerun_of or self.run
        return self.job.parsed_schedule.previous_before(run.missed_from or run.scheduled_at)

    @property
    def timeout(self) -> timedelta | None:
        return self.job.timeout

    @property
    def deadline(self) -> datetime | None:
        """When the timeout ends it; None: no limit."""
        return self.started_at + self.timeout if self.timeout else None

    @property
    def time_left(self) -> timedelta | None:
        """Until the deadline, by this machine's monotonic clock; None: no limit."""
        if clock.stands_at is not None:
            return self.deadline - clock.now() if self.deadline else None
        return self.timeout - timedelta(seconds=time.monotonic() - self._began) if self.timeout else None

    @property
    def cancelled(self) -> bool:
        """Whether somebody asked for it to stop. ``RunCancelled`` is raised in the code as well."""
        return self._cancelled.is_set()

    def heartbeat(self) -> None:
        """Say at once that it is alive, and learn at once of a cancel: raises ``RunCancelled``.

        A thread does so every third of ``DCRON_RUN_LEASE``; code need not, unless it holds the interpreter for long. It
        is that thread which writes: a transaction of the job's own would keep the row locked. Once a second at most.
        """
        elapsed = time.monotonic() - self._began
        if self.ask_for_beat is not None and elapsed - self._beaten_at >= BEAT_AT_MOST_EVERY:
            self._beaten_at = elapsed
            self.ask_for_beat()
        if self.cancelled:
            raise RunCancelled

    def progress(self, done: int, total: int | None = None, note: str = "") -> None:
        """Shown in the admin within a heartbeat. Raises ``RunCancelled`` if somebody asked for it to stop."""
        self._progress = (_whole(done), None if total is None else _whole(total), _note(note))
        if self.cancelled:
            raise RunCancelled

    def cancel(self) -> None:
        """Have it stop; called from another thread."""
        self._cancelled.set()
        self.interruption.interrupt(RunCancelled)

    def stop_unheard(self) -> None:
        """Have it stop, as others may have declared it lost; called from another thread."""
        self.unheard = True
        self.cancel()

    def output(self) -> dict[str, str | int | None]:
        """Its log and progress so far, as columns of its attempt."""
        columns: dict[str, str | int | None] = {"log": self.log.getvalue()}
        if self._progress is not None:
            columns |= zip(PROGRESS_COLUMNS, self._progress, strict=True)
        return columns


def _whole(number: float) -> int:
    return min(max(int(number), 0), LARGEST)


def _note(text: str) -> str:
    return storable(str(text)[:NOTE_LIMIT])
