"""What is measured, before anybody writes it down in a format."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from datetime import timedelta
from itertools import accumulate
from typing import NamedTuple

from django_dcron.observability.metrics.catalogue import Metric

SECOND = timedelta(seconds=1)


class Sample(NamedTuple):
    metric: Metric
    value: float
    labels: tuple[str, ...] = ()
    """In the order of the metric's."""


@dataclass(frozen=True, slots=True)
class Distribution:
    """What a histogram held at one moment."""

    metric: Metric
    labels: tuple[str, ...]
    buckets: tuple[tuple[str, int], ...]
    """How many were at most so large, ascending; the last is +Inf: all."""
    sum: float


class Histogram:
    """Not thread-safe."""

    def __init__(self, metric: Metric, bounds: tuple[float, ...], labels: tuple[str, ...] = ()):
        self._metric = metric
        self._labels = labels
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, span: timedelta) -> None:
        """Several processes write the instants, milliseconds apart: less than nothing counts as nothing."""
        seconds = max(span / SECOND, 0.0)
        self._counts[bisect_left(self._bounds, seconds)] += 1
        self._sum += seconds

    def now(self) -> Distribution:
        names = (*map(str, map(float, self._bounds)), "+Inf")
        buckets = tuple(zip(names, accumulate(self._counts), strict=True))
        return Distribution(self._metric, self._labels, buckets, self._sum)
