"""Convert samples to prometheus-client's types. Only this module imports prometheus-client."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from http import HTTPStatus

from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.exposition import choose_encoder

from django_dcron.monitoring.http.response import RenderedResponse
from django_dcron.monitoring.metrics import catalog
from django_dcron.monitoring.metrics.catalog import MetricType
from django_dcron.monitoring.metrics.samples import Distribution, MetricSample


def families(measured: Iterable[MetricSample | Distribution]) -> Iterator[Metric]:
    """Return each metric once, with all its samples in any order."""
    by_name: dict[str, Metric] = {}
    for each in measured:
        name = each.metric.name
        if name not in by_name:
            by_name[name] = _empty(each.metric)
        _add(by_name[name], each)
    return iter(by_name.values())


def metrics_response(
    measured: Iterable[MetricSample | Distribution], accept: str
) -> RenderedResponse:
    """Return the metrics in the format that the ``Accept`` header asks for."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_StaticCollector(list(families(measured))))
    try:
        encoder, content_type = choose_encoder(accept)
    except (TypeError, ValueError):  # the header names an invalid version
        encoder, content_type = choose_encoder("")
    return RenderedResponse(HTTPStatus.OK, content_type, encoder(registry))


class _StaticCollector:
    def __init__(self, metrics: list[Metric]):
        self._metrics = metrics

    def collect(self) -> list[Metric]:
        return self._metrics


def _empty(metric: catalog.Metric) -> Metric:
    match metric.type:
        case MetricType.COUNTER:
            return CounterMetricFamily(metric.name, metric.help, labels=metric.labels)
        case MetricType.GAUGE:
            return GaugeMetricFamily(
                metric.name, metric.help, labels=metric.labels, unit=metric.unit
            )
        case MetricType.HISTOGRAM:
            return HistogramMetricFamily(
                metric.name, metric.help, labels=metric.labels, unit=metric.unit
            )
        case MetricType.INFO:
            return InfoMetricFamily(metric.name.removesuffix("_info"), metric.help)


def _add(family: Metric, measured: MetricSample | Distribution) -> None:
    if isinstance(measured, Distribution):
        assert isinstance(family, HistogramMetricFamily)  # noqa: S101 (as in the catalog)
        family.add_metric(measured.labels, list(measured.buckets), measured.sum)
        return
    name = measured.metric.name
    labels = dict(zip(measured.metric.labels, measured.labels, strict=True))
    family.add_sample(name, labels, float(measured.value))
