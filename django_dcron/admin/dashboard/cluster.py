"""The cluster section of the dashboard: all nodes, and their shares of the shards."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.contrib import admin
from django.utils.html import format_html
from django.utils.translation import gettext as _

from django_dcron.admin.dashboard.viewer import Viewer
from django_dcron.admin.display import badge, change_url, list_url, render_time
from django_dcron.admin.node import JUST_NOW, namespace_of, node_state_badge, skew_of
from django_dcron.admin.visibility import visible_nodes
from django_dcron.diagnosis import cluster
from django_dcron.models import Node

NODES_SHOWN = 20
RANGES_SHOWN = 6


@dataclass(frozen=True, slots=True)
class NodeRow:
    node: Node
    is_live: bool
    url: str
    state: str
    loss: str
    """Since when the node is lost, and whether others do its work. Empty if the node is live."""
    namespace: str
    share: int
    """The share of the shards that the node leads, in percent."""
    assigned: int
    """The number of shards assigned to the node by hash. It may not have all of their locks yet."""
    ranges: str
    """The first ranges of these shards."""
    all_ranges: str
    skew: str
    last_tick: str
    has_other_version: bool
    """Whether the node is live and its version differs from that of the first live node."""


def context(viewer: Viewer) -> dict[str, Any]:
    site, all_nodes = viewer.site, cluster.nodes()
    visible = visible_nodes(viewer.scope)
    nodes = sorted(filter(visible, all_nodes), key=lambda node: not cluster.is_live(node))
    live = [node for node in nodes if cluster.is_live(node)]
    rings = {(node.namespace, node.shard_count) for node in live}
    served = {node.namespace for node in all_nodes if cluster.is_live(node)}
    version = live[0].version if live else ""
    assigned = cluster.assigned_shards(all_nodes)  # hidden nodes have shards, too
    return {
        "rows": [
            _node_row(node, assigned.get(node.pk, []), version, site, served)
            for node in nodes[:NODES_SHOWN]
        ],
        "more": len(nodes[NODES_SHOWN:]),
        "list_url": list_url(Node, site),
        "live": len(live),
        "hides_live": not live and bool(served),
        "led": sum(node.shards for node in live),
        "shards": sum(count for _namespace, count in rings),
        "has_namespaces": any(node.namespace for node in nodes),
    }


def _node_row(
    node: Node, assigned: list[int], version: str, site: admin.AdminSite, served: set[str]
) -> NodeRow:
    """Return the node's row; ``served`` are the namespaces of the live nodes."""
    is_live = cluster.is_live(node)
    ranges = cluster.shard_ranges(assigned)
    more = ["\N{HORIZONTAL ELLIPSIS}"] if len(ranges) > RANGES_SHOWN else []
    return NodeRow(
        node=node,
        is_live=is_live,
        url=change_url(node, site),
        state=node_state_badge(node),
        loss="" if is_live else _loss(node, served),
        namespace=namespace_of(node),
        share=round(100 * node.shards / node.shard_count) if is_live and node.shard_count else 0,
        assigned=len(assigned),
        ranges=", ".join([*ranges[:RANGES_SHOWN], *more]),
        all_ranges=", ".join(ranges),
        skew=skew_of(node),
        last_tick=_last_tick(node),
        has_other_version=is_live and node.version != version,
    )


def _loss(node: Node, served: set[str]) -> str:
    """Describe the loss of a node. A node that stops cleanly deletes its row."""
    text = _("No heartbeat since {}. The node didn't stop cleanly.")
    if served & {"", node.namespace}:
        text = _("No heartbeat since {}. The node didn't stop cleanly. Other nodes do its work.")
    read_at = node.heartbeat_at + cluster.time_since(node, node.heartbeat_at)
    return format_html(text, render_time(node.heartbeat_at, near=read_at))


def _last_tick(node: Node) -> str:
    """Show a recent tick as "just now", so that the row doesn't change with every tick."""
    if node.ticked_at is not None and cluster.time_since(node, node.ticked_at) < JUST_NOW:
        return _("just now")
    last = render_time(node.ticked_at) if node.ticked_at else _("none yet")
    return badge("degraded", last) if cluster.is_stalled(node) else last
