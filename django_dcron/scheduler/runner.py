"""The process: threads, and a main thread that listens to signals.

tick      claims, adopts, rescues and marks (``ticking``): all that the schedule needs of the database
agenda    hands over what falls due, to the millisecond (``agenda``); needs no database
heartbeat keeps this node alive and its leases held (``membership``)
watch     sees whether the others hang, and tells how the node is (``watch``); nothing waits for it
alerts    tells people what has happened (``alerts``); nothing waits for it, and its hanging makes no node unfit
workers   asks Celery's workers how they are, while runs wait for them (``worker_probe``); nothing waits for it either
prune     deletes finished runs that are kept no longer (``pruner``), a few at a time; only the end waits for these

A thread that waits for a database connection that has fallen silent gets an error, and connects anew (``silent_connections``).

A node whose tick or agenda hangs lets go of its shards and gives no heartbeat: others lead them, until it goes on.

The first SIGTERM or SIGINT drains: claiming stops, what is due is handed over, the rest is given back, the leases are
released. A second one leaves at once: then it is as if the node had been killed, and others take up what it left. A
thread that dies of an error nobody expected takes the process with it, loudly; a supervisor starts it again.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from functools import partial

from django.db import DatabaseError, InterfaceError, connections

from django_dcron import transitions
from django_dcron.alerts import Alerter
from django_dcron.conf import settings
from django_dcron.dispatch import Dispatcher
from django_dcron.dispatch.base import AsksWorkers
from django_dcron.domain.clock import ClusterClock
from django_dcron.domain.counts_in_words import number_of
from django_dcron.domain.system_health import Verdict
from django_dcron.locks.base import Lock
from django_dcron.models import Node
from django_dcron.models.database import WaitLimits, alias_for
from django_dcron.scheduler.adoption import give_back
from django_dcron.scheduler.agenda import Agenda
from django_dcron.scheduler.health import ALERTS, WORKERS, Health
from django_dcron.scheduler.health_file import HealthFile
from django_dcron.scheduler.membership import Membership
from django_dcron.scheduler.pruner import Pruner
from django_dcron.scheduler.setbacks import Setbacks
from django_dcron.scheduler.signal_pipe import SignalPipe
from django_dcron.scheduler.silent_connections import SilentConnections
from django_dcron.scheduler.ticking import LOCK_PATIENCE, SHORTEST_SILENCE, Ticker
from django_dcron.scheduler.vitals import Vitals
from django_dcron.scheduler.watch import Watch
from django_dcron.scheduler.watchdog import Watchdog
from django_dcron.scheduler.worker_probe import WorkerProbe

logger = logging.getLogger("django_dcron.scheduler")

EXIT_OK = 0
EXIT_FAILED = 1
"""A thread died of an unexpected error."""
EXIT_AT_ONCE = 3
"""A second signal: nothing was given back."""
ONE_SIGNAL = 0.5
"""Seconds: what comes so soon after a signal is the same one; supervisors signal a process, and its group as well."""
NAMED = 5
"""How many jobs a line names."""
THREAD_PATIENCE = 10.0
"""Seconds to wait for each thread to end before draining without it."""
WATCH_PATIENCE = 2.0
"""Seconds to wait at the end for the health file to be removed."""

TICK, AGENDA, HEARTBEAT, WATCH, PRUNE = "tick", "agenda", "heartbeat", "watch", "prune"


class Runner:
    def __init__(
        self,
        *,
        name: str,
        namespace: str,
        lock: Lock,
        dispatcher: Dispatcher,
        health_file: HealthFile | None = None,
        read_verdict: Callable[[], Verdict] | None = None,
    ):
        """``read_verdict``: how the whole system is, for alerts."""
        self.clock = ClusterClock()
        self.membership = Membership(name, namespace, lock, self.clock)
        self.watchdog = Watchdog(name, self.clock.monotonic)
        self.agenda = Agenda(
            dispatcher,
            self.clock,
            on_delivered=lambda: self._tick_wanted.set(),
            alive=partial(self.watchdog.alive, AGENDA),
        )
        self.membership.broker_away = lambda: self.agenda.broker_away
        self.ticker = Ticker(
            self.membership,
            self.agenda,
            self.clock,
            stopping=lambda: self._stopping.is_set(),
            alive=partial(self.watchdog.alive, TICK),
            progressed=lambda: self._vitals.ticked(),
            clock_in_doubt=lambda: bool(self.clock.doubt),
        )
        self._setbacks = Setbacks(name)
        self._vitals = Vitals(
            self.membership,
            self.agenda,
            self.clock,
            self.watchdog,
            self._setbacks,
            draining=lambda: self._stopping.is_set(),
        )
        self._silent_connections = SilentConnections(name, self.clock.monotonic)
        self._watch = Watch(self.watchdog, self.health, health_file, also=self._silent_connections.look)
        self._dispatcher = dispatcher
        if isinstance(dispatcher, AsksWorkers):
            dispatcher.node = self.membership.id
        self._alerter = Alerter(self.membership, read_verdict)
        self._stopping = threading.Event()
        self._closed = threading.Event()
        self._gained_shards = threading.Event()
        self._tick_wanted = threading.Event()
        self._beat_wanted = threading.Event()
        self._database_back = threading.Event()
        """The tick need not go on pausing: a heartbeat was written again, or the node is to stop."""
        self._failure: BaseException | None = None
        self._signals = SignalPipe()
        pruner = Pruner(self.membership, self.clock, self._rest_from_pruning)
        works = ((TICK, self._tick), (AGENDA, self.agenda.run), (HEARTBEAT, self._beat), (PRUNE, pruner.run))
        self._threads = {name: self._thread(name, work) for name, work in works}

    def run_once(self) -> int:
        """One tick; hand over what is due, and leave. Returns the exit code."""
        self.membership.register()
        if self.membership.shards:
            try:
                self.ticker.tick(adopt_own=True, once=True)
            finally:
                self.ticker.close()
        else:
            self._log("others_lead", "%s: another node leads all shards; it will do the work")
        self._drain(finish=True)
        self._dispatcher.close(wait=True)
        return EXIT_OK

    def run(self, seconds: float | None = None, prepare: Callable[[], None] = lambda: None) -> int:
        """Until a signal, or for ``seconds``; ``prepare`` is done before all else. Returns the exit code."""
        self._vitals.starting()
        watch = self._thread(WATCH, lambda: self._watch.run(self._closed))
        watch.start()  # first: a database that stalls keeps this thread waiting
        try:
            prepare()
            self.membership.register()
        except BaseException:
            self._closed.set()
            watch.join(WATCH_PATIENCE)
            raise
        self._log("started", "%s is up as %s, process %d", self.membership.id, os.getpid())
        self._vitals.started()
        with self._signals:
            for thread in self._threads.values():
                thread.start()
            alerts = partial(self._alerter.run, self._stopping, self.watchdog, ALERTS)
            self._thread(ALERTS, alerts).start()
            if isinstance(self._dispatcher, AsksWorkers):
                probe = WorkerProbe(self.membership, self.clock, self._dispatcher)
                self._thread(WORKERS, partial(probe.run, self._stopping, self.watchdog, WORKERS)).start()
            asked_at = self.clock.monotonic() if self._signals.wait(seconds) is not None else None
            self.stop()
            self._thread("close", self._close).start()
            while not self._closed.is_set():
                if self._signals.wait() is None:
                    continue
                if asked_at is None:  # it was draining by itself: its time was over, or a thread had died
                    asked_at = self.clock.monotonic()
                elif self.clock.monotonic() - asked_at > ONE_SIGNAL:
                    self._log("left", "%s leaves at once: a second signal")
                    os._exit(EXIT_AT_ONCE)
        watch.join(WATCH_PATIENCE)
        self._log("stopped", "%s has stopped")
        return EXIT_OK if self._failure is None else EXIT_FAILED

    def stop(self) -> None:
        """Begin to drain. May be called from any thread."""
        self._stopping.set()
        self._tick_wanted.set()
        self._beat_wanted.set()
        self._database_back.set()
        self.agenda.stop()

    def health(self) -> Health:
        """How the node is now. May be asked from any thread, once ``run`` has begun; waits for none of them."""
        return self._vitals.health()

    def _thread(self, name: str, work: Callable[[], None]) -> threading.Thread:
        return threading.Thread(target=self._guarded, args=(name, work), name=f"dcron-{name}", daemon=True)

    def _guarded(self, name: str, work: Callable[[], None]) -> None:
        """A thread's whole life."""
        try:
            self._silent_connections.watch_this_thread(name)
            work()
        except BaseException as error:  # the process must not live on with a part of it dead
            self._failure = error
            extra = {"event": "died", "node": self.membership.name}
            logger.critical("a thread of %s died", self.membership.name, exc_info=True, extra=extra)
            self._signals.wake()
        finally:
            self.watchdog.ended(name)
            self._silent_connections.forget_this_thread()
            connections.close_all()  # this thread's own

    def _close(self) -> None:
        """Drain, while the main thread listens for a second signal."""
        try:
            for thread in self._threads.values():
                thread.join(THREAD_PATIENCE)
            try:
                self._drain()
            except (DatabaseError, InterfaceError) as error:
                name = self.membership.name
                text = "%s could not give back its runs, others will take them up: %s"
                logger.warning(text, name, error, extra={"event": "not_given_back", "node": name})
            if jobs := self._dispatcher.executing():
                runs = number_of(len(jobs), "run")
                names = ", ".join(sorted(set(jobs))[:NAMED])
                self._log(
                    "stopping", "%s stops: it waits for %s (%s); a second signal leaves at once", runs, names
                )
            self._dispatcher.close(wait=True)
        finally:
            self._closed.set()
            self._signals.wake()

    # --- tick ---------------------------------------------------------------------------------------------------------

    def _tick(self) -> None:
        while not self._stopping.is_set():
            try:
                gained = self._gained_shards.is_set()
                self._gained_shards.clear()
                self.ticker.tick(adopt_own=gained)
                if self.membership.ring_changed():
                    self._beat_wanted.set()
                self._setbacks.over()
                self._mark_until_next_tick(settings.TICK.total_seconds())
            except (DatabaseError, InterfaceError) as error:
                away = self._setbacks.failed(error, self.clock.now())
                self.ticker.failed(database_away=away)
                if away:
                    connections.close_all()
                pause = self._setbacks.pause
                self.watchdog.alive(TICK, rest=pause)
                self._database_back.wait(pause)
                self._database_back.clear()
        self.ticker.close()

    def _mark_until_next_tick(self, seconds: float) -> None:
        """Sleep until the next tick is due, or shards were gained; meanwhile mark what is handed over."""
        end = self.clock.monotonic() + seconds
        while not self._stopping.is_set() and not self._gained_shards.is_set():
            remaining = end - self.clock.monotonic()
            self.watchdog.alive(TICK, rest=remaining)
            if remaining <= 0 or not self._tick_wanted.wait(remaining):
                return
            self._tick_wanted.clear()
            self.watchdog.alive(TICK)
            self.ticker.mark_delivered()

    def _drain(self, *, finish: bool = False) -> None:
        """Hand over what is due and give back the rest; also what our own threads have not started, unless ``finish``."""
        self.agenda.hand_over_due()
        unstarted = [] if finish else self._dispatcher.take_back()
        self.ticker.mark_delivered()
        transitions.take_back(unstarted)
        given_back = give_back(self.membership.id)
        if self.agenda.broker_away and given_back:
            left = "%s: the broker is away, %s left to other nodes"
            self._log("given_back", left, number_of(given_back, "of its runs is", "of its runs are"))
        self.membership.leave()

    # --- prune --------------------------------------------------------------------------------------------------------

    def _rest_from_pruning(self, seconds: float) -> bool:
        self.watchdog.alive(PRUNE, rest=seconds)
        stopping = self._stopping.wait(seconds)
        self.watchdog.alive(PRUNE)
        return stopping

    # --- heartbeat ----------------------------------------------------------------------------------------------------

    def _beat(self) -> None:
        missing, limits = False, WaitLimits(alias_for(Node))
        while True:
            pause = self.membership.pause
            self.watchdog.alive(HEARTBEAT, rest=pause)
            self._beat_wanted.wait(pause)
            self._beat_wanted.clear()
            if self._stopping.is_set():
                return
            self.watchdog.alive(HEARTBEAT)
            if self.watchdog.hanging.keys() & {TICK, AGENDA}:
                self.membership.withdraw()
                continue
            try:
                limits.impose(lock=LOCK_PATIENCE, silence=max(settings.LEASE, SHORTEST_SILENCE))
                if self.membership.beat(agenda=len(self.agenda)):
                    self._gained_shards.set()
                    self._tick_wanted.set()
                self._vitals.beaten()
                if missing:
                    self._database_back.set()
                missing = False
            except (DatabaseError, InterfaceError) as error:
                connections.close_all()
                if not missing:  # once: the tick reports the database's return
                    name = self.membership.name
                    extra = {"event": "heartbeat_missed", "node": name}
                    logger.warning("%s: heartbeat not written: %s", name, error, extra=extra)
                missing = True

    def _log(self, event: str, message: str, *args: object) -> None:
        name = self.membership.name
        logger.info(message, name, *args, extra={"event": event, "node": name})
