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
from collections import deque
from collections.abc import Callable, Collection
from datetime import datetime
from functools import partial
from typing import Protocol

from django.db import connections

from django_dcron.conf import settings
from django_dcron.contrib.alerts import cluster_alerts, job_alerts, outbox, rules
from django_dcron.contrib.alerts.overdue import OverdueCheck
from django_dcron.db.errors import UNAVAILABLE, in_one_line
from django_dcron.db.now import database_now
from django_dcron.db.routing import alias_for
from django_dcron.models import AlertCheck
from django_dcron.policies.alerting import Rule
from django_dcron.policies.health.verdict import Verdict
from django_dcron.policies.outages import Outage
from django_dcron.utils.threads import DcronThread

logger = logging.getLogger("django_dcron.alerts")

CHECK_EVERY = 5.0
"""Seconds between two passes of the thread. The other intervals are in seconds, too."""
OVERDUE_EVERY = 15.0
HEALTH_EVERY = 15.0
ALL_JOBS_EVERY = 600.0
"""Between two checks of all jobs, only jobs that recently ended a run are checked."""
PRUNE_EVERY = 3600.0


class NodeMembership(Protocol):
    """The attributes of ``scheduler.membership.Membership`` that alerts use."""

    id: str
    name: str
    namespace: str
    degraded: bool
    outages: deque[Outage]

    @property
    def shards(self) -> Collection[int]: ...


class ThreadWatchdog(Protocol):
    """Detects threads that hang.

    ``record_activity`` reports that the thread is working, or that it will sleep for ``rest``
    seconds. ``ended`` reports that it has ended.
    """

    def record_activity(self, thread: str, rest: float = 0.0) -> None: ...

    def ended(self, thread: str) -> None: ...


class Alerter:
    def __init__(
        self, membership: NodeMembership, read_verdict: Callable[[], Verdict] | None = None
    ):
        """``read_verdict`` reads the health verdict.

        Without it, there are no alerts about health.
        """
        self._membership = membership
        self._checked_shards: frozenset[int] = frozenset()
        self._since: datetime | None = None
        """All jobs in the shards ``_checked_shards`` have been checked up to this time.

        None if this node must check all of them next.
        """
        self._degraded_since: datetime | None = None
        self._initialized = False
        self._had_no_jobs = False
        """Whether no job existed at the previous check of this node."""
        self._overdue = OverdueCheck()
        self._node_loss = cluster_alerts.NodeLossAlerts()
        self._health = cluster_alerts.HealthAlerts(read_verdict)
        self._failed: set[str] = set()
        """Names of the steps whose last attempt failed."""
        self._senders: dict[str, threading.Thread] = {}
        self._next_at: dict[str, float] = {}
        """When each periodic step is due again (monotonic clock)."""

    def run(self, stopping: threading.Event, watchdog: ThreadWatchdog, name: str) -> None:
        """Run the thread ``name`` until ``stopping`` is set. Without channels, it does nothing."""
        while True:
            watchdog.record_activity(name, rest=CHECK_EVERY)
            if stopping.wait(CHECK_EVERY):
                return
            watchdog.record_activity(name)
            if settings.ALERT_CHANNELS:
                self._try_step("check", self.check)
                watchdog.record_activity(name)
                self._try_step("send", partial(self._start_senders, watchdog, name))

    def _try_step(self, step: str, work: Callable[[], object]) -> None:
        try:
            work()
            self._failed.discard(step)
        except Exception as error:
            # The database is unreachable, or this code has a bug. Log it once and try again.
            connections.close_all()
            if step not in self._failed:
                text = "alerts delayed: node=%s step=%s error=%s"
                logger.warning(
                    text,
                    self._membership.name,
                    step,
                    in_one_line(error),
                    exc_info=not isinstance(error, UNAVAILABLE),
                    extra={"event": "alerts_late"},
                )
            self._failed.add(step)

    def _start_senders(self, watchdog: ThreadWatchdog, name: str) -> None:
        """Start a sender thread for each destination with due alerts that has none."""
        self._senders = {
            destination: thread
            for destination, thread in self._senders.items()
            if thread.is_alive()
        }
        for destination in outbox.due_destinations():
            if destination not in self._senders:
                sender_name = f"{name}-{destination}"
                thread = DcronThread(
                    target=self._send,
                    args=(destination, watchdog, sender_name),
                    name=f"dcron-{sender_name}",
                    daemon=True,
                )
                self._senders[destination] = thread
                thread.start()

    def _send(self, destination: str, watchdog: ThreadWatchdog, name: str) -> None:
        watchdog.record_activity(name)
        try:
            self._try_step(f"send:{destination}", partial(outbox.send_to, destination))
        finally:
            watchdog.ended(name)
            connections.close_all()  # this thread's connections

    def check_and_send(self) -> None:
        """Detect events, then send all due alerts. Starts no threads."""
        self.check()
        outbox.send_due()

    def check(self) -> None:
        """Detect events and store the alerts about them."""
        default_rules = rules.rules_of_settings()
        now = database_now(alias_for(AlertCheck))
        self._report_outages(default_rules)
        self._check_jobs(default_rules, now)
        if self._becomes_due("overdue", OVERDUE_EVERY):
            self._overdue.check(
                self._membership.shards, self._membership.namespace, default_rules, now
            )
        self._node_loss.check(default_rules)
        if self._becomes_due("health", HEALTH_EVERY):
            self._health.check(self._membership.shards, now, default_rules)
        self._alert_if_degraded(default_rules, now)
        if self._becomes_due("prune", PRUNE_EVERY) and not outbox.prune_alerts():
            del self._next_at["prune"]  # the next call continues

    def _report_outages(self, default_rules: tuple[Rule, ...]) -> None:
        outages = self._membership.outages
        while outages:
            cluster_alerts.report_outage(self._membership.name, outages[0], default_rules)
            outages.popleft()  # only now: if the database fails, the next check tries again

    def _check_jobs(self, default_rules: tuple[Rule, ...], now: datetime) -> None:
        if not self._initialized:
            self._initialized = job_alerts.initialize(from_zero=self._had_no_jobs)
            self._had_no_jobs = not self._initialized
        shards = frozenset(self._membership.shards)
        if self._becomes_due("all", ALL_JOBS_EVERY) or not shards <= self._checked_shards:
            self._since = None
        self._checked_shards = shards
        if shards and job_alerts.check_job_alerts(
            shards, self._membership.namespace, default_rules, self._since
        ):
            self._since = now

    def _alert_if_degraded(self, default_rules: tuple[Rule, ...], now: datetime) -> None:
        if not self._membership.degraded:
            self._degraded_since = None
            return
        self._degraded_since = self._degraded_since or now
        cluster_alerts.report_degraded(
            self._membership.id, self._membership.name, self._degraded_since, now, default_rules
        )

    def _becomes_due(self, step: str, every: float) -> bool:
        """Return whether ``step`` is due. If it is, it becomes due again in ``every`` seconds."""
        now = time.monotonic()
        if now < self._next_at.get(step, 0):
            return False
        self._next_at[step] = now + every
        return True
