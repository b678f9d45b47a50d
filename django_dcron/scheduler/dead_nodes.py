"""Dead nodes: when the rows of nodes that ended without a clean stop are deleted.

Invariants:

- Only rows without a heartbeat for ``DCRON_LEASE`` are deleted, by the database's clock. A node
  that was only suspended registers again.
- If no node of a namespace is live, the latest heartbeat in its rows is the time at which its last
  node ended, give or take ``DCRON_LEASE``.
"""

from __future__ import annotations

import os
import platform
from datetime import timedelta

from django_dcron.conf import settings
from django_dcron.db.routing import alias_for
from django_dcron.models import Node

KEEP_DEAD_NODES_FOR = timedelta(days=1)
"""How long the row of a dead node is kept for display."""


def server_node_name(host: str, pid: int) -> str:
    """Return the name of a node that a process of the web server starts."""
    return f"{host[:100]}-{pid}"


def delete_dead_nodes() -> None:
    """Delete the rows of nodes that died more than ``KEEP_DEAD_NODES_FOR`` ago."""
    Node.objects.using(alias_for(Node)).expired(KEEP_DEAD_NODES_FOR).delete()


def delete_predecessors(name: str, namespace: str, *, keep: str) -> list[Node]:
    """Delete and return the rows of dead nodes that the node ``keep`` replaces.

    These are nodes of the same name on any host and, if a server started the node (``autostart``),
    all dead nodes that a server started on this host.
    """
    host = platform.node()
    dead = Node.objects.using(alias_for(Node)).expired(settings.LEASE)
    dead = dead.filter(namespace=namespace).exclude(pk=keep)
    by_server = name == server_node_name(host, os.getpid())
    replaced = [
        node
        for node in dead
        if node.name == name
        or (by_server and (node.host, node.name) == (host, server_node_name(host, node.pid)))
    ]
    dead.filter(pk__in=[node.pk for node in replaced]).delete()
    return replaced


def delete_dead_nodes_after_last_stop(namespace: str) -> None:
    """Delete the rows of dead nodes if no live node serves the namespace any more.

    A node calls this after a clean stop. An older heartbeat would look like the end of the last
    node. If no node at all is live, that is true of every namespace.
    """
    nodes = Node.objects.using(alias_for(Node))
    live = nodes.live(settings.LEASE)
    if not live.exists():
        nodes.expired(settings.LEASE).delete()
    elif not live.filter(namespace__in={"", namespace}).exists():
        nodes.filter(namespace=namespace).expired(settings.LEASE).delete()
