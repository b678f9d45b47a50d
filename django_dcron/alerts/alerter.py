"""The thread of a node that notices, and has others tell: one for each channel that has something to be told, so that one that
hangs keeps neither the others from theirs nor the jobs from being looked at. Nothing waits for any of them, and no error of
their own ends them. All give signs of life, so that where one hangs is logged."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection
from datetime import datetime
from functools import partial
from typing import Protocol

from django.db import connections

from django_dcron.alerts import noticing, of_cluster, outbox, rules
from django_dcron.alerts.overdue import Overdue
from django_dcron.conf import settings
from django_dcron.domain.alerting import Rule
from django_dcron.domain.system_health import Verdict
from django_dcron.models import Notice
from django_dcron.models.database import alias_for, database_now, in_one_line

logger = logging.getLogger("django_dcron.alerts")

LOOK_EVERY = 5.0
"""Seconds."""
OVERDUE_EVERY = 15.0
HEALTH_EVERY = 15.0
ALL_EVERY = 600.0
"""Then all jobs are looked at, not only those that ended a run lately."""
FORGET_EVERY = 3600.0


class Leader(Protocol):
    """Who looks: a node's membership."""

    id: str
    name: str
    namespace: str
    degraded: bool

    @property
    def shards(self) -> Collection[int]: ...


class Watchdog(Protocol):
    """Who says that a thread hangs: the calling one goes on, or rests for so many seconds; or it has ended."""

    def alive(self, thread: str, rest: float = 0.0) -> None: ...

    def ended(self, thread: str) -> None: ...


class Alerter:
    def __init__(self, leader: Leader, read_verdict: Callable[[], Verdict] | None = None):
        """``read_verdict``: reads how the whole system is. Without it nobody is told of that."""
        self._leader = leader
        self._seen: frozenset[int] = frozenset()
        self._since: datetime | None = None
        """Up to when the jobs of the shards seen have been looked at; None: never, by this node."""
        self._degraded_since: datetime | None = None
        self._begun = False
        self._from_zero = False
        """There was no job yet when this node looked first."""
        self._overdue = Overdue()
        self._lost = of_cluster.Lost()
        self._unhealthy = of_cluster.Unhealthy(read_verdict)
        self._failed: set[str] = set()
        """What did not work when it was tried last."""
        self._telling: dict[str, threading.Thread] = {}
        self._next: dict[str, float] = {}

    def run(self, stopping: threading.Event, watchdog: Watchdog, name: str) -> None:
        """The thread ``name``, until ``stopping``. Without a channel there is nobody to tell."""
        while True:
            watchdog.alive(name, rest=LOOK_EVERY)
            if stopping.wait(LOOK_EVERY):
                return
            watchdog.alive(name)
            if settings.ALERT_CHANNELS:
                self._despite_errors("notice", self.notice)
                watchdog.alive(name)
                self._despite_errors("tell", partial(self._have_told, watchdog, name))

    def _despite_errors(self, what: str, work: Callable[[], object]) -> None:
        try:
            work()
            self._failed.discard(what)
        except Exception as error:
            # The database is away, or a bug of ours: the work goes on without alerts, which is said once, and tried again.
            connections.close_all()
            if what not in self._failed:
                text = "%s: alerts are late: %s"
                logger.warning(
                    text, self._leader.name, in_one_line(error), exc_info=True, extra={"event": "alerts_late"}
                )
            self._failed.add(what)

    def _have_told(self, watchdog: Watchdog, name: str) -> None:
        """In threads that may take their time, called after this one and their place."""
        self._telling = {place: thread for place, thread in self._telling.items() if thread.is_alive()}
        for place in outbox.due_places():
            if place not in self._telling:
                its_name = f"{name}-{place}"
                thread = threading.Thread(
                    target=self._tell, args=(place, watchdog, its_name), name=f"dcron-{its_name}", daemon=True
                )
                self._telling[place] = thread
                thread.start()

    def _tell(self, place: str, watchdog: Watchdog, name: str) -> None:
        watchdog.alive(name)
        try:
            self._despite_errors(f"tell {place}", partial(outbox.send_to, place))
        finally:
            watchdog.ended(name)
            connections.close_all()  # this thread's own

    def look(self) -> None:
        """Notice what is to be told, and tell what is due, here and now."""
        self.notice()
        outbox.send_due()

    def notice(self) -> None:
        """Write down what is to be told."""
        general = rules.of_settings()
        now = database_now(alias_for(Notice))
        self._notice(general, now)
        if self._is_time("overdue", OVERDUE_EVERY):
            self._overdue.look(self._leader.shards, self._leader.namespace, general, now)
        self._lost.look(general)
        if self._is_time("health", HEALTH_EVERY):
            self._unhealthy.look(self._leader.shards, now, general)
        self._tell_if_degraded(general, now)
        if self._is_time("forget", FORGET_EVERY) and not outbox.forget():
            del self._next["forget"]  # the next look goes on with it

    def _notice(self, general: tuple[Rule, ...], now: datetime) -> None:
        if not self._begun:
            self._begun = noticing.begin(from_zero=self._from_zero)
            self._from_zero = not self._begun
        shards = frozenset(self._leader.shards)
        if self._is_time("all", ALL_EVERY) or not shards <= self._seen:
            self._since = None
        self._seen = shards
        if shards and noticing.look(shards, self._leader.namespace, general, self._since):
            self._since = now

    def _tell_if_degraded(self, general: tuple[Rule, ...], now: datetime) -> None:
        if not self._leader.degraded:
            self._degraded_since = None
            return
        self._degraded_since = self._degraded_since or now
        of_cluster.tell_degraded(self._leader.id, self._leader.name, self._degraded_since, now, general)

    def _is_time(self, what: str, every: float) -> bool:
        now = time.monotonic()
        if now < self._next.get(what, 0):
            return False
        self._next[what] = now + every
        return True
