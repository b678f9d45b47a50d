"""The health verdict as JSON for ``/health``."""

from __future__ import annotations

from typing import Any

from django_dcron.diagnosis import cluster
from django_dcron.jobs.representation import to_json
from django_dcron.models import Node
from django_dcron.policies.health.facts import FreezeFacts
from django_dcron.policies.health.problems import Issue, Severity
from django_dcron.policies.health.verdict import SystemStatus, Verdict

LISTED = 200
"""Maximum number of nodes to list."""


def verdict_as_json(verdict: Verdict) -> dict[str, Any]:
    """Return the verdict, with names only if its facts contain them."""
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
        "last_start": to_json(facts.last_start),
        "freezes": [_freeze(freeze) for freeze in facts.freezes],
    }


def error_as_json(code: str, reason: str, remedy: str) -> dict[str, Any]:
    """Return the object for a database that can't be read, so that there is no verdict."""
    return {
        "status": SystemStatus.UNFIT.value,
        "summary": reason,
        "reasons": [reason],
        "problems": [
            {
                "code": code,
                "severity": Severity.ERROR.value,
                "summary": reason,
                "remedy": remedy,
                "since": None,
                "figures": {},
            }
        ],
    }


def _freeze(freeze: FreezeFacts) -> dict[str, Any]:
    return {
        "namespace": freeze.namespace,
        "reason": freeze.reason,
        "frozen_by": freeze.frozen_by,
        "since": to_json(freeze.since),
        "until": to_json(freeze.until),
    }


def _problem(issue: Issue) -> dict[str, Any]:
    return {
        "code": issue.problem.value,
        "severity": issue.severity.value,
        "summary": str(issue.summary),
        "remedy": str(issue.remedy),
        "since": to_json(issue.since),
        "figures": issue.figures,
    }


def nodes_as_json() -> list[dict[str, Any]]:
    """Return the live nodes. Raises the database's errors."""
    live = [node for node in cluster.nodes() if cluster.is_live(node)]
    return [_node(node) for node in live[:LISTED]]


def _node(node: Node) -> dict[str, Any]:
    return {
        "name": node.name,
        "id": node.pk,
        "namespace": node.namespace,
        "version": node.version,
        "shards": node.shards,
        "agenda": node.agenda,
        "stalled": cluster.is_stalled(node),
        "degraded": node.degraded,
        "skew": round(node.skew.total_seconds(), 3),
    }
