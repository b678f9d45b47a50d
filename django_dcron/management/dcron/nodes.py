"""``manage.py dcron nodes``: list the nodes.

Exit codes:

- 0: success.
- 1: no node is live.
- 2: the request can't be processed.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

from django.core.management.base import BaseCommand, CommandParser
from django.db import DatabaseError
from django.db.models import Q

from django_dcron.conf import settings
from django_dcron.db.contention import is_contention
from django_dcron.db.error_remedies import with_remedy
from django_dcron.db.routing import alias_for
from django_dcron.diagnosis import cluster
from django_dcron.diagnosis.system_health import read_verdict
from django_dcron.management.dcron.exits import negative_result
from django_dcron.management.dcron.freezes import warn_of_freezes
from django_dcron.management.dcron.output import (
    EMPTY,
    GOOD,
    QUIET,
    WARNING,
    Cell,
    Column,
    Output,
    StyledText,
    add_json,
    duration_text,
    iso,
    seconds,
)
from django_dcron.models import Job, Node
from django_dcron.policies.health.problems import Issue, Problem
from django_dcron.utils import time_format

HELP = (
    "List the nodes (runcron processes) with their state, shards and clock skew, and say which of "
    "them can be stopped. Dead nodes are removed after 24 hours. Exit code 1: no node is live."
)
EXAMPLES = """
nodes
nodes --namespace shop
nodes --json
"""
NAMED = 5
"""The maximum number of namespaces named for each node."""
LIVE, STALLED, EXPIRED = "live", "stalled", "expired"
EXPLAINED = {
    Problem.NODE_STALLED,
    Problem.NODE_DEGRADED,
    Problem.NODE_SKEWED,
    Problem.CLOCK_IN_DOUBT,
    Problem.NO_BROKER,
    Problem.BROKER_UNREACHABLE,
}
"""The problems of the health verdict that explain the state of a node."""
STYLES = {LIVE: GOOD, STALLED: WARNING, EXPIRED: QUIET}


def add_arguments(parser: CommandParser) -> None:
    parser.add_argument(
        "--namespace", default="", help="only nodes that serve this namespace (default: all)"
    )
    add_json(parser)


def run(command: BaseCommand, options: dict[str, Any]) -> None:
    out, found = Output(command, options), cluster.nodes(options["namespace"])
    if out.is_json:
        out.json({"version": 1, "nodes": [_document(node) for node in found]})
    else:
        warn_of_freezes(out, options["namespace"])
    if found and not out.is_json:
        numbers = [
            Column(title, right=True) for title in ("Heartbeat", "Tick", "Shards", "Agenda", "Skew")
        ]
        place = [
            Column("Namespace", wraps=True),
            Column("Host", wraps=True),
            Column("Process", right=True),
            Column("Version"),
        ]
        columns = [Column("Node", wraps=True), Column("State"), *numbers, *place]
        out.table(columns, (list(_cells(node)) for node in found))
        for text in _stop_texts(found, cluster.nodes() if options["namespace"] else found):
            out.line(text)
    is_any_live = any(cluster.is_live(node) for node in found)
    if out.is_json and is_any_live:
        return
    namespace = options["namespace"]
    issues = _issues(namespace, out)
    if not out.is_json:
        for issue in issues:
            if issue.problem in EXPLAINED:
                out.line(str(issue), WARNING)
    if is_any_live:
        return
    for issue in issues:
        if issue.problem is Problem.DATABASE_READ_ONLY:  # Running nodes can't write heartbeats.
            raise negative_result(str(issue))
    if not namespace:
        raise negative_result(
            f"No node is live, so no jobs will start. {cluster.how_to_start_node()}"
        )
    remedy = f"To start one: manage.py runcron --namespace {shlex.quote(namespace)}"
    if settings.AUTOSTART:  # Such a node serves all namespaces.
        remedy = cluster.how_to_start_node()
    raise negative_result(
        f"No node that serves namespace {namespace!r} is live, so its jobs won't start. {remedy}"
    )


def _issues(namespace: str, out: Output) -> Sequence[Issue]:
    """Return the issues of the health verdict, or none if another session locks a table.

    The verdict also reads other tables than that of nodes. The nodes are shown without it.
    """
    try:
        return read_verdict(namespace).issues
    except DatabaseError as error:
        if not is_contention(error):
            raise
        text = f"The health of the system couldn't be read: {with_remedy(error)}"
        if out.is_json:
            out.progress(text)
        else:
            out.line(text, WARNING)
        return ()


def _stop_texts(found: Sequence[Node], nodes: Sequence[Node]) -> Iterator[str]:
    """Yield what stops if one of the ``found`` nodes stops. ``nodes`` are all nodes."""
    jobs = Job.objects.using(alias_for(Job)).order_by()
    wanted = jobs.filter(Q(enabled=True) | Q(paused_until__isnull=False))
    working = cluster.working_nodes(nodes)
    serving = cluster.serving_nodes(working, wanted.values_list("namespace", flat=True).distinct())
    for node in found:
        if namespaces := [namespace for namespace, each in serving.items() if each == [node]]:
            more = len(namespaces) - NAMED
            names = ", ".join(namespaces[:NAMED]) + (f" and {more} more" if more > 0 else "")
            noun = "namespace" if len(namespaces) == 1 else "namespaces"
            yield f"If you stop {node.name}, nothing is scheduled for {noun} {names}."
    if len(working) > 1 and all(len(each) > 1 for each in serving.values()):
        yield "Any one node can be stopped: other live nodes schedule its jobs."


def _state(node: Node) -> str:
    if not cluster.is_live(node):
        return EXPIRED
    return STALLED if cluster.is_stalled(node) else LIVE


def _cells(node: Node) -> Iterator[Cell]:
    state = _state(node)
    yield node.name
    yield StyledText(
        f"{state}, degraded" if node.degraded else state,
        WARNING if node.degraded else STYLES[state],
    )
    yield _ago(node, node.heartbeat_at)
    yield _ago(node, node.ticked_at)
    yield f"{node.shards}/{node.shard_count}"
    yield node.agenda
    yield StyledText(duration_text(node.skew), WARNING if cluster.is_skewed(node) else "")
    yield node.namespace or "(all)"
    yield node.host
    yield node.pid
    yield node.version


def _ago(node: Node, at: datetime | None) -> str:
    return str(time_format.format_time_ago(cluster.time_since(node, at))) if at else EMPTY


def _document(node: Node) -> dict[str, Any]:
    return {
        "id": node.pk,
        "name": node.name,
        "state": _state(node),
        "degraded": node.degraded,
        "namespace": node.namespace,
        "host": node.host,
        "pid": node.pid,
        "version": node.version,
        "started_at": iso(node.started_at),
        "heartbeat_at": iso(node.heartbeat_at),
        "ticked_at": iso(node.ticked_at),
        "shards": node.shards,
        "shard_count": node.shard_count,
        "agenda": node.agenda,
        "skew_seconds": seconds(node.skew),
    }
