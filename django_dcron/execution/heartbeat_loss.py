"""Stop the runs of a worker process whose heartbeats can't be written.

A thread stops each run whose last heartbeat is older than
``DCRON_STOP_WITHOUT_HEARTBEAT_AFTER``: from then on, a node may declare the run lost.

Invariants:

- The age of a heartbeat counts from before it was sent. A run is therefore stopped at most
  ``DCRON_STOP_WITHOUT_HEARTBEAT_AFTER`` after the heartbeat time in its row.
- A locked row counts as contact for about a third of ``DCRON_RUN_LEASE``. During the lock, nobody
  can declare the run lost. Afterwards, rescue spares it for half a lease
  (``scheduler.delayed_heartbeats``).
- The thread never uses the database. A database that blocks the heartbeats can't block this thread.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from django_dcron.conf import settings
from django_dcron.execution.current import CurrentRun
from django_dcron.utils.threads import DcronThread

logger = logging.getLogger("django_dcron.runs")

RETRY_AFTER = 1.0
"""The maximum number of seconds until a heartbeat that couldn't be written is tried again."""
NEVER = float("inf")


@dataclass(eq=False)
class RunHeartbeat:
    """The heartbeats of one run."""

    run: CurrentRun
    written: dict[str, str | int | None] = field(default_factory=dict)
    """The log and progress last written."""
    failed: bool = False
    """Whether the last heartbeat failed: the database was unreachable or the row was locked."""
    last_sent_at: float = field(default_factory=time.monotonic)
    """When the last heartbeat that succeeded was sent, on the monotonic clock."""
    locked_at: float = -NEVER
    """When the row was last found locked, on the monotonic clock."""
    limit: float = NEVER
    """Seconds without a successful heartbeat after which the run is stopped."""
    stopped: bool = False
    """Whether the run was stopped because its heartbeats couldn't be written."""

    @property
    def deadline(self) -> float:
        """When to stop the run unless a heartbeat succeeds first, on the monotonic clock."""
        if self.stopped or self.run.code_ended:
            return NEVER
        return max(self.last_sent_at + self.limit, self.locked_at + _lock_allowance())


class HeartbeatLossStops:
    """The thread that stops runs at their deadlines.

    ``heartbeats``: all runs of this process. They change under ``lock``.
    """

    def __init__(self, heartbeats: Sequence[RunHeartbeat], lock: threading.Lock) -> None:
        self._heartbeats = heartbeats
        self._lock = lock
        self._thread: threading.Thread | None = None
        self._earlier_deadline = threading.Condition(lock)
        """Notified when a run must be stopped before the next check."""
        self._next_check_at = NEVER
        """When the thread checks next, on the monotonic clock."""

    def plan(self, heartbeat: RunHeartbeat) -> None:
        """Make the thread check at the deadline of a new run, at the latest.

        The caller has the lock.
        """
        if heartbeat.deadline >= self._next_check_at:
            return
        if self._thread is None:
            thread = DcronThread(target=self._run, name="dcron-heartbeat-loss", daemon=True)
            thread.start()
            self._thread = thread
        else:
            self._earlier_deadline.notify()
        self._next_check_at = heartbeat.deadline

    def _run(self) -> None:
        while True:
            with self._lock:
                self._next_check_at = min(
                    (heartbeat.deadline for heartbeat in self._heartbeats), default=NEVER
                )
                pause = self._next_check_at - time.monotonic()
                if pause > 0:
                    self._earlier_deadline.wait(
                        None if pause == NEVER else min(pause, threading.TIMEOUT_MAX)
                    )
                overdue = [
                    heartbeat
                    for heartbeat in self._heartbeats
                    if heartbeat.deadline <= time.monotonic()
                ]
            for heartbeat in overdue:
                heartbeat.stopped = True
                try:
                    _stop_without_heartbeat(heartbeat)
                # For example, no thread can be started. The other runs must still be stopped.
                except Exception:
                    extra = {"event": "not_stopped_without_heartbeat", **log_fields(heartbeat.run)}
                    logger.exception("run not stopped: job=%s", heartbeat.run.job, extra=extra)


def _stop_without_heartbeat(heartbeat: RunHeartbeat) -> None:
    """Stop the job's code. If the code doesn't stop, end its process, if that is possible."""
    run = heartbeat.run
    logger.error(
        "run stopped, heartbeat not written: job=%s since=%.0fs",
        run.job,
        time.monotonic() - heartbeat.last_sent_at,
        extra={"event": "stopped_without_heartbeat", **log_fields(run)},
    )
    run.stop_without_heartbeat()
    after_grace_period(_end_unrecorded, run)


def _end_unrecorded(run: CurrentRun) -> None:
    """End the process without recording an outcome, because that would need the database."""
    if run.end_process is not None and run.interruption.armed:
        run.end_process()


def after_grace_period(end: Callable[[CurrentRun], None], run: CurrentRun) -> None:
    """Call ``end`` after ``DCRON_HARD_TIMEOUT_AFTER``, if the run has a process to end."""
    if run.end_process is not None:
        timer = threading.Timer(settings.HARD_TIMEOUT_AFTER.total_seconds(), end, [run])
        timer.daemon = True
        timer.start()


def log_fields(run: CurrentRun) -> dict[str, str | int]:
    """Return the structured fields for log records about ``run``."""
    return {"job": str(run.job), "run": str(run.id), "attempt": run.attempt, "worker": run.worker}


def _lock_allowance() -> float:
    """Return the seconds that a locked row counts as contact: long enough for another try."""
    lease = settings.RUN_LEASE.total_seconds()
    return min(max(lease / 3, 2 * RETRY_AFTER), lease)
