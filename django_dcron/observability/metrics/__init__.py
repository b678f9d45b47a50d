"""Metrics for Prometheus: ``catalogue`` says which, ``exposition`` answers the scrape. Needs the extra ``metrics`` when asked."""

from django_dcron.observability.metrics.exposition import Collector, NodeMetrics

__all__ = ["Collector", "NodeMetrics"]
