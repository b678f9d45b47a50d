"""Nodes that died, and the locks of the shards: does a live node lead each shard?"""

from __future__ import annotations

from collections import defaultdict

from django_dcron.conf import settings
from django_dcron.domain.counts_in_words import number_of
from django_dcron.exceptions import LockUnavailable
from django_dcron.locks import Lock
from django_dcron.models import Node
from django_dcron.observability import cluster
from django_dcron.observability.doctor.findings import LOCK, Code, Findings, Subject
from django_dcron.observability.doctor.window import Window, at
from django_dcron.observability.overdue import patience

Groups = dict[str, list[Node]]
"""The live nodes by the namespace they serve; the empty one serves all."""


def examine(window: Window, findings: Findings, lock: Lock) -> None:
    """What the health verdict does not tell: nodes that died, and the locks of the shards."""
    nodes = cluster.nodes(window.namespace)
    live = [node for node in nodes if cluster.is_live(node)]
    started_again = {(node.namespace, node.name) for node in live}
    for node in nodes:
        if not cluster.is_live(node) and (node.namespace, node.name) not in started_again:
            _dead(node, findings)
    groups: defaultdict[str, list[Node]] = defaultdict(list)
    for node in live:
        groups[node.namespace].append(node)
    _check_lock(window, groups, lock, findings)


def _about(node: Node) -> Subject:
    return Subject("node", str(node.pk), node.name)


def _dead(node: Node, findings: Findings) -> None:
    findings.add(
        Code.NODE_DEAD,
        _about(node),
        f"Its last heartbeat was at {at(node.heartbeat_at)}: it died or hangs (process {node.pid} on {node.host}). Others "
        "have taken its shards, if there are others. Start it again; its row is forgotten after a day, or delete it.",
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
            f"{error}. Nodes that cannot reach it either lead by hashing alone. See to its server and the way to it.",
        )


def _check_shards(window: Window, namespace: str, nodes: list[Node], lock: Lock, findings: Findings) -> None:
    """Every shard's lock is held, by a live node. Nodes that started a moment ago are given the time to take theirs.

    Of this process's DCRON_SHARDS; on others ``SHARDS_DIFFER`` says enough."""
    nodes = [node for node in nodes if node.shard_count == settings.SHARDS]
    names = {
        f"{namespace}:shard:{shard}/{settings.SHARDS}": shard for shard in range(settings.SHARDS)
    }  # as membership does
    holders = lock.holders(list(names))
    if not nodes:
        return
    if max(node.started_at for node in nodes) > window.now - patience():
        return
    subject = Subject("namespace", namespace, namespace or "(all)")
    free = sorted(shard for name, shard in names.items() if name not in holders)
    if free and not all(node.degraded for node in nodes):
        findings.add(
            Code.SHARDS_UNLED,
            subject,
            f"{number_of(len(free), 'shard is', 'shards are')} led by nobody ({_some(free)}), of {settings.SHARDS}: the jobs there wait. If this lasts longer than "
            f"the lease ({settings.LEASE}), nodes have another DCRON_SHARDS or DCRON_LOCK; see their settings and logs.",
        )
    known = {node.pk for node in nodes}
    for holder in sorted(set(holders.values()) - known):
        held = sorted(names[name] for name, by in holders.items() if by == holder)
        findings.add(
            Code.LEASE_ORPHANED,
            Subject("node", holder, holder),
            f"It is not live, but holds the leases of {number_of(len(held), 'shard')} ({_some(held)}) until they expire. If this "
            f"lasts longer than the lease ({settings.LEASE}), look for a process that cannot reach the database.",
        )


def _some(shards: list[int]) -> str:
    return ", ".join(map(str, shards[:8])) + (", ..." if len(shards) > 8 else "")
