"""Prometheus metrics of nodes, attempts and the cluster. Scrapes need the extra ``metrics``."""

from django_dcron.monitoring.metrics.exposition import Collector, NodeMetrics

__all__ = ["Collector", "NodeMetrics"]
