"""The alert thread of a node: detects events and starts one thread per channel with alerts to send.

Invariants:

- A channel that hangs delays neither other channels nor the detection.
- Nothing waits for these threads, and no error ends them.
- All threads report to the watchdog, so a hang is logged.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection
from datetime import datetime
from functools import partial
from typing import Protocol

from django.db import connections

from django_dcron.conf import settings
from django_dcron.contrib.alerts import cluster_alerts, job_alerts, outbox, rules
from django_dcron.contrib.alerts.overdue import Overdue
from django_dcron.db.errors import in_one_line
from django_dcron.db.now import database_now
from django_dcron.db.routing import alias_for
from django_dcron.models import Notice
from django_dcron.policies.alerting import Rule
from django_dcron.policies.health.verdict import Verdict

logger = logging.getLogger("django_dcron.alerts")

LOOK_EVERY = 5.0
"""Seconds."""
OVERDUE_EVERY = 15.0
HEALTH_EVERY = 15.0
ALL_EVERY = 600.0
"""Seconds between two checks of all jobs.

The checks in between cover only jobs that recently ended a run.
"""
FORGET_EVERY = 3600.0


class Leader(Protocol):
    """The node's membership."""

    id: str
    name: str
    namespace: str
    degraded: bool

    @property
    def shards(self) -> Collection[int]: ...


class Watchdog(Protocol):
    """Detects threads that hang.

    ``alive``: the calling thread continues, or rests for ``rest`` seconds. ``ended``: it has ended.
    """

    def alive(self, thread: str, rest: float = 0.0) -> None: ...

    def ended(self, thread: str) -> None: ...


class Alerter:
    def __init__(self, leader: Leader, read_verdict: Callable[[], Verdict] | None = None):
        """``read_verdict`` reads the health verdict.

        Without it, there are no alerts about health.
        """
        self._leader = leader
        self._seen: frozenset[int] = frozenset()
        self._since: datetime | None = None
        """Up to when the jobs of ``_seen`` have been checked.

        None: this node hasn't checked them.
        """
        self._degraded_since: datetime | None = None
        self._begun = False
        self._from_zero = False
        """Whether no job existed when this node looked first."""
        self._overdue = Overdue()
        self._lost = cluster_alerts.Lost()
        self._unhealthy = cluster_alerts.Unhealthy(read_verdict)
        self._failed: set[str] = set()
        """Names of the steps whose last attempt failed."""
        self._senders: dict[str, threading.Thread] = {}
        self._next: dict[str, float] = {}

    def run(self, stopping: threading.Event, watchdog: Watchdog, name: str) -> None:
        """Run the thread ``name`` until ``stopping`` is set. Without channels, it does nothing."""
        while True:
            watchdog.alive(name, rest=LOOK_EVERY)
            if stopping.wait(LOOK_EVERY):
                return
            watchdog.alive(name)
            if settings.ALERT_CHANNELS:
                self._despite_errors("notice", self.notice)
                watchdog.alive(name)
                self._despite_errors("send", partial(self._start_senders, watchdog, name))

    def _despite_errors(self, what: str, work: Callable[[], object]) -> None:
        try:
            work()
            self._failed.discard(what)
        except Exception as error:
            # The database is unreachable, or this code has a bug. Log it once and try again.
            connections.close_all()
            if what not in self._failed:
                text = "alerts delayed: node=%s error=%s"
                logger.warning(
                    text,
                    self._leader.name,
                    in_one_line(error),
                    exc_info=True,
                    extra={"event": "alerts_late"},
                )
            self._failed.add(what)

    def _start_senders(self, watchdog: Watchdog, name: str) -> None:
        """Start a thread for each place with due alerts, named after this thread and the place."""
        self._senders = {
            place: thread for place, thread in self._senders.items() if thread.is_alive()
        }
        for place in outbox.due_places():
            if place not in self._senders:
                its_name = f"{name}-{place}"
                thread = threading.Thread(
                    target=self._send,
                    args=(place, watchdog, its_name),
                    name=f"dcron-{its_name}",
                    daemon=True,
                )
                self._senders[place] = thread
                thread.start()

    def _send(self, place: str, watchdog: Watchdog, name: str) -> None:
        watchdog.alive(name)
        try:
            self._despite_errors(f"send to {place}", partial(outbox.send_to, place))
        finally:
            watchdog.ended(name)
            connections.close_all()  # this thread's connections

    def look(self) -> None:
        """Detect events and send due alerts, in the calling thread."""
        self.notice()
        outbox.send_due()

    def notice(self) -> None:
        """Detect events and store the alerts about them."""
        general = rules.of_settings()
        now = database_now(alias_for(Notice))
        self._notice(general, now)
        if self._is_time("overdue", OVERDUE_EVERY):
            self._overdue.look(self._leader.shards, self._leader.namespace, general, now)
        self._lost.look(general)
        if self._is_time("health", HEALTH_EVERY):
            self._unhealthy.look(self._leader.shards, now, general)
        self._alert_if_degraded(general, now)
        if self._is_time("forget", FORGET_EVERY) and not outbox.forget():
            del self._next["forget"]  # the next call continues

    def _notice(self, general: tuple[Rule, ...], now: datetime) -> None:
        if not self._begun:
            self._begun = job_alerts.begin(from_zero=self._from_zero)
            self._from_zero = not self._begun
        shards = frozenset(self._leader.shards)
        if self._is_time("all", ALL_EVERY) or not shards <= self._seen:
            self._since = None
        self._seen = shards
        if shards and job_alerts.look(shards, self._leader.namespace, general, self._since):
            self._since = now

    def _alert_if_degraded(self, general: tuple[Rule, ...], now: datetime) -> None:
        if not self._leader.degraded:
            self._degraded_since = None
            return
        self._degraded_since = self._degraded_since or now
        cluster_alerts.note_degraded(
            self._leader.id, self._leader.name, self._degraded_since, now, general
        )

    def _is_time(self, what: str, every: float) -> bool:
        now = time.monotonic()
        if now < self._next.get(what, 0):
            return False
        self._next[what] = now + every
        return True
