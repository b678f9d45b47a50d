"""Check for dead nodes, and that a live node leads each shard."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection

from django_dcron.conf import settings
from django_dcron.db.routing import alias_for
from django_dcron.diagnosis import cluster
from django_dcron.diagnosis.doctor.findings import LOCK, Code, Findings, Subject
from django_dcron.diagnosis.doctor.window import Window, format_moment
from django_dcron.diagnosis.overdue import takeover_time
from django_dcron.exceptions import LockUnavailable
from django_dcron.locks import Lock
from django_dcron.models import Node
from django_dcron.utils.counts import number_of
from django_dcron.utils.time_format import format_duration

Groups = dict[str, list[Node]]
"""The live nodes by the namespace that they serve. The empty namespace serves all."""


def examine_nodes(window: Window, findings: Findings, lock: Lock) -> None:
    """Check what the health verdict doesn't cover: dead nodes and the locks of the shards."""
    nodes = cluster.nodes(window.namespace)
    live = [node for node in nodes if cluster.is_live(node)]
    started_again = {(node.namespace, node.name) for node in live}
    for node in nodes:
        if not cluster.is_live(node) and (node.namespace, node.name) not in started_again:
            _add_dead(node, findings, has_successor=bool(live))
    groups: defaultdict[str, list[Node]] = defaultdict(list)
    for node in live:
        groups[node.namespace].append(node)
    _check_lock(window, groups, lock, findings)


def _node_subject(node: Node) -> Subject:
    return Subject("node", str(node.pk), node.name)


def _add_dead(node: Node, findings: Findings, *, has_successor: bool) -> None:
    takeover = "Other live nodes have taken over its shards. " if has_successor else ""
    findings.add(
        Code.NODE_DEAD,
        _node_subject(node),
        f"The last heartbeat was at {format_moment(node.heartbeat_at)}: process {node.pid} on "
        f"{node.host} died or hangs. {takeover}Start the node again. If a node of another name has "
        "replaced it, delete its row in the admin, or wait: the row is removed after 24 hours.",
    )


def _check_lock(window: Window, groups: Groups, lock: Lock, findings: Findings) -> None:
    try:
        for problem in getattr(lock, "problems", list)():
            findings.add(Code.LOCK_UNSAFE, LOCK, problem)
        for namespace, nodes in groups.items():
            _check_shards(window, namespace, nodes, lock, findings)
    except LockUnavailable as error:
        findings.add(
            Code.LOCK_UNREACHABLE,
            LOCK,
            f"{str(error).rstrip('.')}. Nodes that can't reach the lock server assign shards by "
            "hash. Check the lock server and the network.",
        )


def _check_shards(
    window: Window, namespace: str, nodes: list[Node], lock: Lock, findings: Findings
) -> None:
    """Check that a live node has each shard's lock.

    Nodes that have just started get time to acquire their locks. Only shards of this process's
    ``DCRON_SHARDS`` are checked. ``SHARDS_DIFFER`` reports other values.
    """
    nodes = [node for node in nodes if node.shard_count == settings.SHARDS]
    # ``scheduler.membership`` uses the same names.
    shards = {
        f"{namespace}:shard:{shard}/{settings.SHARDS}": shard for shard in range(settings.SHARDS)
    }
    holders = lock.holders(list(shards))
    if not nodes:
        return
    if max(node.started_at for node in nodes) > window.now - takeover_time():
        return
    unled = sorted(shard for name, shard in shards.items() if name not in holders)
    if unled and not all(node.degraded for node in nodes):
        _add_unled(namespace, unled, findings)
    shards_by_holder: defaultdict[str, list[int]] = defaultdict(list)
    for name, holder in holders.items():
        shards_by_holder[holder].append(shards[name])
    _add_orphaned(shards_by_holder, {node.pk for node in nodes}, findings)


def _add_unled(namespace: str, shards: list[int], findings: Findings) -> None:
    findings.add(
        Code.SHARDS_UNLED,
        Subject("namespace", namespace, namespace or "(all)"),
        f"{number_of(len(shards), 'shard')} of {settings.SHARDS} without a leader "
        f"({_list_shards(shards)}), so their jobs aren't scheduled. If this lasts longer than "
        f"the lease ({format_duration(settings.LEASE)}), check DCRON_SHARDS, DCRON_LOCK and "
        "the logs of the nodes.",
    )


def _add_orphaned(
    shards_by_holder: dict[str, list[int]], live: Collection[str], findings: Findings
) -> None:
    """Report the leases of holders that aren't among the keys of live nodes."""
    others = shards_by_holder.keys() - live
    foreign = Node.objects.using(alias_for(Node)).unknown(others)
    for holder in sorted(others):
        shards = sorted(shards_by_holder[holder])
        leases = f"the leases of {number_of(len(shards), 'shard')} ({_list_shards(shards)})"
        if holder in foreign:
            message = (
                f"A node that isn't in this database has {leases}, so no node of this site "
                "schedules their jobs. Another site probably uses the same Redis. Give each site "
                "its own KEY_PREFIX in CACHES, or its own database number."
            )
        else:
            message = (
                f"The node isn't live but still has {leases} until they expire. If this lasts "
                f"longer than the lease ({format_duration(settings.LEASE)}), look for a process "
                "that can't reach the database."
            )
        findings.add(Code.LEASE_ORPHANED, Subject("node", holder, holder), message)


def _list_shards(shards: list[int]) -> str:
    return ", ".join(map(str, shards[:8])) + (", ..." if len(shards) > 8 else "")
