"""Measured values, independent of the exposition format."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from datetime import timedelta
from itertools import accumulate
from typing import NamedTuple

from django_dcron.monitoring.metrics.catalog import Metric

SECOND = timedelta(seconds=1)


class MetricSample(NamedTuple):
    metric: Metric
    value: float
    labels: tuple[str, ...] = ()
    """Label values in the order of the metric's labels."""


@dataclass(frozen=True, slots=True)
class Distribution:
    """The content of a histogram at one moment."""

    metric: Metric
    labels: tuple[str, ...]
    buckets: tuple[tuple[str, int], ...]
    """Upper bounds and cumulative counts, ascending. The last bound is +Inf."""
    sum: float


class Histogram:
    """A histogram of durations in seconds. It isn't thread-safe."""

    def __init__(self, metric: Metric, bounds: tuple[float, ...], labels: tuple[str, ...] = ()):
        self._metric = metric
        self._labels = labels
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, span: timedelta) -> None:
        """Count the duration.

        A negative duration counts as zero: several processes write the times, milliseconds apart.
        """
        seconds = max(span / SECOND, 0.0)
        self._counts[bisect_left(self._bounds, seconds)] += 1
        self._sum += seconds

    def now(self) -> Distribution:
        names = (*map(str, map(float, self._bounds)), "+Inf")
        buckets = tuple(zip(names, accumulate(self._counts), strict=True))
        return Distribution(self._metric, self._labels, buckets, self._sum)
