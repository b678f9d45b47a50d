"""Write the heartbeats of all runs that a worker process executes.

One thread runs every third of ``DCRON_RUN_LEASE``. For each run, it writes the heartbeat and new
log and progress, and reads whether the run was cancelled or declared lost and must stop. The
process may ask for an extra round, and a run for an extra heartbeat.

Another thread stops runs whose heartbeats can't be written (``heartbeat_loss``).

Invariants:

- A heartbeat that couldn't be written is tried again soon.
- The thread doesn't wait for a locked row, because the lock's holder may be suspended.
- No error of one run ends the thread.
- A run that couldn't start because its rows were locked goes back to the nodes soon after they are
  unlocked. If this process ends first, rescue does the same after ``DCRON_REDELIVER_AFTER``.
"""

from __future__ import annotations

import logging
import os
import random
import threading
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from queue import Empty, SimpleQueue
from uuid import UUID

from django.db import connections

from django_dcron.conf import settings
from django_dcron.db.connection_sockets import set_connect_timeout
from django_dcron.db.contention import is_contention
from django_dcron.db.errors import UNAVAILABLE, in_one_line
from django_dcron.db.routing import alias_for
from django_dcron.db.session_limits import WaitLimits
from django_dcron.db.statements import Placeholder, Select
from django_dcron.execution.current import CurrentRun
from django_dcron.execution.heartbeat_loss import (
    RETRY_AFTER,
    HeartbeatLossStops,
    RunHeartbeat,
    after_grace_period,
    log_fields,
)
from django_dcron.execution.termination import terminate
from django_dcron.models import Attempt, Run
from django_dcron.policies.lifecycle import Outcome
from django_dcron.runs import cancellation, deliveries, transitions
from django_dcron.runs.completion import Ending
from django_dcron.utils.durations import write_duration
from django_dcron.utils.threads import DcronThread

logger = logging.getLogger("django_dcron.runs")

BEAT_TIMEOUT = 5.0
"""Seconds that a run which requested a heartbeat waits for it."""
LOCK_TIMEOUT = timedelta(milliseconds=200)
"""How long a heartbeat waits for a lock. Meanwhile, the heartbeats of all other runs wait, too.

MariaDB rounds it up to a second.
"""
SHORTEST_SILENCE = timedelta(seconds=1)
"""A connection counts as lost only if it has been silent for at least this long."""


@dataclass(eq=False)
class _Request:
    """A request for a heartbeat at once.

    ``done`` is a ``SimpleQueue``, which is implemented in C: an exception may interrupt the waiting
    code at any point.
    """

    heartbeat: RunHeartbeat
    done: SimpleQueue[None] = field(default_factory=SimpleQueue)


class Heartbeats:
    """The heartbeats of all runs in this process."""

    def __init__(self) -> None:
        self._heartbeats: list[RunHeartbeat] = []
        self._lock = threading.Lock()
        self._requests: SimpleQueue[_Request | None] = SimpleQueue()
        """Requests for extra heartbeats. None requests a heartbeat of every run."""
        self._thread: threading.Thread | None = None
        self._heartbeat_loss_stops = HeartbeatLossStops(self._heartbeats, self._lock)
        self._to_return: dict[tuple[UUID, int], float] = {}
        """Runs and attempts to return to the nodes, and until when (monotonic clock) to try it."""
        self._limits = WaitLimits(alias_for(Run))
        """Limits of the heartbeat thread's connection."""
        self.extra_rounds = 0
        """How many extra rounds were requested."""

    @contextmanager
    def keep_alive(
        self, run: CurrentRun, *, extra_rounds: int | None = None, last_sent_at: float | None = None
    ) -> Iterator[None]:
        """Write heartbeats for ``run`` within the block.

        ``extra_rounds``: The value of ``self.extra_rounds`` before ``run`` started. If it has
        changed, an extra round was requested since, perhaps for this run, and is repeated.
        ``last_sent_at``: When the start was requested, on the monotonic clock; by default, now.
        """
        heartbeat = RunHeartbeat(
            run, last_sent_at=time.monotonic() if last_sent_at is None else last_sent_at
        )
        if limit := settings.STOP_WITHOUT_HEARTBEAT_AFTER:
            heartbeat.limit = limit.total_seconds()
        run.request_heartbeat = lambda: self._beat_now(heartbeat)
        with self._lock:
            # If a thread can't be started, the run isn't executed and must get no heartbeats.
            self._start_thread()
            self._heartbeat_loss_stops.plan(heartbeat)
            self._heartbeats.append(heartbeat)
        if extra_rounds not in (None, self.extra_rounds):
            self._requests.put(None)
        try:
            yield
        finally:
            with self._lock:
                self._heartbeats.remove(heartbeat)

    def return_later(self, run_id: UUID, attempt: int) -> None:
        """Return the run to the nodes once its row is unlocked."""
        with self._lock:
            self._to_return[run_id, attempt] = (
                time.monotonic() + settings.REDELIVER_AFTER.total_seconds()
            )
            self._start_thread()
        self._requests.put(None)

    def _start_thread(self) -> None:
        """Start the heartbeat thread if it isn't running. The caller has the lock."""
        if self._thread is None:
            thread = DcronThread(target=self._run, name="dcron-heartbeats", daemon=True)
            thread.start()
            self._thread = thread

    def request_round(self) -> None:
        """Request an extra round, because a run may have been cancelled.

        Never waits, so that signal handlers may call it.
        """
        self.extra_rounds += 1
        if self._thread is not None:
            self._requests.put(None)

    def _beat_now(self, heartbeat: RunHeartbeat) -> None:
        request = _Request(heartbeat)
        self._requests.put(request)
        try:
            request.done.get(timeout=BEAT_TIMEOUT)
        except Empty:
            logger.warning(
                "heartbeat late: job=%s waited=%gs",
                heartbeat.run.job,
                BEAT_TIMEOUT,
                extra={"event": "heartbeat_late", **log_fields(heartbeat.run)},
            )

    def _run(self) -> None:
        due = _next_round()
        while True:
            if request := self._next_request(due - time.monotonic()):
                self._beat(request.heartbeat)
                request.done.put(None)
            if request is None or time.monotonic() >= due:
                all_written = self._write_round()
                due = _next_round(soon=bool(self._to_return) or not all_written)
            # Most runs end before the next round, so this thread keeps no connections until then.
            with suppress(Exception):
                self._limits.lift()  # The connection may go back to a pool.
            with suppress(Exception):  # A driver may raise an error for a lost connection.
                connections.close_all()

    def _write_round(self) -> bool:
        """Write the heartbeats of all runs. Return whether all of them were written."""
        with self._lock:
            # Those that failed in the last round come last: a lock may delay each of them.
            heartbeats = sorted(self._heartbeats, key=lambda heartbeat: heartbeat.failed)
        ended = [heartbeat for heartbeat in heartbeats if heartbeat.run.code_ended]
        for heartbeat in heartbeats:
            if heartbeat not in ended:
                self._beat(heartbeat)
        self._renew_ended(ended)
        self._return_unlocked_runs()
        return not any(heartbeat.failed for heartbeat in heartbeats)

    def _next_request(self, seconds: float) -> _Request | None:
        try:
            return self._requests.get(timeout=max(seconds, 0))
        except Empty:
            return None

    def _return_unlocked_runs(self) -> None:
        """Return the runs whose rows are unlocked by now to the nodes.

        Waits for no lock, because heartbeats would wait as well.
        """
        if not self._to_return:
            return
        with self._lock:
            now = time.monotonic()
            self._to_return = {key: until for key, until in self._to_return.items() if until > now}
            remaining = list(self._to_return)
        extra = {"event": "return_postponed", "runs": len(remaining)}
        try:
            self._limit_waits()
            with deliveries.lock_unlocked([run_id for run_id, _ in remaining]) as unlocked:
                returned = [key for key in remaining if key[0] in unlocked]
                for run_id, attempt in returned:
                    deliveries.return_to_nodes(run_id, attempt)
        except UNAVAILABLE as error:
            logger.info(
                "runs not returned to the nodes yet: runs=%d error=%s",
                len(remaining),
                error,
                extra=extra,
            )
            return
        except Exception:  # Heartbeats must continue after any error.
            logger.exception("runs not returned to the nodes: runs=%d", len(remaining), extra=extra)
            return
        with self._lock:
            for key in returned:
                self._to_return.pop(key, None)

    def _renew_ended(self, heartbeats: Collection[RunHeartbeat]) -> None:
        """Renew the heartbeats of runs whose code has ended, until their outcomes are recorded.

        Another session may lock these runs for long (``pending_outcomes``). Waits for no lock.
        """
        if not heartbeats:
            return
        failed_before = all(heartbeat.failed for heartbeat in heartbeats)
        try:
            self._limit_waits()
            with deliveries.lock_unlocked(
                [heartbeat.run.id for heartbeat in heartbeats]
            ) as unlocked:
                for heartbeat in heartbeats:
                    heartbeat.failed = False
                    if heartbeat.run.id in unlocked:
                        transitions.renew_heartbeat(heartbeat.run.id, heartbeat.run.attempt)
        except Exception as error:  # Heartbeats must continue after any error.
            for heartbeat in heartbeats:
                heartbeat.failed = True
            extra = {"event": "heartbeat_failed", "runs": len(heartbeats)}
            text = "heartbeats of ended runs not written: runs=%d error=%s"
            level = logging.DEBUG if failed_before else logging.WARNING
            logger.log(level, text, len(heartbeats), in_one_line(error), extra=extra)

    def _limit_waits(self) -> None:
        """Limit the waits of this thread's connection, because all runs depend on this thread.

        A connection that has fallen silent is replaced before the runs must be stopped.
        """
        set_connect_timeout(connections[alias_for(Run)], settings.RUN_LEASE / 3)
        self._limits.impose(
            lock=LOCK_TIMEOUT, silence=max(settings.RUN_LEASE / 6, SHORTEST_SILENCE)
        )

    def _beat(self, heartbeat: RunHeartbeat) -> None:
        run, failed_before, sent_at = heartbeat.run, heartbeat.failed, time.monotonic()
        heartbeat.failed = False
        try:
            self._limit_waits()
            alive = transitions.renew_heartbeat(run.id, run.attempt)
            heartbeat.last_sent_at = sent_at
            if not alive or _cancel_requested(run):
                _stop(run)
            if alive:
                _write_output(heartbeat)
        except UNAVAILABLE as error:
            heartbeat.failed = True
            if is_contention(error):
                heartbeat.locked_at = sent_at
            extra = {"event": "heartbeat_failed", **log_fields(run)}
            level = logging.DEBUG if failed_before else logging.WARNING
            logger.log(level, "heartbeat not written: job=%s error=%s", run.job, error, extra=extra)
        except Exception:  # an unknown error of one run must not affect the other runs
            extra = {"event": "heartbeat_failed", **log_fields(run)}
            logger.exception("heartbeat failed: job=%s", run.job, extra=extra)


def _next_round(*, soon: bool = False) -> float:
    third = settings.RUN_LEASE.total_seconds() / 3
    if soon:  # spread out, because all workers may have lost the database at once
        return time.monotonic() + min(third, RETRY_AFTER * random.uniform(0.5, 1))  # noqa: S311 (spreads)
    return time.monotonic() + third


def _stop(run: CurrentRun) -> None:
    """Stop the job's code. If it doesn't stop within the grace period, end its process if possible.

    The grace period is the same as after a timeout.
    """
    is_first = not run.cancelled
    run.cancel()  # first, because the system may refuse the thread that waits
    if is_first:
        after_grace_period(_end_if_running, run)


def _end_if_running(run: CurrentRun) -> None:
    if run.interruption.armed:
        message = (
            f"did not stop within {write_duration(settings.HARD_TIMEOUT_AFTER)} after cancellation"
        )
        terminate(run, Ending(Outcome.CANCELLED, message=message, output=run.output()))


_CANCEL_REQUESTED = Select(
    Run,
    lambda: (
        transitions.runs()
        .filter(pk=Placeholder(Run, "id"))
        .exclude(cancel_requested_at=None)
        .order_by()
        .values_list("pk")
    ),
)


def _cancel_requested(run: CurrentRun) -> bool:
    return bool(_CANCEL_REQUESTED.rows(id=run.id))


def _write_output(heartbeat: RunHeartbeat) -> None:
    """Write the log and progress if they have changed since the last write."""
    run, output = heartbeat.run, heartbeat.run.output()
    if output == heartbeat.written:
        return
    row = Attempt.objects.using(alias_for(Attempt)).filter(
        run=run.id, number=run.attempt, token=run.token, outcome=""
    )
    row.update(**output)
    heartbeat.written = output


_by_process: dict[int, Heartbeats] = {}


def process_heartbeats() -> Heartbeats:
    """Return the heartbeats of this process.

    A forked worker inherits its parent's object, but not the parent's threads.
    """
    return _by_process.setdefault(os.getpid(), Heartbeats())


def check_cancellations() -> None:
    """Request an extra round, because a run that this process may execute was cancelled."""
    process_heartbeats().request_round()


cancellation.listeners.append(check_cancellations)
