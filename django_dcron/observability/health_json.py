"""The health verdict as JSON, for ``/health``."""

from __future__ import annotations

from typing import Any

from django_dcron.domain.system_health import Issue, Verdict
from django_dcron.models import Node
from django_dcron.observability import cluster

LISTED = 200
"""Nodes that are named at most."""


def as_json(verdict: Verdict) -> dict[str, Any]:
    """With names if the verdict has them."""
    facts = verdict.facts
    return {
        "status": verdict.status.value,
        "summary": str(verdict.summary),
        "reasons": [str(issue.summary) for issue in verdict.issues],
        "problems": [_problem(issue) for issue in verdict.issues],
        "live": facts.live_nodes,
        "dead": facts.dead_nodes,
        "stalled": facts.stalled.number,
        "degraded": facts.degraded.number,
        "skewed": facts.skewed.number,
        "unserved": facts.unserved.number,
        "workers": None if facts.workers is None else len(facts.workers),
        "queued": facts.queued,
        "last_start": facts.last_start.isoformat() if facts.last_start else None,
    }


def _problem(issue: Issue) -> dict[str, Any]:
    return {
        "code": issue.problem.value,
        "severity": issue.severity.value,
        "summary": str(issue.summary),
        "remedy": str(issue.remedy),
        "since": issue.since.isoformat() if issue.since else None,
        "figures": issue.figures,
    }


def nodes_as_json() -> list[dict[str, Any]]:
    """The live nodes by name. Raises the database's errors."""
    live = [node for node in cluster.nodes() if cluster.is_live(node)]
    return [_node(node) for node in live[:LISTED]]


def _node(node: Node) -> dict[str, Any]:
    return {
        "name": node.name,
        "id": node.pk,
        "namespace": node.namespace,
        "release": node.release,
        "shards": node.shards,
        "agenda": node.agenda,
        "stalled": cluster.is_stalled(node),
        "degraded": node.degraded,
        "skew": round(node.skew.total_seconds(), 3),
    }
