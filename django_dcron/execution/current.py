"""``current_run()``: the run under execution, as the job's code sees it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime, timedelta
from functools import cached_property
from uuid import UUID, uuid4

from django_dcron.conf import settings
from django_dcron.db import clock
from django_dcron.exceptions import RunCancelled, RunTimedOut
from django_dcron.execution.interruption import Interruption
from django_dcron.models import Job, Run
from django_dcron.utils.bounded_text import BoundedText, replace_unstorable

NOTE_LIMIT = 255
MAX_PROGRESS = 2**63 - 1
"""The largest number that a progress column stores."""
MIN_HEARTBEAT_INTERVAL = 1.0
"""Seconds between two heartbeats that a run requests. A tight loop must not load the database."""
NO_JOB = "no-job"
"""The name of the job outside of a run."""
PROGRESS_COLUMNS = ("progress_done", "progress_total", "progress_note")

_current: ContextVar[CurrentRun | None] = ContextVar("dcron_current_run", default=None)


def current_run() -> CurrentRun:
    """Return the run to which the calling code belongs.

    Outside of a run, and in threads that the job starts, ``is_active`` is false. The job's code can
    therefore also be called directly, in a test or with ``.delay()``. The returned run then has no
    timeout, and ``progress`` and ``heartbeat`` record nothing. ``scheduled_at`` and ``started_at``
    are now, ``attempt`` is 1, ``fence`` is 0, ``id`` is random, and ``job`` is an unsaved job named
    ``no-job``.
    """
    return active_run() or _inactive_run()


def active_run() -> CurrentRun | None:
    """Return the run to which the calling code belongs, or None outside of a run."""
    return _current.get()


def _inactive_run() -> CurrentRun:
    now = clock.now()
    # An unsaved job with a schedule without occurrences, so ``previous_scheduled_at`` is None.
    job = Job(name=NO_JOB, schedule="@never", timezone="UTC", timeout=None)
    run = CurrentRun(Run(job=job, scheduled_at=now, attempt=1), now, token=uuid4(), worker="")
    run.is_active = False
    return run


@contextmanager
def as_current(run: CurrentRun) -> Iterator[None]:
    token = _current.set(run)
    try:
        yield
    finally:
        _current.reset(token)


class CurrentRun:
    """One attempt of a run during its execution.

    The thread that executes the attempt creates the object.
    """

    def __init__(
        self,
        run: Run,
        started_at: datetime,
        *,
        token: UUID,
        worker: str,
        fence: int = 0,
        timeout_exception: type[Exception] = RunTimedOut,
        end_process: Callable[[], None] | None = None,
    ):
        self.is_active = True
        """Whether the code runs as a job. False outside of a run."""
        self.run = run
        self.started_at = started_at
        """The start of the attempt, by the database's clock."""
        self.attempt = run.attempt
        """The number of the attempt, counted from 1."""
        self.token = token
        self.fence = fence
        """The fencing token: a whole number below ``2**63`` that grows with each start.

        The token is greater than those of all attempts, of this or any other run, that started
        before this attempt. No two attempts have the same token. 0 outside of a run.
        """
        self.worker = worker
        self.timeout_exception = timeout_exception
        self.end_process = end_process
        self.interruption = Interruption()
        self.log = BoundedText(settings.LOG_LIMIT)
        self.request_heartbeat: Callable[[], None] | None = None
        """Writes a heartbeat at once. ``Heartbeats.keep_alive`` sets it."""
        self._heartbeat_requested_at = -MIN_HEARTBEAT_INTERVAL
        """Seconds from ``_began`` to the latest heartbeat that the job's code requested."""
        self._began = time.monotonic()
        self.lost_heartbeat = False
        """Whether the run was stopped because its heartbeats couldn't be written."""
        self.ignored_timeout = False
        """Whether the run was stopped because its code continued for too long after its timeout."""
        self.code_ended = False
        """Whether the job's code has ended, so that only the outcome remains to be recorded."""
        self._cancelled = threading.Event()
        self._progress: tuple[int, int | None, str] | None = None

    def __repr__(self) -> str:
        return (
            f"<CurrentRun {self.job} of {self.scheduled_at:%Y-%m-%d %H:%M:%S} UTC, attempt "
            f"{self.attempt}>"
        )

    @property
    def id(self) -> UUID:
        """The id of the run."""
        return self.run.pk

    @property
    def job(self) -> Job:
        """The job, as it was when the attempt started."""
        return self.run.job

    @cached_property
    def scheduled_at(self) -> datetime:
        """The run's occurrence, as an aware UTC datetime. A rerun has the occurrence of the
        original run.
        """
        return (self.run.rerun_of or self.run).scheduled_at

    @cached_property
    def previous_scheduled_at(self) -> datetime | None:
        """The occurrence before this run and before the missed occurrences that it counts.

        ``[previous_scheduled_at, scheduled_at)`` is the period that this run covers. Earlier runs
        may have failed or been skipped. Code that must process everything has to store how far it
        got.
        """
        run = self.run.rerun_of or self.run
        return self.job.parsed_schedule.previous_before(run.missed_from or run.scheduled_at)

    @property
    def timeout(self) -> timedelta | None:
        """The timeout of the job, or None."""
        return self.job.timeout

    @property
    def deadline(self) -> datetime | None:
        """The time at which the timeout ends the attempt, or None."""
        return self.started_at + self.timeout if self.timeout else None

    @property
    def time_left(self) -> timedelta | None:
        """The time until the deadline, by this machine's monotonic clock, or None without a
        timeout.
        """
        if clock.fixed_at is not None:
            return self.deadline - clock.now() if self.deadline else None
        return (
            self.timeout - timedelta(seconds=time.monotonic() - self._began)
            if self.timeout
            else None
        )

    @property
    def cancelled(self) -> bool:
        """Whether the code must stop. ``RunCancelled`` is raised in the code as well.

        The run was cancelled, its code continued after its timeout, or the worker couldn't write
        its heartbeats.
        """
        return self._cancelled.is_set()

    def heartbeat(self) -> None:
        """Write a heartbeat now. Raises ``RunCancelled`` if the code must stop (``cancelled``).

        A background thread writes a heartbeat every third of ``DCRON_RUN_LEASE``, so only code that
        keeps other threads from running needs to call this method. The background thread writes
        this heartbeat, too, because a transaction of the job would keep the row locked. A heartbeat
        is written at most once a second.
        """
        elapsed = time.monotonic() - self._began
        if (
            self.request_heartbeat is not None
            and elapsed - self._heartbeat_requested_at >= MIN_HEARTBEAT_INTERVAL
        ):
            self._heartbeat_requested_at = elapsed
            self.request_heartbeat()
        if self.cancelled:
            raise RunCancelled

    def progress(self, done: int, total: int | None = None, note: str = "") -> None:
        """Record progress, which the admin shows after the next heartbeat.

        Raises ``RunCancelled`` if the code must stop (``cancelled``).

        ``done`` and ``total`` are numbers of steps; ``note`` is a text of up to 255 characters.
        """
        self._progress = (
            _whole_number(done),
            None if total is None else _whole_number(total),
            replace_unstorable(str(note)[:NOTE_LIMIT]),
        )
        if self.cancelled:
            raise RunCancelled

    def cancel(self) -> None:
        """Stop the job's code. Called from another thread."""
        self._cancelled.set()
        self.interruption.interrupt(RunCancelled)

    def stop_without_heartbeat(self) -> None:
        """Stop the job's code, because a node may have declared the run lost.

        Called from another thread.
        """
        self.lost_heartbeat = True
        self.cancel()

    def stop_after_hard_timeout(self) -> bool:
        """Interrupt the job's code again, because it has continued for too long after its timeout.

        Called from another thread. Returns False, and does nothing, if the code has returned.
        """
        marked = False

        def mark() -> None:
            nonlocal marked
            marked = True
            self.ignored_timeout = not self.cancelled
            self._cancelled.set()

        self.interruption.interrupt(RunCancelled, again=True, before=mark)
        return marked

    def output(self) -> dict[str, str | int | None]:
        """Return the log and progress so far, as columns of the attempt."""
        columns: dict[str, str | int | None] = {"log": self.log.getvalue()}
        if self._progress is not None:
            columns |= zip(PROGRESS_COLUMNS, self._progress, strict=True)
        return columns


def _whole_number(number: float) -> int:
    return min(max(int(number), 0), MAX_PROGRESS)
