"""The nodes' rows by the database's clock (by this machine's a living node may look dead), and who leads which shard.

Nodes of one namespace that have the same DCRON_SHARDS are a ring: they share the jobs' shards, and the hashing of the live ones
names each shard's leader, here as in ``scheduler.membership``. A node that is *named* for a shard leads it while it holds its
lock, or, degraded, without. Just after a node has come or gone it is another that still holds it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any

from django.db.models import QuerySet

from django_dcron.conf import settings
from django_dcron.domain import sharding
from django_dcron.models import Job, Node
from django_dcron.models.database import UtcNow, alias_for
from django_dcron.observability.overdue import patience

WORRYING_SKEW = timedelta(seconds=1)
RINGS_KEPT = 16


def with_time(nodes: QuerySet[Node]) -> QuerySet[Node]:
    """What the functions below need: each row with the time at which it was read."""
    return nodes.annotate(database_time=UtcNow())


def nodes(namespace: str = "") -> list[Node]:
    """Those that serve ``namespace``, live or not; all if it is empty."""
    found = Node.objects.using(alias_for(Node)).order_by("name", "pk")
    if namespace:
        found = found.filter(namespace__in=("", namespace))
    return list(with_time(found))


def age(node: Any, at: datetime) -> timedelta:
    passed: timedelta = node.database_time - at
    return passed


def is_live(node: Node) -> bool:
    return age(node, node.heartbeat_at) < settings.LEASE


def is_stalled(node: Node) -> bool:
    """Its heart beats, but its ticks do not go through."""
    return is_live(node) and age(node, node.ticked_at or node.started_at) > patience() + 4 * settings.TICK


def is_skewed(node: Node) -> bool:
    return abs(node.skew) >= WORRYING_SKEW


@dataclass(frozen=True, slots=True)
class Leader:
    """Of a job's shard."""

    node: Node
    shard: int
    named: int
    """For how many shards it is."""

    @property
    def holds_all(self) -> bool:
        """Whether it led as many as it is named for, at its last heartbeat: so this one, too."""
        return self.node.degraded or self.node.shards >= self.named

    @property
    def is_stalled(self) -> bool:
        return is_stalled(self.node)


def leaders_of(job: Job, nodes: Iterable[Node]) -> list[Leader]:
    """One of each ring that serves the job; more than one do the same work twice. ``nodes``: at least all that serve it."""
    found = []
    for (namespace, count), ring in sorted(_rings(nodes).items()):
        if namespace in ("", job.namespace):
            shard = job.pk % count  # as ``in_shards`` has it
            leaders = _leaders(frozenset(ring), count)
            found.append(Leader(ring[leaders[shard]], shard, leaders.count(leaders[shard])))
    return found


def named_shards(nodes: Iterable[Node]) -> dict[str, list[int]]:
    """The shards that each live node is named for, by the node's key. ``nodes``: at least all of their rings."""
    named: dict[str, list[int]] = {}
    for (_namespace, count), ring in _rings(nodes).items():
        named |= {pk: [] for pk in ring}
        for shard, leader in enumerate(_leaders(frozenset(ring), count)):
            named[leader].append(shard)
    return named


def in_ranges(shards: Collection[int]) -> list[str]:
    """Those on end as one: 0-3, 7, 12-15, with a dash."""
    ranges: list[list[int]] = []
    for shard in sorted(shards):
        if ranges and ranges[-1][-1] == shard - 1:
            ranges[-1][1:] = [shard]
        else:
            ranges.append([shard])
    return ["\N{EN DASH}".join(map(str, ends)) for ends in ranges]


def _rings(nodes: Iterable[Node]) -> dict[tuple[str, int], dict[str, Node]]:
    """The live nodes by namespace and number of shards, then by key."""
    rings: defaultdict[tuple[str, int], dict[str, Node]] = defaultdict(dict)
    for node in nodes:
        if is_live(node) and node.shard_count:
            rings[node.namespace, node.shard_count][node.pk] = node
    return rings


@lru_cache(RINGS_KEPT)
def _leaders(ring: frozenset[str], shards: int) -> tuple[str, ...]:
    return tuple(sharding.leaders(ring, shards))
