"""Read the nodes' rows by the database's clock, and determine which node leads which shard.

Judged by this machine's clock, a live node could look dead.

Live nodes with the same namespace and the same ``DCRON_SHARDS`` form a ring and share the jobs'
shards. Hashing the ring's nodes assigns each shard to a node, as in ``scheduler.membership``. The
assigned node leads the shard while it holds the shard's lock; a degraded node leads it without the
lock. Just after a node starts or stops, another node may still hold the lock.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any

from django.db.models import QuerySet

from django_dcron.conf import settings
from django_dcron.db.now import UtcNow
from django_dcron.db.routing import alias_for
from django_dcron.diagnosis.overdue import takeover_time
from django_dcron.models import Job, Node
from django_dcron.policies import sharding
from django_dcron.policies.health.nodes import remedy_without_nodes
from django_dcron.schedules.number_ranges import consecutive_ranges

WORRYING_SKEW = timedelta(seconds=1)
RINGS_KEPT = 16


def with_read_time(nodes: QuerySet[Node]) -> QuerySet[Node]:
    """Annotate each row with the time at which it was read; the functions below need it."""
    return nodes.annotate(database_time=UtcNow())


def nodes(namespace: str = "") -> list[Node]:
    """Return the nodes that serve ``namespace``, live or not; all nodes if it is empty."""
    found = Node.objects.using(alias_for(Node)).order_by("name", "pk")
    if namespace:
        found = found.filter(namespace__in=("", namespace))
    return list(with_read_time(found))


def time_since(node: Any, at: datetime) -> timedelta:
    """Return the time from ``at`` until the node's row was read, by the database's clock."""
    passed: timedelta = node.database_time - at
    return passed


def is_live(node: Node) -> bool:
    return time_since(node, node.heartbeat_at) < settings.LEASE


def how_to_start_node() -> str:
    """Return how this project starts a node, as a sentence in the active language."""
    return str(remedy_without_nodes(settings.AUTOSTART))


def live_namespaces() -> set[str]:
    """Return the namespaces of the live nodes. Empty: the node serves all namespaces."""
    return {node.namespace for node in nodes() if is_live(node)}


def dead_nodes(nodes: Iterable[Node]) -> list[Node]:
    """Return the nodes that died and weren't restarted under the same name.

    For a node that died more than once, this is the latest of its rows.
    """
    latest = {
        (node.namespace, node.name): node
        for node in sorted(nodes, key=lambda node: node.heartbeat_at)
    }
    return [node for node in latest.values() if not is_live(node)]


def is_stalled(node: Node) -> bool:
    """Return whether the node's heartbeat is current but its ticks don't succeed."""
    return (
        is_live(node)
        and time_since(node, node.ticked_at or node.started_at)
        > takeover_time() + 4 * settings.TICK
    )


def is_starting(node: Node) -> bool:
    """Return whether the node may still be acquiring the locks of its shards."""
    return time_since(node, node.started_at) <= takeover_time()


def may_still_rescue(node: Node) -> bool:
    """Return whether the node is too new to have rescued all runs whose worker died."""
    return time_since(node, node.started_at) <= settings.RUN_LEASE + takeover_time()


def working_nodes(nodes: Sequence[Node]) -> list[Node]:
    """Return the nodes that schedule jobs, or would do so if another node stopped.

    ``nodes`` must include all nodes of their rings.
    """
    assigned = assigned_shards(nodes)
    return [node for node in nodes if _works(node, has_shards=bool(assigned.get(node.pk)))]


def _works(node: Node, *, has_shards: bool) -> bool:
    """``has_shards``: whether shards are assigned to the node, which it must lead after a while."""
    if not is_live(node) or is_stalled(node) or node.broker_unreachable_since is not None:
        return False
    leads_assigned = node.degraded or node.shards > 0 or not has_shards
    return leads_assigned or is_starting(node)


def serving_nodes(working: Iterable[Node], namespaces: Iterable[str]) -> dict[str, list[Node]]:
    """Return which of the ``working`` nodes serve each of the namespaces."""
    nodes = list(working)
    return {
        namespace: [node for node in nodes if node.namespace in ("", namespace)]
        for namespace in sorted(namespaces)
    }


def is_skewed(node: Node) -> bool:
    return abs(node.skew) >= WORRYING_SKEW


@dataclass(frozen=True, slots=True)
class ShardLeader:
    """The node to which a job's shard is assigned."""

    node: Node
    shard: int
    assigned: int
    """The number of shards assigned to the node."""

    @property
    def leads_all(self) -> bool:
        """Whether the node led all of its assigned shards at its last heartbeat."""
        return self.node.degraded or self.node.shards >= self.assigned

    @property
    def leads_none(self) -> bool:
        """Whether the node led no shard at its last heartbeat: other nodes have the locks."""
        return not self.node.degraded and not self.node.shards

    @property
    def is_starting(self) -> bool:
        return is_starting(self.node)

    @property
    def is_stalled(self) -> bool:
        return is_stalled(self.node)


def leaders_of(job: Job, nodes: Iterable[Node]) -> list[ShardLeader]:
    """Return the leader of the job's shard in each ring that serves the job.

    With more than one leader, nodes do the same work twice. ``nodes`` must include all nodes that
    serve the job.
    """
    found = []
    for (namespace, count), ring in sorted(_rings(nodes).items()):
        if namespace in ("", job.namespace):
            shard = sharding.shard_of_job(job.pk, count)
            leaders = _leaders(frozenset(ring), count)
            found.append(ShardLeader(ring[leaders[shard]], shard, leaders.count(leaders[shard])))
    return found


def assigned_shards(nodes: Iterable[Node]) -> dict[str, list[int]]:
    """Return the shards assigned to each live node, by the node's key.

    ``nodes`` must include all nodes of their rings.
    """
    assigned: dict[str, list[int]] = {}
    for (_namespace, count), ring in _rings(nodes).items():
        assigned |= {pk: [] for pk in ring}
        for shard, leader in enumerate(_leaders(frozenset(ring), count)):
            assigned[leader].append(shard)
    return assigned


def count_unled_shards(live: Iterable[Node]) -> int:
    """Return the number of shards without a leader.

    Nodes with the same namespace and ``DCRON_SHARDS`` share these shards.
    """
    led: defaultdict[tuple[str, int], int] = defaultdict(int)
    for node in live:
        led[node.namespace, node.shard_count] += node.shards
    return sum(max(count - shards, 0) for (_, count), shards in led.items())


def shard_ranges(shards: Collection[int]) -> list[str]:
    """Format shards as ranges with an en dash: 0-3, 7, 12-15."""
    ranges = consecutive_ranges(sorted(shards))
    return [f"{each[0]}\N{EN DASH}{each[-1]}" if each[1:] else str(each[0]) for each in ranges]


def _rings(nodes: Iterable[Node]) -> dict[tuple[str, int], dict[str, Node]]:
    """Group the live nodes by (namespace, number of shards), then by key."""
    rings: defaultdict[tuple[str, int], dict[str, Node]] = defaultdict(dict)
    for node in nodes:
        if is_live(node) and node.shard_count:
            rings[node.namespace, node.shard_count][node.pk] = node
    return rings


@lru_cache(RINGS_KEPT)
def _leaders(ring: frozenset[str], shards: int) -> tuple[str, ...]:
    return tuple(sharding.leaders(ring, shards))
