"""The ring: the live nodes that share the shards, by the database's clock.

Invariants:

- All nodes compute the same ring from the same rows.
- Nodes share the shards only with nodes of the same ``DCRON_SHARDS``. During a deploy that changes
  it, each group leads all shards. That costs time, but never creates a second run.
- A node that hasn't reached the broker for ``DCRON_LEASE`` isn't in the ring while another live
  node reaches the broker. If no node reaches the broker, all nodes are in the ring.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import NamedTuple

from django_dcron.conf import settings
from django_dcron.db.statements import Select
from django_dcron.models import Node

logger = logging.getLogger("django_dcron.scheduler")


class _Member(NamedTuple):
    """The facts about a live node that decide which nodes share the shards."""

    id: str
    broker_lost: bool
    """Whether the node has been unable to dispatch for ``DCRON_LEASE``."""
    broker_reached: bool


class _LiveNode(NamedTuple):
    """A row of the query for all live nodes."""

    id: str
    broker_lost: bool
    broker_reached: bool
    namespace: str
    shard_count: int

    @property
    def member(self) -> _Member:
        return _Member(self.id, bool(self.broker_lost), bool(self.broker_reached))


class LiveNodes:
    """The live nodes that share the shards with node ``name``, itself included."""

    def __init__(self, name: str, namespace: str) -> None:
        self._name = name
        self._namespace = namespace
        self._sharing = Select(
            Node,
            lambda: (
                Node.objects.live(settings.LEASE)
                .filter(namespace=namespace, shard_count=settings.SHARDS)
                .order_by()
                .with_broker_state(settings.LEASE)
                .values_list("pk", "broker_lost", "broker_reached")
            ),
        )
        self._all = Select(
            Node,
            lambda: (
                Node.objects.live(settings.LEASE)
                .order_by()
                .with_broker_state(settings.LEASE)
                .values_list("pk", "broker_lost", "broker_reached", "namespace", "shard_count")
            ),
        )
        self._overlaps = False
        self._counts_differ = False

    def ring(self) -> frozenset[str]:
        """Return the ids of the nodes that share the shards."""
        return _ring(
            _Member(pk, bool(lost), bool(reached)) for pk, lost, reached in self._sharing.rows()
        )

    def checked_ring(self) -> frozenset[str]:
        """Return the ring. Log a warning if nodes outside the ring serve the same jobs.

        Such nodes do work twice, but no run starts twice.
        """
        nodes = [_LiveNode(*row) for row in self._all.rows()]
        others = {node.namespace for node in nodes} - {self._namespace}
        self._report_overlap("" in others or (not self._namespace and bool(others)))
        of_namespace = [node for node in nodes if node.namespace == self._namespace]
        self._report_counts(sorted({node.shard_count for node in of_namespace} - {settings.SHARDS}))
        return _ring(node.member for node in of_namespace if node.shard_count == settings.SHARDS)

    def _report_overlap(self, overlaps: bool) -> None:
        """Warn when nodes of one and of all namespaces begin to serve the same jobs."""
        if overlaps and not self._overlaps:
            logger.warning(
                "namespaces overlap: node=%s namespace=%s; use --namespace on all nodes or on none",
                self._name,
                self._namespace or "(all)",
                extra={"event": "namespaces_overlap", "node": self._name},
            )
        self._overlaps = overlaps

    def _report_counts(self, others: list[int]) -> None:
        """Warn when nodes begin to use different shard counts."""
        if others and not self._counts_differ:
            logger.warning(
                "shard counts differ: node=%s shards=%d others=%s; set the same DCRON_SHARDS "
                "on all nodes",
                self._name,
                settings.SHARDS,
                ", ".join(map(str, others)),
                extra={"event": "shards_differ", "node": self._name},
            )
        self._counts_differ = bool(others)


def _ring(members: Iterable[_Member]) -> frozenset[str]:
    members = list(members)
    broker_is_reachable = any(member.broker_reached for member in members)
    return frozenset(
        member.id for member in members if not (broker_is_reachable and member.broker_lost)
    )
