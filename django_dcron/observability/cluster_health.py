"""How the nodes are, all together, by their rows: is every job served by a node that works?

ok        every namespace with enabled jobs has a live node whose ticks go through, and nothing is odd
degraded  the work is done, but a node is stalled, cannot reach the lock, or has a clock that is off; or none is live, and
          there is nothing to do
unfit     a namespace's jobs are served by nobody

Two queries, whatever the number of jobs and runs. Of dead nodes only the number is told: their work is done by others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from django_dcron.domain.counts_in_words import number_of
from django_dcron.models import Job, Node
from django_dcron.models.database import alias_for
from django_dcron.observability import cluster
from django_dcron.scheduler.health import Status

LISTED = 200
"""Nodes and namespaces that are named at the most."""


@dataclass(frozen=True, slots=True)
class ClusterHealth:
    live: tuple[Node, ...]
    dead: int
    stalled: tuple[Node, ...]
    """They live, but their ticks do not go through."""
    degraded: tuple[Node, ...]
    skewed: tuple[Node, ...]
    unserved: tuple[str, ...]
    """Namespaces with enabled jobs that no node works for."""

    @property
    def status(self) -> Status:
        if self.unserved:
            return Status.UNFIT
        odd = self.stalled or self.degraded or self.skewed or not self.live
        return Status.DEGRADED if odd else Status.OK

    @property
    def reasons(self) -> list[str]:
        """Without names: they may be shown to anybody."""
        reasons = [] if self.live else ["no node is live"]
        if number := len(self.unserved):
            reasons.append(f"no node works for {number_of(number, 'namespace')} with enabled jobs")
        for nodes, is_so, are_so in (
            (
                self.stalled,
                "lives, but its ticks do not go through",
                "live, but their ticks do not go through",
            ),
            (self.degraded, "cannot reach the lock", "cannot reach the lock"),
            (self.skewed, "has a wall clock that is off", "have wall clocks that are off"),
        ):
            if nodes:
                reasons.append(number_of(len(nodes), f"node {is_so}", f"nodes {are_so}"))
        return reasons

    def as_json(self, *, names: bool) -> dict[str, Any]:
        content: dict[str, Any] = {
            "status": self.status.value,
            "reasons": self.reasons,
            "live": len(self.live),
            "dead": self.dead,
            "stalled": len(self.stalled),
            "degraded": len(self.degraded),
            "skewed": len(self.skewed),
            "unserved": len(self.unserved),
        }
        if names:
            content["nodes"] = [self._named(node) for node in self.live[:LISTED]]
            content["unserved_namespaces"] = list(self.unserved[:LISTED])
        return content

    def _named(self, node: Node) -> dict[str, Any]:
        return {
            "name": node.name,
            "id": node.pk,
            "namespace": node.namespace,
            "release": node.release,
            "shards": node.shards,
            "agenda": node.agenda,
            "stalled": node in self.stalled,
            "degraded": node.degraded,
            "skew": round(node.skew.total_seconds(), 3),
        }


def read() -> ClusterHealth:
    """Raises the database's errors."""
    nodes = cluster.nodes()
    live = tuple(node for node in nodes if cluster.is_live(node))
    stalled = tuple(node for node in live if cluster.is_stalled(node))
    return ClusterHealth(
        live=live,
        dead=len(nodes) - len(live),
        stalled=stalled,
        degraded=tuple(node for node in live if node.degraded),
        skewed=tuple(node for node in live if cluster.is_skewed(node)),
        unserved=_unserved([node for node in live if node not in stalled]),
    )


def _unserved(working: Sequence[Node]) -> tuple[str, ...]:
    served = {node.namespace for node in working}
    if "" in served:
        return ()
    jobs = Job.objects.using(alias_for(Job)).enabled().order_by()
    return tuple(sorted(set(jobs.values_list("namespace", flat=True).distinct()) - served))
