"""Alerts about the cluster: outages, lost nodes, degraded nodes and errors of the health verdict.

One more alert reports that all errors have ended.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from datetime import datetime, timedelta
from time import monotonic

from django.db.models import QuerySet

from django_dcron.conf import settings
from django_dcron.contrib.alerts import messages, rules
from django_dcron.contrib.alerts.channels import destinations
from django_dcron.contrib.alerts.messages import AlertContent
from django_dcron.contrib.alerts.outbox import RETENTION, Message, store_new_alerts
from django_dcron.db.now import UtcNow
from django_dcron.db.routing import alias_for
from django_dcron.models import Alert, Node
from django_dcron.policies.alerting import AlertKind, Rule
from django_dcron.policies.health.problems import Problem, Severity
from django_dcron.policies.health.verdict import Verdict
from django_dcron.policies.outages import Outage

LEASES = 2
"""A node may be lost after this many leases without a heartbeat. A node that stops deletes its row.
"""
MIN_DURATION = timedelta(seconds=10)
"""Shorter degradations and errors cause no alert."""
RECOVERED_AFTER = timedelta(minutes=1)
"""The cluster has recovered after this time without errors."""
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
    """Detects errors of the health verdict and reports each once while it lasts, and their end.

    Invariants:

    - Only the leader of the first shard does this. A new leader reports the lasting errors again.
    - The end is reported once no error has been found, and no alert about one stored, for
      ``RECOVERED_AFTER``. This time starts again after a pause of that length between two checks.
    - An outage counts as an error that has ended, whichever node reports it.
    - The key of that alert contains the key of the last reported error. So each channel gets one
      alert, even if another node becomes the leader or the nodes restart.
    """

    def __init__(self, read_verdict: Callable[[], Verdict] | None) -> None:
        self._read_verdict = read_verdict
        self._checked_at: datetime | None = None
        self._since: dict[Problem, datetime] = {}
        """The errors of the last verdict, and when this node first saw each."""
        self._healthy_since: datetime | None = None
        """Since when this node has seen no errors. None if its last verdict contained one."""
        self._ended: int | None = None
        """The key of the last alert about an error whose end this node has reported."""

    def check(
        self, shards: Collection[int], now: datetime, default_rules: Collection[Rule]
    ) -> None:
        matching_rules = rules.rules_of_kinds(default_rules, AlertKind.UNHEALTHY)
        if not matching_rules or FIRST_SHARD not in shards or self._read_verdict is None:
            self._since, self._healthy_since = {}, None
            return
        if self._checked_at is not None and now - self._checked_at > RECOVERED_AFTER:
            self._healthy_since = None
        self._checked_at = now
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
        if errors:
            self._healthy_since = None
            return
        self._healthy_since = self._healthy_since or now
        recovered_rules = rules.rules_of_kinds(default_rules, AlertKind.RECOVERED)
        last = _error_alerts().first() if recovered_rules else None
        if last is None or last.pk == self._ended:
            return
        since = max(self._healthy_since, last.created_at)
        if now - since >= RECOVERED_AFTER:
            _report_recovery(since, matching_rules, recovered_rules)
            self._ended = last.pk


def _error_alerts() -> QuerySet[Alert]:
    """Return the alerts about errors and outages, the last one first."""
    alerts = Alert.objects.using(alias_for(Alert))
    return alerts.filter(kind=AlertKind.UNHEALTHY).order_by("-pk")


def _report_recovery(
    since: datetime, unhealthy_rules: Collection[Rule], recovered_rules: Collection[Rule]
) -> None:
    """Report the end of the last errors to channels that got an alert about one of them."""
    named = {channel for rule in unhealthy_rules for channel in rule.to}
    for channel in sorted({name for rule in recovered_rules for name in rule.to} & named):
        if (last := _last_error_alert(channel)) is not None:
            subject, text = messages.cluster_recovery_message(last, since)
            key = f"{AlertKind.RECOVERED}:{last.key}"
            store_new_alerts([Message(AlertKind.RECOVERED, key, subject, text, to=(channel,))])


def _last_error_alert(channel: str) -> Alert | None:
    """Return the last alert about an error that the channel got, at any of its destinations."""
    found = destinations(settings.ALERT_CHANNELS).items()
    names = [name for name, destination in found if destination.channel == channel]
    return _error_alerts().filter(channel__in=names).first()


def report_outage(node: str, outage: Outage, default_rules: Collection[Rule]) -> None:
    """Report an outage that ``node`` has found. Channels get one alert, whichever node reports it.

    Its key is that of an error ``outage`` in the health verdict, so that the admin groups outages.
    """
    key = f"outage:{outage.since.timestamp():.0f}"
    content = messages.outage_message(node, outage)
    store_new_alerts(
        _message(AlertKind.UNHEALTHY, key, content, rule)
        for rule in rules.rules_of_kinds(default_rules, AlertKind.UNHEALTHY)
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
