"""The status of a node, collected from its parts.

Any thread may read it without waiting.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import datetime

from django_dcron import __version__
from django_dcron.conf import settings
from django_dcron.db.clock import ClusterClock
from django_dcron.scheduler.agenda import Agenda
from django_dcron.scheduler.backoff import TickBackoff
from django_dcron.scheduler.health import NodeFacts, NodeHealth, judge
from django_dcron.scheduler.membership import Membership
from django_dcron.scheduler.watchdog import Watchdog

TICK, HEARTBEAT = "tick succeeded", "heartbeat written"
"""The events whose ages the watchdog measures."""


class NodeStatus:
    def __init__(
        self,
        membership: Membership,
        agenda: Agenda,
        clock: ClusterClock,
        watchdog: Watchdog,
        backoff: TickBackoff,
        draining: Callable[[], bool],
        blocked_steps: Callable[[], dict[str, float]],
    ):
        self._membership = membership
        self._agenda = agenda
        self._clock = clock
        self._watchdog = watchdog
        self._backoff = backoff
        self._draining = draining
        self._blocked_steps = blocked_steps
        self._ticked = False
        self.since: datetime | None = None
        """When the node joined the cluster. None while it is starting."""

    def start_measuring_ages(self) -> None:
        """Begin to measure the ages of ticks and heartbeats. ``health`` needs them."""
        for event in (TICK, HEARTBEAT):
            self._watchdog.record_event(event)

    def record_start(self) -> None:
        """Record that the node has joined the cluster."""
        self.start_measuring_ages()
        self.since = self._clock.now()

    def record_tick(self) -> None:
        """Record that a tick succeeded."""
        self._ticked = True
        self._watchdog.record_event(TICK)

    def record_heartbeat(self) -> None:
        """Record that a heartbeat was written."""
        self._watchdog.record_event(HEARTBEAT)

    def health(self) -> NodeHealth:
        facts = NodeFacts(
            at=self._clock.now() if self.since else None,
            name=self._membership.name,
            id=self._membership.id,
            namespace=self._membership.namespace,
            version=__version__,
            pid=os.getpid(),
            since=self.since,
            shards=len(self._membership.shards),
            leases=self._membership.leases,
            agenda=len(self._agenda),
            lag=self._agenda.lag().total_seconds(),
            ticked=self._ticked,
            tick_age=self._watchdog.age(TICK),
            heartbeat_age=self._watchdog.age(HEARTBEAT),
            hanging=self._watchdog.hanging,
            waiting=self._watchdog.waiting,
            check_age=self._watchdog.check_age,
            database_unreachable_since=self._backoff.unreachable_since,
            database_error=self._backoff.reason,
            lock_degraded=self._membership.degraded,
            lock_error=self._membership.lock_error,
            foreign_lock_holder=self._membership.foreign_locks.holder,
            broker_unreachable=self._agenda.broker_unreachable,
            broker_error=self._agenda.broker_error,
            skew=self._clock.skew.total_seconds(),
            draining=self._draining(),
            clock_doubt=self._clock.doubt.total_seconds(),
            blocked_steps=self._blocked_steps(),
        )
        # The longest normal time between two ticks, or between two heartbeats.
        interval = max(settings.TICK, settings.LEASE / 3)
        return judge(facts, (settings.DATABASE_GRACE + interval).total_seconds())
