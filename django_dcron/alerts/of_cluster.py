"""Alerts about the cluster: a node that vanished, a node that cannot reach the lock's server, and errors of the health verdict."""

from __future__ import annotations

from collections.abc import Callable, Collection
from datetime import datetime, timedelta
from time import monotonic

from django_dcron.alerts import rules, wording
from django_dcron.alerts.outbox import KEPT, Message, put_new
from django_dcron.conf import settings
from django_dcron.domain.alerting import Kind, Rule
from django_dcron.domain.system_health import Problem, Severity, Verdict
from django_dcron.models import Node
from django_dcron.models.database import UtcNow, alias_for

LEASES = 2
"""After so many leases without a heartbeat a node is lost, rather than slow. One that stops strikes itself off."""
A_WHILE = timedelta(seconds=10)
"""A node that is degraded, or an error that lasts, for less than this is not worth an alert."""
FIRST_SHARD = 0


class Lost:
    """Any node may notice it of any other: the keys tell once of each heartbeat that was a node's last.

    Where the database was away nobody could write a heartbeat. So a node is lost once the same last heartbeat has been seen for
    a lease. A row that stays for longer than the alert, as no node has come since to forget it, is not told of anew.
    """

    def __init__(self) -> None:
        self._seen: dict[tuple[str, datetime], float] = {}
        """Last heartbeats, and since when this node has known them."""

    def look(self, general: Collection[Rule]) -> None:
        asked = rules.about(general, Kind.NODE_LOST)
        if not asked:
            return
        expired = Node.objects.using(alias_for(Node)).expired(settings.LEASE * LEASES)
        nodes = {
            (node.pk, node.heartbeat_at): node for node in expired.filter(heartbeat_at__gt=UtcNow() - KEPT)
        }
        now = monotonic()
        self._seen = {key: self._seen.get(key, now) for key in nodes}
        put_new(
            _message(Kind.NODE_LOST, f"{pk}:{at.timestamp():.0f}", wording.node_lost(node), rule)
            for (pk, at), node in nodes.items()
            if now - self._seen[pk, at] >= settings.LEASE.total_seconds()
            for rule in asked
        )


class Unhealthy:
    """Each error of the health verdict becomes one alert while it lasts. One node looks: the leader of the first shard.

    When another node becomes that leader, it reports the errors that last once more.
    """

    def __init__(self, read_verdict: Callable[[], Verdict] | None) -> None:
        self._read_verdict = read_verdict
        self._since: dict[Problem, datetime] = {}
        """The errors of the last look, and when this node saw them first."""

    def look(self, shards: Collection[int], now: datetime, general: Collection[Rule]) -> None:
        asked = rules.about(general, Kind.UNHEALTHY)
        if not asked or FIRST_SHARD not in shards or self._read_verdict is None:
            self._since = {}
            return
        errors = [issue for issue in self._read_verdict().issues if issue.severity is Severity.ERROR]
        self._since = {issue.problem: self._since.get(issue.problem, now) for issue in errors}
        put_new(
            _message(
                Kind.UNHEALTHY, f"{issue.problem}:{since.timestamp():.0f}", wording.unhealthy(issue), rule
            )
            for issue in errors
            if now - (since := self._since[issue.problem]) >= A_WHILE
            for rule in asked
        )


def tell_degraded(node_id: str, name: str, since: datetime, now: datetime, general: Collection[Rule]) -> None:
    """By the node itself."""
    if now - since < A_WHILE:
        return
    key = f"{node_id}:{since.timestamp():.0f}"
    asked = rules.about(general, Kind.DEGRADED)
    put_new(_message(Kind.DEGRADED, key, wording.degraded(name, since), rule) for rule in asked)


def _message(kind: Kind, key: str, worded: tuple[str, str], rule: Rule) -> Message:
    return Message(kind, f"{kind}:{key}", *worded, to=rule.to)
