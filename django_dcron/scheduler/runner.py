"""The node process: its threads, and the main thread, which waits for signals.

The threads:

- ``tick`` does the schedule's database work: it claims, adopts, rescues and marks (``tick``).
- ``agenda`` dispatches runs when they fall due (``agenda``). It doesn't use the database.
- ``heartbeat`` writes the node's heartbeat and renews its leases (``membership``).
- ``health-monitor`` detects threads that hang and reports the node's health (``health_monitor``).
  No thread waits for it.
- ``alerts`` sends alerts (``contrib.alerts``). If it hangs, the node is only degraded.
- ``workers`` asks Celery's workers for their state while runs wait for them (``worker_probe``). No
  thread waits for it.
- ``prune`` deletes expired finished runs (``pruner``). Only the drain waits for it.
- ``close`` drains the node, while the main thread waits for a second signal.

Invariants:

- A thread whose database connection falls silent reconnects (``silent_connections``).
- If the tick or the agenda hangs, the node releases its shards and writes no heartbeat. Other nodes
  lead them until the thread continues.
- The first SIGTERM or SIGINT drains the node. It stops claiming, dispatches what is due, returns
  the remaining runs and releases its leases.
- A second signal exits at once. As after a kill, other nodes adopt the runs that are left.
- If a thread dies of an unexpected error, the process logs the error and exits, so that a
  supervisor restarts it.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from functools import partial
from typing import Protocol

from django.db import DatabaseError, InterfaceError, connections

from django_dcron.conf import settings
from django_dcron.db.clock import ClusterClock
from django_dcron.db.routing import alias_for
from django_dcron.db.session_limits import WaitLimits
from django_dcron.dispatch import Dispatcher
from django_dcron.dispatch.base import SupportsWorkerRequests
from django_dcron.locks.base import Lock
from django_dcron.models import Node
from django_dcron.runs import deliveries
from django_dcron.scheduler.adoption import return_pending
from django_dcron.scheduler.agenda import Agenda
from django_dcron.scheduler.backoff import TickBackoff
from django_dcron.scheduler.health import ALERTS, WORKERS, NodeHealth
from django_dcron.scheduler.health_file import HealthFile
from django_dcron.scheduler.health_monitor import HealthMonitor
from django_dcron.scheduler.membership import Membership
from django_dcron.scheduler.node_status import NodeStatus
from django_dcron.scheduler.pruner import Pruner
from django_dcron.scheduler.signal_pipe import SignalPipe
from django_dcron.scheduler.silent_connections import SilentConnections
from django_dcron.scheduler.tick import LOCK_TIMEOUT, Ticker, longest_silence
from django_dcron.scheduler.watchdog import Watchdog
from django_dcron.scheduler.worker_probe import WorkerProbe
from django_dcron.utils.threads import DcronThread

logger = logging.getLogger("django_dcron.scheduler")

EXIT_OK = 0
EXIT_FAILED = 1
"""Exit code: a thread died of an unexpected error."""
EXIT_AT_ONCE = 3
"""Exit code: a second signal arrived, and no runs were returned."""
SAME_SIGNAL_WITHIN = 0.5
"""Seconds within which a repeated signal counts as the same signal: a supervisor may send it to
both the process and its group.
"""
MAX_JOB_NAMES = 5
"""The maximum number of job names in a log line."""
THREAD_TIMEOUT = 10.0
"""Seconds to wait for each thread before draining without it."""
MONITOR_TIMEOUT = 2.0
"""Seconds to wait at the end until the health file is removed."""

TICK, AGENDA, HEARTBEAT, PRUNE = "tick", "agenda", "heartbeat", "prune"
HEALTH_MONITOR, CLOSE = "health-monitor", "close"


class AlertThread(Protocol):
    """Sends alerts in its own thread (``contrib.alerts``)."""

    def run(self, stopping: threading.Event, watchdog: Watchdog, name: str) -> None:
        """Run the thread ``name`` until ``stopping`` is set."""


class Runner:
    def __init__(
        self,
        *,
        name: str,
        namespace: str,
        lock: Lock,
        dispatcher: Dispatcher,
        health_file: HealthFile | None = None,
        make_alerter: Callable[[Membership], AlertThread] | None = None,
    ):
        """Create the node.

        ``make_alerter`` creates the alerter. Without it, the node sends no alerts.
        """
        self.clock = ClusterClock()
        self.membership = Membership(name, namespace, lock, self.clock)
        self.watchdog = Watchdog(name, self.clock.monotonic)
        self.agenda = Agenda(
            dispatcher,
            self.clock,
            on_dispatched=lambda: self._tick_wanted.set(),
            on_activity=partial(self.watchdog.record_activity, AGENDA),
        )
        self.membership.broker_error = lambda: self.agenda.broker_error
        self.ticker = Ticker(
            self.membership,
            self.agenda,
            self.clock,
            stopping=lambda: self._stopping.is_set(),
            on_activity=partial(self.watchdog.record_activity, TICK),
            on_progress=lambda: self._status.record_tick(),
            clock_in_doubt=lambda: bool(self.clock.doubt),
        )
        self._backoff = TickBackoff(name)
        self._status = NodeStatus(
            self.membership,
            self.agenda,
            self.clock,
            self.watchdog,
            self._backoff,
            draining=lambda: self._stopping.is_set(),
            blocked_steps=self.ticker.blocked_steps,
        )
        self._silent_connections = SilentConnections(name, self.clock.monotonic)
        self._health_monitor = HealthMonitor(
            self.watchdog, self.health, health_file, on_check=self._silent_connections.check
        )
        self._dispatcher = dispatcher
        if isinstance(dispatcher, SupportsWorkerRequests):
            dispatcher.node = self.membership.id
        self._alerter = make_alerter(self.membership) if make_alerter else None
        self._stopping = threading.Event()
        self._may_close = threading.Event()
        self._closed = threading.Event()
        self._gained_shards = threading.Event()
        self._tick_wanted = threading.Event()
        self._beat_wanted = threading.Event()
        self._database_back = threading.Event()
        """Ends the tick's pause after an error. Set when a heartbeat succeeds again, or when the
        node stops.
        """
        self._failure: BaseException | None = None
        self._signals = SignalPipe()
        pruner = Pruner(self.membership, self.clock, self._rest_from_pruning)
        bodies = (
            (TICK, self._tick),
            (AGENDA, self.agenda.run),
            (HEARTBEAT, self._beat),
            (PRUNE, pruner.run),
        )
        self._threads = {name: self._thread(name, body) for name, body in bodies}

    def run_once(self) -> int:
        """Make one tick, dispatch what is due, and stop. Return the exit code."""
        self.membership.register(once=True)
        if self.membership.shards:
            try:
                self.ticker.tick(once=True)
            finally:
                self.ticker.close()
        else:
            self._log("no_shards_led", "no shards led, other nodes do the work: node=%s")
        self._drain(finish=True)
        self._dispatcher.close(wait=True)
        return EXIT_OK

    def run(
        self,
        seconds: float | None = None,
        prepare: Callable[[], None] = lambda: None,
        on_start: Callable[[], None] = lambda: None,
    ) -> int:
        """Run until a signal arrives or ``seconds`` have passed, and return the exit code.

        ``prepare`` is called before the node registers, and ``on_start`` afterwards.
        """
        self._status.start_measuring_ages()
        monitor = self._thread(HEALTH_MONITOR, lambda: self._health_monitor.run(self._closed))
        monitor.start()  # The monitor starts first, because a stalled database blocks this thread.
        try:
            prepare()
            self.membership.register()
        except BaseException:
            self._closed.set()
            self._signals.close()
            monitor.join(MONITOR_TIMEOUT)
            raise
        self._log("started", "node started: node=%s id=%s pid=%d", self.membership.id, os.getpid())
        self._status.record_start()
        on_start()
        with self._signals:
            for thread in self._threads.values():
                thread.start()
            # Start the thread now: Python 3.12 starts none while the interpreter shuts down.
            self._thread(CLOSE, self._close_when_stopped).start()
            if self._alerter:
                alerts = partial(self._alerter.run, self._stopping, self.watchdog, ALERTS)
                self._thread(ALERTS, alerts).start()
            if isinstance(self._dispatcher, SupportsWorkerRequests):
                probe = WorkerProbe(self.membership, self.clock, self._dispatcher)
                ask = partial(probe.run, self._stopping, self.watchdog, WORKERS)
                self._thread(WORKERS, ask).start()
            self._wait_for_signals(seconds)
        monitor.join(MONITOR_TIMEOUT)
        self._log("stopped", "node stopped: node=%s")
        return EXIT_OK if self._failure is None else EXIT_FAILED

    def _wait_for_signals(self, seconds: float | None) -> None:
        """Wait for a signal, at most ``seconds``, and drain. A second signal exits at once."""
        was_signalled = self._signals.wait(seconds) is not None
        stop_requested_at = self.clock.monotonic() if was_signalled else None
        self.stop()
        self._may_close.set()
        while not self._closed.is_set():
            if self._signals.wait() is None:
                continue
            if stop_requested_at is None:
                # The drain began without a signal: the time was over or a thread died.
                stop_requested_at = self.clock.monotonic()
            elif self.clock.monotonic() - stop_requested_at > SAME_SIGNAL_WITHIN:
                self._log("exited_at_once", "node exits at once: node=%s reason=second signal")
                os._exit(EXIT_AT_ONCE)

    def stop(self) -> None:
        """Start to drain. Any thread may call this."""
        self._stopping.set()
        self._tick_wanted.set()
        self._beat_wanted.set()
        self._database_back.set()
        self.agenda.stop()
        self._signals.wake()

    def health(self) -> NodeHealth:
        """Return the node's health. Once ``run`` has started, any thread may call this."""
        return self._status.health()

    def running_jobs(self) -> str:
        """Return the number and the jobs of the runs in this process as text, or nothing."""
        jobs = self._dispatcher.executing()
        names = ", ".join(sorted(set(jobs))[:MAX_JOB_NAMES])
        return f"running={len(jobs)} jobs={names}" if jobs else ""

    def _thread(self, name: str, work: Callable[[], None]) -> threading.Thread:
        return DcronThread(
            target=self._run_thread, args=(name, work), name=f"dcron-{name}", daemon=True
        )

    def _run_thread(self, name: str, work: Callable[[], None]) -> None:
        """Run ``work`` for the life of a thread."""
        try:
            self._silent_connections.watch_this_thread(name)
            work()
        except BaseException as error:  # The process must not continue without one of its threads.
            self._failure = error
            extra = {"event": "thread_died", "node": self.membership.name}
            text = "thread died: node=%s thread=%s"
            logger.critical(text, self.membership.name, name, exc_info=True, extra=extra)
            self._signals.wake()
        finally:
            self.watchdog.ended(name)
            self._silent_connections.forget_this_thread()
            connections.close_all()  # closes this thread's connections only

    def _close_when_stopped(self) -> None:
        self._may_close.wait()
        self._close()

    def _close(self) -> None:
        """Drain while the main thread waits for a second signal."""
        try:
            for thread in self._threads.values():
                thread.join(THREAD_TIMEOUT)
            try:
                self._drain()
            except (DatabaseError, InterfaceError) as error:
                name = self.membership.name
                text = "runs not returned, other nodes will adopt them: node=%s error=%s"
                extra = {"event": "runs_not_returned", "node": name}
                logger.warning(text, name, error, extra=extra)
            if running := self.running_jobs():
                text = "node stopping: node=%s %s; a second signal exits at once"
                self._log("stopping", text, running)
            self._dispatcher.close(wait=True)
        finally:
            self._closed.set()
            self._signals.wake()

    # --- tick ------------------------------------------------------------------------------------

    def _tick(self) -> None:
        while not self._stopping.is_set():
            try:
                self._gained_shards.clear()
                self.ticker.tick()
                if self.membership.ring_changed():
                    self._beat_wanted.set()
                self._backoff.record_success()
                self._mark_until_next_tick(settings.TICK.total_seconds())
            except (DatabaseError, InterfaceError) as error:
                is_unreachable = self._backoff.record_failure(error, self.clock.now())
                self.ticker.record_failure(database_unreachable=is_unreachable)
                if is_unreachable:
                    connections.close_all()
                pause = self._backoff.pause
                self.watchdog.record_activity(TICK, rest=pause)
                self._database_back.wait(pause)
                self._database_back.clear()
        self.ticker.close()

    def _mark_until_next_tick(self, seconds: float) -> None:
        """Sleep until the next tick is due or the node gains shards.

        Meanwhile, mark dispatched runs.
        """
        end = self.clock.monotonic() + seconds
        while not self._stopping.is_set() and not self._gained_shards.is_set():
            remaining = end - self.clock.monotonic()
            self.watchdog.record_activity(TICK, rest=remaining)
            if remaining <= 0 or not self._tick_wanted.wait(remaining):
                return
            self._tick_wanted.clear()
            self.watchdog.record_activity(TICK)
            self.ticker.mark_dispatched()

    def _drain(self, *, finish: bool = False) -> None:
        """Dispatch what is due and return the remaining runs.

        Without ``finish``, runs that the node's own worker threads haven't started are returned
        too.
        """
        self.agenda.publish_due()
        unstarted = [] if finish else self._dispatcher.take_unstarted()
        self.ticker.mark_dispatched()
        deliveries.return_queued(unstarted)
        returned = return_pending(self.membership.id)
        if self.agenda.broker_unreachable and returned:
            text = "runs returned, broker unreachable: node=%s runs=%d"
            self._log("runs_returned", text, returned)
        self.membership.leave()

    # --- prune -----------------------------------------------------------------------------------

    def _rest_from_pruning(self, seconds: float) -> bool:
        self.watchdog.record_activity(PRUNE, rest=seconds)
        stopping = self._stopping.wait(seconds)
        self.watchdog.record_activity(PRUNE)
        return stopping

    # --- heartbeat -------------------------------------------------------------------------------

    def _beat(self) -> None:
        is_failing, limits = False, WaitLimits(alias_for(Node))
        while True:
            pause = self.membership.pause
            self.watchdog.record_activity(HEARTBEAT, rest=pause)
            self._beat_wanted.wait(pause)
            self._beat_wanted.clear()
            if self._stopping.is_set():
                return
            self.watchdog.record_activity(HEARTBEAT)
            if self.watchdog.hanging.keys() & {TICK, AGENDA}:
                self.membership.withdraw()
                continue
            try:
                connect = partial(limits.impose, lock=LOCK_TIMEOUT, silence=longest_silence())
                if self.membership.beat(agenda=len(self.agenda), connect=connect):
                    self._gained_shards.set()
                    self._tick_wanted.set()
                self.agenda.follow_clock()
                self._status.record_heartbeat()
                if is_failing:
                    self._database_back.set()
                is_failing = False
            except (DatabaseError, InterfaceError) as error:
                connections.close_all()
                self.membership.record_failed_heartbeat(error)
                if not is_failing:  # Log this once; the tick reports when the database is back.
                    name = self.membership.name
                    extra = {"event": "heartbeat_missed", "node": name}
                    text = "heartbeat not written: node=%s error=%s"
                    logger.warning(text, name, error, extra=extra)
                is_failing = True

    def _log(self, event: str, message: str, *args: object) -> None:
        name = self.membership.name
        logger.info(message, name, *args, extra={"event": event, "node": name})
