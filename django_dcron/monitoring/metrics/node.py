"""Metrics a node reports from memory, even if the database or Redis is unreachable."""

from __future__ import annotations

from collections.abc import Iterator

from django_dcron.monitoring.metrics import catalog
from django_dcron.monitoring.metrics.samples import MetricSample
from django_dcron.scheduler.health import HealthStatus, NodeHealth


def node_samples(health: NodeHealth) -> Iterator[MetricSample]:
    facts = health.facts
    yield MetricSample(catalog.NODE_INFO, 1, (facts.name, facts.namespace, facts.version))
    for status in HealthStatus:
        yield MetricSample(catalog.NODE_STATUS, status is health.status, (status.value,))
    yield MetricSample(catalog.NODE_SHARDS, facts.shards)
    yield MetricSample(catalog.NODE_LEASES, facts.leases)
    yield MetricSample(catalog.NODE_AGENDA, facts.agenda)
    yield MetricSample(catalog.NODE_LAG, facts.lag)
    yield MetricSample(catalog.NODE_TICK_AGE, facts.tick_age)
    yield MetricSample(catalog.NODE_HEARTBEAT_AGE, facts.heartbeat_age)
    yield MetricSample(catalog.NODE_HANGING, len(facts.hanging))
    yield MetricSample(catalog.NODE_DEGRADED, facts.lock_degraded)
    yield MetricSample(catalog.NODE_BROKER_UNREACHABLE, facts.broker_unreachable)
    yield MetricSample(
        catalog.NODE_DATABASE_UNREACHABLE, facts.database_unreachable_since is not None
    )
    yield MetricSample(catalog.NODE_SKEW, facts.skew)
