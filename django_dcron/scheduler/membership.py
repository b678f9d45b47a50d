"""Membership: a node's heartbeat, the live nodes, and the shards this node leads.

Invariants:

- Who is alive is judged by the database's clock alone. All nodes compute the same leaders from the same list.
- A node leads a shard while it holds a valid lease on the shard's lock; a lease is believed in until ``expires_at`` on the
  monotonic clock, so a node that was frozen past it leads nothing when it wakes.
- Nodes share the shards with those that have the same ``DCRON_SHARDS``. While they differ, as in a deploy that changes it, each
  group leads everything; that costs work, never a second run.
- A node that hasn't reached the broker for ``DCRON_LEASE`` shares in no shards while another live node reaches it. It shares again
  once it has reached the broker for as long: a broker that comes and goes makes the shards move once in a lease at most. Where no
  node reaches the broker, all of them keep their shares.
- While the lock's server cannot be reached the node is *degraded*: it leads what the hashing alone names it for. Two nodes
  may then lead one shard for a moment; that costs work, never a second run.
- The heartbeat has its own thread and database connection: a slow claim never loses a lease. One that hangs does: then
  the node withdraws, so that its shards are not led by somebody who does nothing for them.
- A node renews its leases only while its own last heartbeat is younger than ``DCRON_LEASE``. After that the other nodes take
  it for dead, so it releases its shards, whether or not it reaches the lock's server.
"""

from __future__ import annotations

import logging
import os
import platform
import secrets
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from typing import NamedTuple

from django_dcron import __version__
from django_dcron.conf import settings
from django_dcron.domain.clock import ClusterClock
from django_dcron.domain.counts_in_words import number_of
from django_dcron.domain.sharding import shards_led_by
from django_dcron.exceptions import LockUnavailable
from django_dcron.locks.base import Lease, Lock
from django_dcron.models import Node
from django_dcron.models.database import UtcNow, alias_for, database_now
from django_dcron.models.node import NodeQuerySet
from django_dcron.models.statement import Given, Select, Update

logger = logging.getLogger("django_dcron.scheduler")

FORGOTTEN_AFTER = timedelta(days=1)
"""A dead node's row stays so long, for people to see."""


_TICKED = Update(Node, lambda: Node.objects.filter(pk=Given(Node, "id")), ticked_at=UtcNow())


class _Member(NamedTuple):
    """A live node, as far as the sharing goes."""

    id: str
    broker_lost: bool
    """It can't dispatch, and hasn't been able to for ``DCRON_LEASE``."""
    broker_reached: bool


def _ring(members: Iterable[_Member]) -> frozenset[str]:
    """The nodes that the shards are shared out among."""
    members = list(members)
    some_reach_it = any(member.broker_reached for member in members)
    return frozenset(member.id for member in members if not (some_reach_it and member.broker_lost))


class Membership:
    def __init__(self, name: str, namespace: str, lock: Lock, clock: ClusterClock):
        self.name = name
        self.namespace = namespace
        self.id = f"{name[:150]}-{secrets.token_hex(4)}"
        self.degraded = False
        self._lock = lock
        self._clock = clock
        self._named: frozenset[int] = frozenset()
        """The shards the hashing names this node for."""
        self._leases: dict[int, Lease] = {}
        self._ring: frozenset[str] = frozenset()
        """The live nodes among whom the shards were shared out at the last heartbeat."""
        self._sharing = Select(
            Node,
            lambda: (
                Node.objects.live(settings.LEASE)
                .filter(namespace=namespace, shard_count=settings.SHARDS)
                .order_by()
                .broker_known(settings.LEASE)
                .values_list("pk", "broker_lost", "broker_reached")
            ),
        )
        self._overlaps = False
        self._counts_differ = False
        self.broker_away: Callable[[], bool] = lambda: False
        """Asked at each heartbeat: whether the last try to dispatch has found no broker."""
        self._broker_away_since: datetime | None = None
        self._broker_back_at: float | None = None
        """On the monotonic clock, for a node that shared in no shards for it."""
        self._beaten_at = float("-inf")
        """When the last heartbeat that was written was sent, on the monotonic clock."""

    @property
    def shards(self) -> frozenset[int]:
        """The shards this node leads now."""
        if self.degraded:
            return self._named
        now = self._clock.monotonic()
        return frozenset(shard for shard, lease in self._leases.items() if lease.valid(now))

    @property
    def leases(self) -> int:
        """How many shards' locks it holds; while ``degraded`` that may be fewer than it leads."""
        now = self._clock.monotonic()
        return sum(lease.valid(now) for lease in self._leases.values())

    @property
    def pause(self) -> float:
        """Seconds to the next heartbeat: sooner while another still holds what this node is to lead."""
        third = settings.LEASE.total_seconds() / 3
        return third if self.shards == self._named else third / 4

    def register(self) -> None:
        """Enter this node; the first sample of the cluster clock."""
        using = alias_for(Node)
        self._clock.sample(lambda: database_now(using))
        Node.objects.using(using).create(
            id=self.id,
            name=self.name,
            namespace=self.namespace,
            host=platform.node(),
            pid=os.getpid(),
            release=__version__,
            started_at=UtcNow(),
            heartbeat_at=UtcNow(),
            skew=self._clock.skew,
            shard_count=settings.SHARDS,
        )
        Node.objects.using(using).expired(FORGOTTEN_AFTER).delete()
        self.beat(agenda=0)

    def beat(self, *, agenda: int) -> bool:
        """One heartbeat; True if the node leads shards that it did not lead before. Raises the database's errors."""
        before = self.shards
        try:
            self._see_broker()
            self._write_heartbeat(agenda)
            self._set_ring(self._live())
            self._named = shards_led_by(self.id, self._ring, settings.SHARDS)
        except BaseException:
            self._renew_without_database()
            raise
        self._renew()
        return not self.shards <= before

    def _see_broker(self) -> None:
        if self.broker_away():
            self._broker_away_since = self._broker_away_since or self._clock.now()
            self._broker_back_at = None
        elif self._broker_away_since is not None:
            now = self._clock.monotonic()
            self._broker_back_at = now if self._broker_back_at is None else self._broker_back_at
            if self.id in self._ring or now - self._broker_back_at >= settings.LEASE.total_seconds():
                self._broker_away_since = self._broker_back_at = None

    def _set_ring(self, ring: frozenset[str]) -> None:
        shares, shared = self.id in ring, self.id in self._ring
        self._ring = ring
        extra = {"event": "shards_without_broker", "node": self.name}
        if shared and not shares and self._broker_away_since is not None:
            text = "broker unreachable: %s gives its shards to nodes that reach the broker: since=%s"
            logger.warning(text, self.name, f"{self._broker_away_since:%H:%M:%S} UTC", extra=extra)

    def _renew_without_database(self) -> None:
        """A brief outage costs no shard. After a longer one the database may refuse this node alone, and others wait for its
        shards."""
        age = self._clock.monotonic() - self._beaten_at
        if age < settings.LEASE.total_seconds():
            self._renew()
            return
        if self._named:
            logger.warning(
                "heartbeat too old: %s releases its shards, other nodes take it for dead: age=%.0fs",
                self.name,
                age,
                extra={"event": "heartbeat_expired", "node": self.name},
            )
        self.withdraw()

    def ring_changed(self) -> bool:
        """Whether a node has come, left or died since the last heartbeat: then the next one should not wait."""
        return self._ring != _ring(
            _Member(pk, bool(lost), bool(reached)) for pk, lost, reached in self._sharing.rows()
        )

    def ticked(self) -> None:
        """A tick went through."""
        _TICKED.execute(id=self.id)

    def withdraw(self) -> None:
        """Let go of all shards until the next heartbeat. Without one, the others soon take this node for dead."""
        self._named = frozenset()
        self._renew()

    def leave(self) -> None:
        """Let go of all shards and strike this node off, so that others take over at once."""
        self.withdraw()
        self._row().delete()

    def _row(self) -> NodeQuerySet:
        return Node.objects.using(alias_for(Node)).filter(pk=self.id)

    def _write_heartbeat(self, agenda: int) -> None:
        using = alias_for(Node)
        sent_at = self._clock.monotonic()
        self._clock.sample(lambda: database_now(using))
        alive = self._row().update(
            heartbeat_at=UtcNow(),
            shards=len(self.shards),
            agenda=agenda,
            skew=self._clock.skew,
            degraded=self.degraded,
            broker_away_since=self._broker_away_since,
        )
        if alive:
            self._beaten_at = sent_at
        else:  # struck off by hand, or forgotten while frozen
            self.register()

    def _live(self) -> frozenset[str]:
        """The nodes that share this node's work, by the database's clock."""
        live = Node.objects.using(alias_for(Node)).live(settings.LEASE)
        columns = ("pk", "broker_lost", "broker_reached", "namespace", "shard_count")
        nodes = list(live.broker_known(settings.LEASE).values_list(*columns))
        others = {namespace for *_, namespace, _ in nodes if namespace != self.namespace}
        self._report_overlap("" in others or (not self.namespace and bool(others)))
        of_namespace = [node for node in nodes if node[3] == self.namespace]
        self._report_counts(sorted({node[4] for node in of_namespace} - {settings.SHARDS}))
        sharing = (node for node in of_namespace if node[4] == settings.SHARDS)
        return _ring(_Member(pk, bool(lost), bool(reached)) for pk, lost, reached, *_ in sharing)

    def _renew(self) -> None:
        held = set(self._leases)
        if not held and not self._named:
            return  # nothing to ask the lock's server for, so nothing is learned of it
        try:
            if given_up := held - self._named:
                self._lock.release([self._lock_name(shard) for shard in given_up], self.id)
            leases = self._lock.hold(
                [self._lock_name(shard) for shard in self._named], self.id, settings.LEASE
            )
        except LockUnavailable as error:
            self._report(degraded=True, error=error)
            return
        self._leases = {_shard(lease.name): lease for lease in leases}
        self._report(degraded=False)
        if set(self._leases) != held:
            logger.info(
                "%s leads %d of %d shards",
                self.name,
                len(self._leases),
                settings.SHARDS,
                extra={"event": "shards", "node": self.name, "shards": len(self._leases)},
            )

    def _lock_name(self, shard: int) -> str:
        return f"{self.namespace}:shard:{shard}/{settings.SHARDS}"

    def _report_overlap(self, overlaps: bool) -> None:
        """One line when nodes of one namespace meet nodes of all: their work is done twice, though no run starts twice."""
        if overlaps and not self._overlaps:
            logger.warning(
                "%s serves %s while other nodes serve some of the same jobs: give all nodes a namespace, or none",
                self.name,
                f"namespace {self.namespace}" if self.namespace else "all namespaces",
                extra={"event": "namespaces_overlap", "node": self.name},
            )
        self._overlaps = overlaps

    def _report_counts(self, others: list[int]) -> None:
        """One line when nodes meet that cut the jobs into other shards: their work is done twice, though no run starts twice."""
        if others and not self._counts_differ:
            logger.warning(
                "%s cuts the jobs into %s, other nodes into %s: give all nodes the same DCRON_SHARDS",
                self.name,
                number_of(settings.SHARDS, "shard"),
                ", ".join(map(str, others)),
                extra={"event": "shards_differ", "node": self.name},
            )
        self._counts_differ = bool(others)

    def _report(self, *, degraded: bool, error: Exception | None = None) -> None:
        """One line when the lock's server goes, one when it is back."""
        if degraded == self.degraded:
            return
        self.degraded = degraded
        if degraded:
            logger.error(
                "degraded: the lock cannot be reached, %s leads by hashing alone: %s",
                self.name,
                error,
                extra={"event": "degraded", "node": self.name},
            )
        else:
            logger.info(
                "%s can reach the lock again", self.name, extra={"event": "recovered", "node": self.name}
            )


def _shard(lock_name: str) -> int:
    return int(lock_name.rpartition(":")[2].partition("/")[0])
