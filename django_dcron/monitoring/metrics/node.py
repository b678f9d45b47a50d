"""Metrics a node reports from memory, even if the database or Redis is unreachable."""

from __future__ import annotations

from collections.abc import Iterator

from django_dcron.monitoring.metrics import catalogue
from django_dcron.monitoring.metrics.samples import MetricSample
from django_dcron.scheduler.health import Health, Status


def node_samples(health: Health) -> Iterator[MetricSample]:
    facts = health.facts
    yield MetricSample(catalogue.NODE_INFO, 1, (facts.name, facts.namespace, facts.release))
    for status in Status:
        yield MetricSample(catalogue.NODE_STATUS, status is health.status, (status.value,))
    yield MetricSample(catalogue.NODE_SHARDS, facts.shards)
    yield MetricSample(catalogue.NODE_LEASES, facts.leases)
    yield MetricSample(catalogue.NODE_AGENDA, facts.agenda)
    yield MetricSample(catalogue.NODE_LAG, facts.lag)
    yield MetricSample(catalogue.NODE_TICK_AGE, facts.tick_age)
    yield MetricSample(catalogue.NODE_HEARTBEAT_AGE, facts.heartbeat_age)
    yield MetricSample(catalogue.NODE_HANGING, len(facts.hanging))
    yield MetricSample(catalogue.NODE_DEGRADED, facts.lock_degraded)
    yield MetricSample(catalogue.NODE_BROKER_UNREACHABLE, facts.broker_unreachable)
    yield MetricSample(
        catalogue.NODE_DATABASE_UNREACHABLE, facts.database_unreachable_since is not None
    )
    yield MetricSample(catalogue.NODE_SKEW, facts.skew)
