"""Alerts about the cluster: vanished nodes, degraded nodes, and errors of the health verdict."""

from __future__ import annotations

from collections.abc import Callable, Collection
from datetime import datetime, timedelta
from time import monotonic

from django_dcron.conf import settings
from django_dcron.contrib.alerts import messages, rules
from django_dcron.contrib.alerts.messages import AlertContent
from django_dcron.contrib.alerts.outbox import RETENTION, Message, store_new_alerts
from django_dcron.db.now import UtcNow
from django_dcron.db.routing import alias_for
from django_dcron.models import Node
from django_dcron.policies.alerting import AlertKind, Rule
from django_dcron.policies.health.problems import Problem, Severity
from django_dcron.policies.health.verdict import Verdict

LEASES = 2
"""A node may be lost after this many leases without a heartbeat. A node that stops deletes its row.
"""
MIN_DURATION = timedelta(seconds=10)
"""Shorter degradations and errors cause no alert."""
FIRST_SHARD = 0


class NodeLossAlerts:
    """Detects vanished nodes. Any node may detect any other.

    Invariants:

    - A key identifies a node and its last heartbeat, so each loss is reported once.
    - While the database is unreachable, no node can write a heartbeat. A node therefore counts as
      lost only after its row has had the same heartbeat for a whole lease.
    - A node's row may outlive the alert about it. The node isn't reported again then.
    """

    def __init__(self) -> None:
        self._seen: dict[tuple[str, datetime], float] = {}
        """Last heartbeats of expired nodes, and when this node first saw each (monotonic clock)."""

    def check(self, default_rules: Collection[Rule]) -> None:
        matching_rules = rules.rules_of_kinds(default_rules, AlertKind.NODE_LOST)
        if not matching_rules:
            return
        expired = Node.objects.using(alias_for(Node)).expired(settings.LEASE * LEASES)
        nodes = {
            (node.pk, node.heartbeat_at): node
            for node in expired.filter(heartbeat_at__gt=UtcNow() - RETENTION)
        }
        now = monotonic()
        self._seen = {key: self._seen.get(key, now) for key in nodes}
        store_new_alerts(
            _message(
                AlertKind.NODE_LOST,
                f"{pk}:{at.timestamp():.0f}",
                messages.node_loss_message(node),
                rule,
            )
            for (pk, at), node in nodes.items()
            if now - self._seen[pk, at] >= settings.LEASE.total_seconds()
            for rule in matching_rules
        )


class HealthAlerts:
    """Detects errors of the health verdict and reports each once while it lasts.

    Only the leader of the first shard does this. A new leader reports the lasting errors again.
    """

    def __init__(self, read_verdict: Callable[[], Verdict] | None) -> None:
        self._read_verdict = read_verdict
        self._since: dict[Problem, datetime] = {}
        """The errors of the last verdict, and when this node first saw each."""

    def check(
        self, shards: Collection[int], now: datetime, default_rules: Collection[Rule]
    ) -> None:
        matching_rules = rules.rules_of_kinds(default_rules, AlertKind.UNHEALTHY)
        if not matching_rules or FIRST_SHARD not in shards or self._read_verdict is None:
            self._since = {}
            return
        errors = [
            issue for issue in self._read_verdict().issues if issue.severity is Severity.ERROR
        ]
        self._since = {issue.problem: self._since.get(issue.problem, now) for issue in errors}
        store_new_alerts(
            _message(
                AlertKind.UNHEALTHY,
                f"{issue.problem}:{since.timestamp():.0f}",
                messages.unhealthy_message(issue),
                rule,
            )
            for issue in errors
            if now - (since := self._since[issue.problem]) >= MIN_DURATION
            for rule in matching_rules
        )


def report_degraded(
    node_id: str, name: str, since: datetime, now: datetime, default_rules: Collection[Rule]
) -> None:
    """Report that this node is degraded."""
    if now - since < MIN_DURATION:
        return
    key = f"{node_id}:{since.timestamp():.0f}"
    matching_rules = rules.rules_of_kinds(default_rules, AlertKind.DEGRADED)
    store_new_alerts(
        _message(AlertKind.DEGRADED, key, messages.degraded_message(name, since), rule)
        for rule in matching_rules
    )


def _message(kind: AlertKind, key: str, content: AlertContent, rule: Rule) -> Message:
    return Message(kind, f"{kind}:{key}", content.subject, content.text, to=rule.to)
