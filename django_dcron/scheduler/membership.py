"""Membership: a node's heartbeat, and the shards of the ring that this node leads.

Invariants:

- Only the database's clock decides which nodes are alive. All nodes compute the same leaders from
  the same ring (see ``ring``).
- A node leads a shard while it has a valid lease on the shard's lock. A lease is valid until
  ``expires_at`` on the monotonic clock. A node that was suspended past that time leads nothing when
  it resumes.
- A node that lost its shards because it didn't reach the broker gets shards again once it has
  reached the broker for ``DCRON_LEASE``. An unstable broker therefore moves shards at most once per
  lease.
- While the lock server is unreachable, the node is *degraded*: it leads the shards that hashing
  assigns to it. Two nodes may then lead a shard for a moment. That costs time, but never creates a
  second run.
- If the locks are in the database and it is unreachable, the node isn't degraded: its leases expire
  with its heartbeat.
- The heartbeat has its own thread and database connection, so a slow claim never loses a lease. If
  the tick or the agenda hangs, the node withdraws, so that other nodes do its work.
- A node renews its leases only while its last heartbeat is younger than ``DCRON_LEASE``. After
  that, other nodes consider it dead. It releases its shards, even if it still reaches the lock
  server.
"""

from __future__ import annotations

import logging
import os
import platform
import secrets
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from typing import Any

from django.db import DatabaseError, InterfaceError

from django_dcron import __version__
from django_dcron.conf import settings
from django_dcron.db.clock import ClusterClock
from django_dcron.db.errors import in_one_line
from django_dcron.db.now import UtcNow, database_now
from django_dcron.db.routing import alias_for
from django_dcron.db.statements import Placeholder, Update
from django_dcron.db.support import require_supported_database
from django_dcron.exceptions import LockUnavailable
from django_dcron.locks.base import Lease, Lock
from django_dcron.locks.database import DatabaseLock
from django_dcron.models import Node
from django_dcron.models.node import ERROR_LIMIT, NodeQuerySet
from django_dcron.policies.sharding import shard_lock_name, shard_of_lock, shards_led_by
from django_dcron.scheduler.dead_nodes import (
    delete_dead_nodes,
    delete_dead_nodes_after_last_stop,
    delete_predecessors,
)
from django_dcron.scheduler.foreign_locks import ForeignLocks
from django_dcron.scheduler.outages import OutageSearch, keep_last_sign_of_life, record_clean_stop
from django_dcron.scheduler.ring import LiveNodes
from django_dcron.utils.bounded_text import replace_unstorable, with_ellipsis
from django_dcron.utils.durations import write_duration
from django_dcron.utils.time_format import format_site_time

logger = logging.getLogger("django_dcron.scheduler")

SECOND = timedelta(seconds=1)


def _update_node(*given: str, **columns: Any) -> Update:
    """Prepare an update of a node's row.

    ``given``: the columns whose values each execution gets. ``columns``: the other columns, with
    their fixed values.
    """
    values = {name: Placeholder(Node, name) for name in given}
    return Update(
        Node, lambda: Node.objects.filter(pk=Placeholder(Node, "id")), **columns, **values
    )


_TICKED = _update_node(ticked_at=UtcNow())
_HEARTBEAT = _update_node(
    "shards",
    "agenda",
    "skew",
    "clock_doubt",
    "degraded",
    "lock_error",
    "broker_unreachable_since",
    "broker_error",
    heartbeat_at=UtcNow(),
)


def _storable(error: str) -> str:
    return with_ellipsis(replace_unstorable(error), ERROR_LIMIT)


class Membership:
    def __init__(self, name: str, namespace: str, lock: Lock, clock: ClusterClock):
        self.name = name
        self.namespace = namespace
        self.id = f"{name[:150]}-{secrets.token_hex(4)}"
        self.degraded = False
        self.lock_error = ""
        """Why the node can't use the lock server, in one line. Empty if it can."""
        self._lock = lock
        self._clock = clock
        self._assigned: frozenset[int] = frozenset()
        """The shards that hashing assigns to this node."""
        self._leases: dict[int, Lease] = {}
        self.foreign_locks = ForeignLocks(name, lock)
        self._nodes = LiveNodes(name, namespace)
        self._ring: frozenset[str] = frozenset()
        """The live nodes that shared the shards at the last heartbeat."""
        self.broker_error: Callable[[], str] = lambda: ""
        """Returns why the broker accepted no messages at the last try to dispatch, or nothing.
        Called at each heartbeat.
        """
        self._last_broker_error = ""
        """Empty unless ``_broker_unreachable_since`` is set."""
        self._broker_unreachable_since: datetime | None = None
        self._broker_back_at: float | None = None
        """The monotonic time at which the broker was reachable again, for a node that lost its
        shards.
        """
        self._registered_at = float("inf")
        """The monotonic time of the registration. Infinite once late predecessors are deleted."""
        self._heartbeat_sent_at = float("-inf")
        """The monotonic time at which the last successful heartbeat was sent."""
        self._once = False
        self._outage_search = OutageSearch(clock)
        self.outages = self._outage_search.found
        """The outages that the alerter must report."""

    @property
    def shards(self) -> frozenset[int]:
        """The shards that this node leads now."""
        if self.degraded:
            return self._assigned
        now = self._clock.monotonic()
        return frozenset(
            shard
            for shard, lease in self._leases.items()
            if shard in self._assigned and lease.valid(now)
        )

    @property
    def leases(self) -> int:
        """The number of shard locks that this node holds.

        While ``degraded``, the node may lead more shards.
        """
        now = self._clock.monotonic()
        return sum(lease.valid(now) for lease in self._leases.values())

    @property
    def pause(self) -> float:
        """Seconds to the next heartbeat.

        The pause is shorter while another node holds shards assigned to this node.
        """
        third = settings.LEASE.total_seconds() / 3
        return third if self.shards == self._assigned else third / 4

    def register(self, *, once: bool = False) -> None:
        """Insert the row of this node and take the first sample of the cluster clock.

        ``once``: The node makes only one tick, so it doesn't end an outage.

        Raises ``ImproperlyConfigured`` on a database that isn't supported.
        """
        using = alias_for(Node)
        require_supported_database(using)
        self._clock.sample(lambda: database_now(using))
        self._once = once
        if once:
            keep_last_sign_of_life()
        outage = None if once else self._outage_search.look_back()
        Node.objects.using(using).create(
            id=self.id,
            name=self.name,
            namespace=self.namespace,
            host=platform.node(),
            pid=os.getpid(),
            version=__version__,
            started_at=UtcNow(),
            heartbeat_at=UtcNow(),
            skew=self._clock.skew,
            shard_count=settings.SHARDS,
            locks_in_database=isinstance(self._lock, DatabaseLock),
            once=once,
        )
        self._outage_search.record_heartbeat(outage)
        delete_dead_nodes()
        self._log_downtime(self._delete_predecessors())
        self._registered_at = self._clock.monotonic()
        self.beat(agenda=0)

    def _log_downtime(self, predecessors: list[Node]) -> None:
        """Log since when this node was down, if it died. A node that stops deletes its row."""
        if predecessors:
            since = max(node.heartbeat_at for node in predecessors)
            logger.warning(
                "node restarted after an unclean stop: node=%s last_heartbeat=%s down_for=%s",
                self.name,
                format_site_time(since),
                write_duration(timedelta(seconds=(self._clock.now() - since) // SECOND)),
                extra={"event": "restarted_after_death", "node": self.name, "since": since},
            )

    def _delete_predecessors(self) -> list[Node]:
        return delete_predecessors(self.name, self.namespace, keep=self.id)

    def _delete_late_predecessors(self) -> None:
        """Delete, once, the rows of predecessors that looked alive when this node started."""
        age = self._clock.monotonic() - self._registered_at
        if age > 2 * settings.LEASE.total_seconds():
            self._delete_predecessors()
            self._registered_at = float("inf")

    def beat(self, *, agenda: int, connect: Callable[[], None] = lambda: None) -> bool:
        """Write one heartbeat and renew the leases. Return True if the node has gained shards.

        ``connect`` prepares the thread's connection. Raises database errors, also those of
        ``connect``. If the outage is short, the leases are renewed all the same.
        """
        before = self.shards
        try:
            connect()
            self._update_broker_state()
            self._write_heartbeat(agenda)
            self._delete_late_predecessors()
            self._set_ring(self._nodes.checked_ring())
            self._assigned = shards_led_by(self.id, self._ring, settings.SHARDS)
        except BaseException:
            self._renew_without_database()
            raise
        self._renew(database_reachable=True)
        missing = frozenset() if self.degraded else self._assigned - self._leases.keys()
        self.foreign_locks.check(self._lock_names(missing), self._clock.monotonic())
        return not self.shards <= before

    def record_failed_heartbeat(self, error: Exception) -> None:
        """Record why the node couldn't write a heartbeat."""
        self._outage_search.record_failure(error)

    def _update_broker_state(self) -> None:
        if error := self.broker_error():
            self._last_broker_error = error
            self._broker_unreachable_since = self._broker_unreachable_since or self._clock.now()
            self._broker_back_at = None
        elif self._broker_unreachable_since is not None:
            now = self._clock.monotonic()
            self._broker_back_at = now if self._broker_back_at is None else self._broker_back_at
            if (
                self.id in self._ring
                or now - self._broker_back_at >= settings.LEASE.total_seconds()
            ):
                self._broker_unreachable_since = self._broker_back_at = None
                self._last_broker_error = ""

    def _set_ring(self, ring: frozenset[str]) -> None:
        was_sharing, self._ring = self.id in self._ring, ring
        since = self._broker_unreachable_since
        if was_sharing and self.id not in ring and since is not None:
            logger.warning(
                "broker unreachable, shards released to other nodes: node=%s since=%s",
                self.name,
                format_site_time(since),
                extra={"event": "shards_without_broker", "node": self.name, "since": since},
            )

    def _renew_without_database(self) -> None:
        """Renew the leases after a failed heartbeat, unless the last heartbeat is too old.

        After a short outage, the node keeps its shards. After a longer one, it withdraws: the
        database may be unreachable for this node alone, and other nodes wait for the shards.
        """
        age = self._clock.monotonic() - self._heartbeat_sent_at
        if age < settings.LEASE.total_seconds():
            self._renew()
            return
        if self._assigned:
            logger.warning(
                "heartbeat expired, shards released: node=%s age=%.0fs",
                self.name,
                age,
                extra={"event": "heartbeat_expired", "node": self.name},
            )
        self.withdraw()

    def ring_changed(self) -> bool:
        """Return whether the nodes that share the shards have changed since the last heartbeat.

        If the nodes have changed, the next heartbeat should be sent at once.
        """
        return self._ring != self._nodes.ring()

    def ticked(self) -> None:
        """Record a successful tick."""
        _TICKED.execute(id=self.id)

    def withdraw(self) -> None:
        """Release all shards until the next heartbeat.

        Without a heartbeat, other nodes soon consider this node dead.
        """
        self._assigned = frozenset()
        self._renew()

    def leave(self) -> None:
        """Release all shards and delete this node's row, so that other nodes take over at once.

        Delete the rows of dead nodes, too, if they would mislead after this stop.
        """
        self.withdraw()
        self._row().delete()
        if not self._once:
            record_clean_stop()
        self._delete_predecessors()  # This node may stop before it has deleted the late ones.
        delete_dead_nodes_after_last_stop(self.namespace)

    def _row(self) -> NodeQuerySet:
        return Node.objects.using(alias_for(Node)).filter(pk=self.id)

    def _write_heartbeat(self, agenda: int) -> None:
        using = alias_for(Node)
        sent_at = self._clock.monotonic()
        self._clock.sample(lambda: database_now(using))
        outage = self._outage_search.look_back()
        alive = _HEARTBEAT.execute(
            id=self.id,
            shards=len(self.shards),
            agenda=agenda,
            skew=self._clock.skew,
            clock_doubt=self._clock.doubt,
            degraded=self.degraded,
            lock_error=_storable(self.lock_error),
            broker_unreachable_since=self._broker_unreachable_since,
            broker_error=_storable(self._last_broker_error),
        )
        if alive:
            self._heartbeat_sent_at = sent_at
            self._outage_search.record_heartbeat(outage)
        else:  # The row was deleted manually, or expired while the node was suspended.
            self.register(once=self._once)

    def _renew(self, *, database_reachable: bool = False) -> None:
        """Release the locks of other shards, and renew those of this node's shards.

        ``database_reachable``: the heartbeat has just been written.
        """
        held_before = set(self._leases)
        if not held_before and not self._assigned:
            return  # There is nothing to renew, so the state of the lock server stays unknown.
        try:
            if to_release := held_before - self._assigned:
                self._lock.release(self._lock_names(to_release), self.id)
            leases = self._lock.hold(self._lock_names(self._assigned), self.id, settings.LEASE)
        except LockUnavailable as error:
            in_database = isinstance(error.__cause__, (DatabaseError, InterfaceError))
            if database_reachable or not in_database:  # Otherwise, the tick reports the outage.
                self._report_lock(degraded=True, error=error)
            return
        self._leases = {shard_of_lock(lease.name): lease for lease in leases}
        self._report_lock(degraded=False)
        if set(self._leases) != held_before:
            logger.info(
                "shards changed: node=%s shards=%d/%d",
                self.name,
                len(self._leases),
                settings.SHARDS,
                extra={"event": "shards_changed", "node": self.name, "shards": len(self._leases)},
            )

    def _lock_names(self, shards: Iterable[int]) -> list[str]:
        return [shard_lock_name(self.namespace, shard, settings.SHARDS) for shard in shards]

    def _report_lock(self, *, degraded: bool, error: Exception | None = None) -> None:
        """Log one line when the lock server becomes unreachable, and one when it is back."""
        self.lock_error = in_one_line(error) if error else ""
        if degraded == self.degraded:
            return
        self.degraded = degraded
        if degraded:
            logger.error(
                "lock server unreachable, assigning shards by hash: node=%s error=%s",
                self.name,
                error,
                extra={"event": "degraded", "node": self.name},
            )
        else:
            logger.info(
                "lock server reachable again: node=%s",
                self.name,
                extra={"event": "recovered", "node": self.name},
            )
