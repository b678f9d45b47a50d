"""Find outages: times of a minute or more in which no node wrote a heartbeat.

Invariants:

- A node looks for an outage when it starts, and before its first heartbeat after a pause of
  ``SHORTEST_OUTAGE``. Other heartbeats cost nothing.
- A node looks before it writes the heartbeat. The first node that writes one therefore finds the
  outage. Later nodes see that heartbeat and find none.
- A node that stops cleanly deletes its row and records the time of the stop. So an outage that
  begins with a clean stop has a start, too.
- A node that makes only one tick looks for none, and its heartbeats and its clean stop don't count.
  Before it may delete the rows of dead nodes, it records their last heartbeat for the next node.
- If the node dies before its alerter has stored the alert, within about five seconds, the outage
  isn't reported.
"""

from __future__ import annotations

from collections import deque
from datetime import datetime
from typing import Any

from django.db.models import Max

from django_dcron.conf import settings
from django_dcron.db.clock import ClusterClock
from django_dcron.db.errors import in_one_line
from django_dcron.db.now import UtcNow
from django_dcron.db.routing import alias_for
from django_dcron.models import LockLease, Node
from django_dcron.policies.outages import SHORTEST_OUTAGE, FailedHeartbeat, Outage, find_outage

LAST_STOP = "last-clean-stop"
"""The name of a lease without a holder. It expired at the last clean stop, or at a later heartbeat
that was recorded in the same way.
"""


class OutageSearch:
    """The outages that one node finds. Its heartbeat thread calls the methods."""

    def __init__(self, clock: ClusterClock) -> None:
        self._clock = clock
        self.found: deque[Outage] = deque()
        """The outages that the node has found and its alerter hasn't reported yet."""
        self._heartbeat_at: datetime | None = None
        """The cluster time of the node's last heartbeat."""
        self._failure: FailedHeartbeat | None = None

    def look_back(self) -> Outage | None:
        """Return the outage that the heartbeat about to be written ends, if any."""
        now = self._clock.now()
        shortest = max(SHORTEST_OUTAGE, settings.LEASE)
        if self._heartbeat_at is not None and now - self._heartbeat_at < shortest:
            return None
        return find_outage(_last_sign_of_life(), now, self._failure, shortest=shortest)

    def record_heartbeat(self, outage: Outage | None) -> None:
        """Record a successful heartbeat, and the outage that it ended."""
        self._heartbeat_at, self._failure = self._clock.now(), None
        if outage is not None:
            self.found.append(outage)

    def record_failure(self, error: Exception) -> None:
        """Record a failed heartbeat."""
        if self._failure is None:
            self._failure = FailedHeartbeat(self._clock.now(), in_one_line(error))


def record_clean_stop() -> None:
    """Record that a node stops cleanly now."""
    leases = LockLease.objects.using(alias_for(LockLease))
    if not leases.filter(name=LAST_STOP).update(expires_at=UtcNow()):
        _insert_last_stop(UtcNow())


def keep_last_sign_of_life() -> None:
    """Record the last sign of life like a clean stop, so that the node's row may be deleted."""
    if (at := _last_sign_of_life()) is not None:
        leases = LockLease.objects.using(alias_for(LockLease))
        if not leases.filter(name=LAST_STOP, expires_at__lt=at).update(expires_at=at):
            _insert_last_stop(at)


def _insert_last_stop(at: Any) -> None:
    """Insert the row, unless it exists."""
    leases = LockLease.objects.using(alias_for(LockLease))
    leases.bulk_create([LockLease(name=LAST_STOP, expires_at=at)], ignore_conflicts=True)


def _last_sign_of_life() -> datetime | None:
    """Return the last heartbeat or clean stop of any node that makes more than one tick."""
    nodes = Node.objects.using(alias_for(Node)).filter(once=False)
    heartbeats = nodes.aggregate(last=Max("heartbeat_at"))
    stops = LockLease.objects.using(alias_for(LockLease)).filter(name=LAST_STOP)
    times = (heartbeats["last"], stops.values_list("expires_at", flat=True).first())
    return max(filter(None, times), default=None)
