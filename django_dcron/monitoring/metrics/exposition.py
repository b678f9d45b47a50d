"""Answer scrapes of a node, of Django, and of a project's own registry.

Without the extra ``metrics``, scrapes fail with a clear message and everything else works.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from http import HTTPStatus
from typing import TYPE_CHECKING

from django.core.exceptions import ImproperlyConfigured

from django_dcron.monitoring.http.response import RenderedResponse
from django_dcron.monitoring.metrics import catalog, cluster
from django_dcron.monitoring.metrics.attempts import AttemptObserver
from django_dcron.monitoring.metrics.node import node_samples
from django_dcron.monitoring.metrics.readings import BackgroundReading, DirectReading
from django_dcron.monitoring.metrics.samples import Distribution, MetricSample
from django_dcron.scheduler.health import NodeHealth

if TYPE_CHECKING:
    from prometheus_client.core import Metric

MISSING_EXTRA_MESSAGE = "Metrics need prometheus-client: pip install django-dcron[metrics]"


class Collector:
    """Metrics from the database, for a project's ``REGISTRY.register(Collector())``."""

    def __init__(self) -> None:
        self._reading = DirectReading(cluster.read_samples)

    def samples(self) -> tuple[MetricSample, ...]:
        return _with_database_up(self._reading.get())

    def describe(self) -> Iterable[Metric]:
        """Return nothing, so that the registration of the collector doesn't read the database."""
        return ()

    def collect(self) -> Iterator[Metric]:
        try:
            from django_dcron.monitoring.metrics.families import families
        except ModuleNotFoundError as error:
            raise ImproperlyConfigured(MISSING_EXTRA_MESSAGE) from error
        return families(self.samples())

    def response(self, accept: str = "") -> RenderedResponse:
        return _answer(self.samples, accept)


class NodeMetrics:
    """A node's metrics from memory, and cluster metrics if the database answers in time."""

    def __init__(
        self, health: Callable[[], NodeHealth], namespace: str, shards: Callable[[], frozenset[int]]
    ):
        """``shards`` returns the shards that the node leads now."""
        self._health = health
        self._attempt_observer = AttemptObserver(namespace, shards)
        self._observed = self._attempt_observer.metrics()
        self._reading = BackgroundReading(self._read)

    def samples(self) -> tuple[MetricSample | Distribution, ...]:
        read = _with_database_up(self._reading.get())
        return (*node_samples(self._health()), *self._observed, *read)

    def response(self, accept: str = "") -> RenderedResponse:
        return _answer(self.samples, accept)

    def _read(self) -> tuple[MetricSample, ...]:
        read = cluster.read_samples()
        self._attempt_observer.update()
        self._observed = self._attempt_observer.metrics()
        return read


def _with_database_up(read: tuple[MetricSample, ...] | None) -> tuple[MetricSample, ...]:
    """Return the samples that were read, after one that tells whether the database answered."""
    return (MetricSample(catalog.DATABASE_UP, read is not None), *(read or ()))


def _answer(
    samples: Callable[[], Iterable[MetricSample | Distribution]], accept: str
) -> RenderedResponse:
    try:
        from django_dcron.monitoring.metrics.families import metrics_response
    except ModuleNotFoundError:
        return RenderedResponse(
            HTTPStatus.NOT_IMPLEMENTED,
            "text/plain; charset=utf-8",
            MISSING_EXTRA_MESSAGE.encode() + b"\n",
        )
    return metrics_response(samples(), accept)
