"""Check for dead nodes, and that a live node leads each shard."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection

from django_dcron.conf import settings
from django_dcron.db.routing import alias_for
from django_dcron.diagnosis import cluster
from django_dcron.diagnosis.doctor.findings import (
    LOCK,
    SUBJECTS_IN_LINE,
    Code,
    Findings,
    Subject,
)
from django_dcron.diagnosis.doctor.window import Window, format_moment
from django_dcron.diagnosis.overdue import takeover_time
from django_dcron.exceptions import LockUnavailable
from django_dcron.locks import Lock
from django_dcron.locks.database import holders_in_database
from django_dcron.models import Node
from django_dcron.policies.health.problems import Problem, Severity
from django_dcron.policies.health.verdict import Verdict
from django_dcron.policies.sharding import shard_lock_name
from django_dcron.utils.counts import number_of
from django_dcron.utils.messages import with_full_stop
from django_dcron.utils.time_format import format_duration

Groups = dict[str, list[Node]]
"""The live nodes by the namespace that they serve. The empty namespace serves all."""
Holders = Callable[[Collection[str]], dict[str, str]]
"""Returns the holder of each of these locks that has one."""


def examine_nodes(window: Window, findings: Findings, lock: Lock, verdict: Verdict) -> list[Node]:
    """Check what the health verdict doesn't cover: dead nodes and the locks of the shards.

    Return the dead nodes that cause no finding, because live nodes do their work, or because
    another finding reports that nobody does.
    """
    nodes = cluster.nodes(window.namespace)
    live = [node for node in nodes if cluster.is_live(node)]
    groups: defaultdict[str, list[Node]] = defaultdict(list)
    for node in live:
        groups[node.namespace].append(node)
    _check_lock(window, groups, lock, findings)
    if verdict.facts.database_read_only:
        return []  # No node can write a heartbeat, so a missing one says nothing.
    noted = []
    for node in cluster.dead_nodes(nodes):
        if loss := _unreported_loss(node, live, findings, verdict):
            _add_dead(node, loss, findings)
        else:
            noted.append(node)
    return noted


def dead_nodes_note(nodes: list[Node]) -> str:
    """Return a sentence that names the dead nodes; ``nodes`` has at least one."""
    latest = sorted(nodes, key=lambda node: node.heartbeat_at, reverse=True)
    named = [
        f"{node.name} after {format_moment(node.heartbeat_at)} (process {node.pid} on {node.host})"
        for node in latest[:SUBJECTS_IN_LINE]
    ]
    if more := len(nodes) - len(named):
        named.append(f"and {more} more")
    return (
        f"{number_of(len(nodes), 'node')} ended without a clean stop: "
        f"{', '.join(named)}. If nobody killed the process or its machine, read its log."
    )


def _unreported_loss(node: Node, live: list[Node], findings: Findings, verdict: Verdict) -> str:
    """Return which work of the dead node nobody does; empty if there is none.

    Also return an empty text if another finding reports it.
    """
    serving = [each for each in live if each.namespace in ("", node.namespace)]
    if serving:
        is_reported = {Code.SHARDS_UNLED, Code.LEASE_ORPHANED} & findings.counts.keys()
        if is_reported or not cluster.count_unled_shards(serving):
            return ""
        return "the live nodes don't lead all shards yet"
    unserved = verdict.facts.unserved
    if (
        Problem.NO_LIVE_NODE in verdict.problems
        or node.namespace in unserved.names
        or unserved.number > len(unserved.names)
        or (unserved and not node.namespace)
    ):
        return ""
    return f"no live node serves {f'namespace {node.namespace}' if node.namespace else 'all jobs'}"


def _add_dead(node: Node, loss: str, findings: Findings) -> None:
    findings.add(
        Code.NODE_DEAD,
        Subject("node", str(node.pk), node.name),
        f"The last heartbeat was at {format_moment(node.heartbeat_at)}: process {node.pid} on "
        f"{node.host} died or hangs, and {loss}. If this lasts longer than the lease "
        f"({format_duration(settings.LEASE)}), start the node again. If nobody needs it any more, "
        "delete its row in the admin, or wait: the row is removed after 24 hours.",
    )


def _check_lock(window: Window, groups: Groups, lock: Lock, findings: Findings) -> None:
    """Check the lock and its leases.

    Nodes with ``--embedded`` lock in the database, regardless of ``DCRON_LOCK``. If all nodes of a
    namespace do, only the leases in the database count. Otherwise, those of embedded nodes count,
    too.
    """
    leases = holders_in_database()
    embedded = {node.pk for nodes in groups.values() for node in nodes if node.locks_in_database}
    embedded_leases = {name: holder for name, holder in leases.items() if holder in embedded}

    def in_database(names: Collection[str]) -> dict[str, str]:
        return {name: leases[name] for name in names if name in leases}

    def holders(names: Collection[str]) -> dict[str, str]:
        both = {**lock.holders(names), **embedded_leases}
        return {name: both[name] for name in names if name in both}

    others: Groups = {}
    for namespace, nodes in groups.items():
        if all(node.locks_in_database for node in nodes):
            _check_shards(window, namespace, nodes, in_database, findings)
        else:
            others[namespace] = nodes
    if groups and not others:
        return
    try:
        for problem in getattr(lock, "problems", list)():
            findings.add(Code.LOCK_UNSAFE, LOCK, problem)
        for namespace, nodes in others.items():
            _check_shards(window, namespace, nodes, holders, findings)
    except LockUnavailable as error:
        findings.add(
            Code.LOCK_UNREACHABLE,
            LOCK,
            f"{with_full_stop(error)} Nodes that can't use the lock server assign shards by "
            "hash. Check the lock server and the network.",
        )


def _check_shards(
    window: Window, namespace: str, nodes: list[Node], holders_of: Holders, findings: Findings
) -> None:
    """Check that a live node has each shard's lock.

    Nodes that have just started get time to acquire their locks. Only shards of this process's
    ``DCRON_SHARDS`` are checked. ``SHARDS_DIFFER`` reports other values.
    """
    nodes = [node for node in nodes if node.shard_count == settings.SHARDS]
    shards = {
        shard_lock_name(namespace, shard, settings.SHARDS): shard
        for shard in range(settings.SHARDS)
    }
    holders = holders_of(list(shards))
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
        severity = None
        if holder in foreign:
            severity = Severity.ERROR
            message = (
                f"A node that isn't in this database has {leases}, so no node of this site "
                "schedules their jobs. Another site probably uses the same Redis. Give each site "
                "its own KEY_PREFIX in CACHES, or its own database number."
            )
        else:
            message = (
                f"The node isn't live but still has {leases} until they expire. If this lasts "
                f"longer than the lease ({format_duration(settings.LEASE)}), either another site "
                "uses the same Redis, and this database is a copy of its database: give each site "
                "its own KEY_PREFIX in CACHES, or its own database number. Or a process can't "
                "reach the database: look for it on the node's host."
            )
        findings.add(Code.LEASE_ORPHANED, Subject("node", holder, holder), message, severity)


def _list_shards(shards: list[int]) -> str:
    return ", ".join(map(str, shards[:8])) + (", ..." if len(shards) > 8 else "")
