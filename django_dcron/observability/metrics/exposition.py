"""What is answered to a scrape: by a node, by Django, and by a project's own registry.

Without the extra ``metrics`` there is a clear word instead, and all else works.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from http import HTTPStatus
from typing import TYPE_CHECKING

from django.core.exceptions import ImproperlyConfigured

from django_dcron.observability.http.answer import Answer
from django_dcron.observability.metrics import catalogue, cluster
from django_dcron.observability.metrics.attempts import Follower
from django_dcron.observability.metrics.own import own
from django_dcron.observability.metrics.readings import Aside, Direct
from django_dcron.observability.metrics.samples import Distribution, Sample
from django_dcron.scheduler.health import Health

if TYPE_CHECKING:
    from prometheus_client.core import Metric

MISSING = "Metrics need prometheus-client: pip install django-dcron[metrics]"


class Collector:
    """What the database says, for a project's own registry: ``REGISTRY.register(Collector())``."""

    def __init__(self) -> None:
        self._reading = Direct(cluster.read)

    def samples(self) -> tuple[Sample, ...]:
        return _with_database(self._reading.get())

    def describe(self) -> Iterable[Metric]:
        """Nothing is read when it is registered."""
        return ()

    def collect(self) -> Iterator[Metric]:
        try:
            from django_dcron.observability.metrics.families import families
        except ModuleNotFoundError as error:
            raise ImproperlyConfigured(MISSING) from error
        return families(self.samples())

    def answer(self, accept: str = "") -> Answer:
        return _answer(self.samples, accept)


class NodeMetrics:
    """What a node answers: of itself at once, of the database if that answers in time."""

    def __init__(self, health: Callable[[], Health], namespace: str, shards: Callable[[], frozenset[int]]):
        """``shards``: those that it leads now."""
        self._health = health
        self._follower = Follower(namespace, shards)
        self._observed = self._follower.observed()
        self._reading = Aside(self._read)

    def samples(self) -> tuple[Sample | Distribution, ...]:
        read = _with_database(self._reading.get())
        return (*own(self._health()), *self._observed, *read)

    def answer(self, accept: str = "") -> Answer:
        return _answer(self.samples, accept)

    def _read(self) -> tuple[Sample, ...]:
        read = cluster.read()
        self._follower.look()
        self._observed = self._follower.observed()
        return read


def _with_database(read: tuple[Sample, ...] | None) -> tuple[Sample, ...]:
    return (Sample(catalogue.DATABASE_UP, read is not None), *(read or ()))


def _answer(samples: Callable[[], Iterable[Sample | Distribution]], accept: str) -> Answer:
    try:
        from django_dcron.observability.metrics.families import encode
    except ModuleNotFoundError:
        return Answer(HTTPStatus.NOT_IMPLEMENTED, "text/plain; charset=utf-8", MISSING.encode() + b"\n")
    body, content_type = encode(samples(), accept)
    return Answer(HTTPStatus.OK, content_type, body)
