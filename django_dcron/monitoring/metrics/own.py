"""Metrics a node reports from memory, even if the database or Redis is unreachable."""

from __future__ import annotations

from collections.abc import Iterator

from django_dcron.monitoring.metrics import catalogue
from django_dcron.monitoring.metrics.samples import Sample
from django_dcron.scheduler.health import Health, Status


def own(health: Health) -> Iterator[Sample]:
    facts = health.facts
    yield Sample(catalogue.NODE_INFO, 1, (facts.name, facts.namespace, facts.release))
    for status in Status:
        yield Sample(catalogue.NODE_STATUS, status is health.status, (status.value,))
    yield Sample(catalogue.NODE_SHARDS, facts.shards)
    yield Sample(catalogue.NODE_LEASES, facts.leases)
    yield Sample(catalogue.NODE_AGENDA, facts.agenda)
    yield Sample(catalogue.NODE_LAG, facts.lag)
    yield Sample(catalogue.NODE_TICK_AGE, facts.tick_age)
    yield Sample(catalogue.NODE_HEARTBEAT_AGE, facts.heartbeat_age)
    yield Sample(catalogue.NODE_HANGING, len(facts.hanging))
    yield Sample(catalogue.NODE_DEGRADED, facts.lock_degraded)
    yield Sample(catalogue.NODE_BROKER_UNREACHABLE, facts.broker_unreachable)
    yield Sample(catalogue.NODE_DATABASE_UNREACHABLE, facts.database_unreachable_since is not None)
    yield Sample(catalogue.NODE_SKEW, facts.skew)
