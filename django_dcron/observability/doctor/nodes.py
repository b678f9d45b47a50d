"""Nodes, the shards they lead, and the lock: is everything led, by nodes that agree with one another?"""

from __future__ import annotations

from collections import defaultdict
from datetime import timedelta

from django_dcron.conf import settings
from django_dcron.domain.counts_in_words import number_of
from django_dcron.exceptions import LockUnavailable
from django_dcron.locks import Lock
from django_dcron.models import Job, Node
from django_dcron.models.database import alias_for
from django_dcron.observability import cluster
from django_dcron.observability.doctor.findings import CLUSTER, LOCK, Code, Findings, Subject
from django_dcron.observability.doctor.jobs import patience
from django_dcron.observability.doctor.window import Window, at

Groups = dict[str, list[Node]]
"""The live nodes by the namespace they serve; the empty one serves all."""


def examine(window: Window, findings: Findings, lock: Lock) -> int:
    """Returns how many nodes are live."""
    groups = examine_rows(window, findings)
    _check_lock(window, groups, lock, findings)
    return sum(map(len, groups.values()))


def examine_rows(window: Window, findings: Findings) -> Groups:
    """All that the nodes' rows say by themselves, without the lock."""
    nodes = cluster.nodes(window.namespace)
    live = [node for node in nodes if cluster.is_live(node)]
    started_again = {(node.namespace, node.name) for node in live}
    for node in nodes:
        if not cluster.is_live(node) and (node.namespace, node.name) not in started_again:
            _dead(node, findings)
    for node in live:
        _check_node(node, findings)
    groups: defaultdict[str, list[Node]] = defaultdict(list)
    for node in live:
        groups[node.namespace].append(node)
    _check_agreement(groups, findings)
    _check_served(window, groups, findings)
    return groups


def _about(node: Node) -> Subject:
    return Subject("node", str(node.pk), node.name)


def _dead(node: Node, findings: Findings) -> None:
    findings.add(
        Code.NODE_DEAD,
        _about(node),
        f"Its last heartbeat was at {at(node.heartbeat_at)}: it died or hangs (process {node.pid} on {node.host}). Others "
        "have taken its shards, if there are others. Start it again; its row is forgotten after a day, or delete it.",
    )


def _check_node(node: Node, findings: Findings) -> None:
    if cluster.is_stalled(node):
        findings.add(
            Code.NODE_STALLED,
            _about(node),
            f"It is alive, but its last tick went through at {at(node.ticked_at)}: it claims nothing. See its log; restart it.",
        )
    if node.degraded:
        findings.add(
            Code.NODE_DEGRADED,
            _about(node),
            "It cannot reach the lock's server and leads by hashing alone. Nothing runs twice, but work may be done twice. "
            "See to that server and the way to it.",
        )
    if cluster.is_skewed(node):
        findings.add(
            Code.NODE_SKEWED,
            _about(node),
            f"Its wall clock is {abs(node.skew)} {'ahead of' if node.skew > timedelta() else 'behind'} the database's. It "
            "schedules by the database's, but logs lie: see to NTP on both machines.",
        )


def _check_agreement(groups: Groups, findings: Findings) -> None:
    releases = sorted({node.release for nodes in groups.values() for node in nodes})
    if len(releases) > 1:
        findings.add(
            Code.RELEASES_DIFFER,
            CLUSTER,
            f"Live nodes run different releases: {', '.join(releases)}. Fine during an upgrade; finish it.",
        )
    if "" in groups and len(groups) > 1:
        findings.add(
            Code.NAMESPACES_OVERLAP,
            CLUSTER,
            "Some nodes serve all namespaces, others one of them: work is done twice, though no run starts twice. Give "
            "all nodes a --namespace, or none.",
        )
    for namespace, nodes in groups.items():
        counts = sorted({node.shard_count for node in nodes} | {settings.SHARDS})
        if len(counts) > 1:
            findings.add(
                Code.SHARDS_DIFFER,
                Subject("namespace", namespace, namespace or "(all)"),
                f"DCRON_SHARDS is {settings.SHARDS} here; among its nodes and here there are {_some(counts)}. Nodes that differ do the "
                "same work twice, though no run starts twice. Give all processes the same DCRON_SHARDS.",
            )


def _check_served(window: Window, groups: Groups, findings: Findings) -> None:
    jobs = Job.objects.using(alias_for(Job)).enabled().order_by()
    if window.namespace:
        jobs = jobs.filter(namespace=window.namespace)
    namespaces = sorted(set(jobs.values_list("namespace", flat=True).distinct()))
    if namespaces and not groups:
        findings.add(
            Code.NO_LIVE_NODE,
            CLUSTER,
            "No node is live: nothing is scheduled. Start manage.py runcron, and see the logs of the last ones.",
        )
    elif "" not in groups:
        for namespace in namespaces:
            if namespace not in groups:
                findings.add(
                    Code.NAMESPACE_UNSERVED,
                    Subject("namespace", namespace, namespace),
                    "It has enabled jobs, but no live node serves it. Start manage.py runcron with this --namespace, or without.",
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
