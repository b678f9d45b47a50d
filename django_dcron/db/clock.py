"""Cluster time: the database's clock, extrapolated with this machine's monotonic clock.

Invariants:

- No decision depends on a node's wall clock. Between samples of the database's clock, only the
  monotonic clock counts.
- Of the last few samples, the one with the smallest possible error is used: half of its round trip,
  and the drift of the two clocks since then.
- A jump of the database's clock by a second or more is followed only once it has lasted for
  ``DOUBT_FOR``. Otherwise, a short error would move the cursors up to the wrong time, and no job
  would run until then.
- A jump that is followed is one step, forward or back, and is logged.
- If the wall clock agrees with the jump, this machine and its monotonic clock were suspended. The
  new time is then followed at once.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Protocol

logger = logging.getLogger("django_dcron.scheduler")

SAMPLES_KEPT = 8
DRIFT = 1e-4
"""Seconds by which the clocks of two machines may drift apart in a second."""
TOLERANCE = 0.05
"""Seconds. Covers the resolution of any database's clock."""
DOUBTED_FROM = 1.0
"""Seconds. A smaller step, for example by a time server, is followed at once."""
DOUBT_FOR = 10.0
"""Seconds for which a jump must last."""


fixed_at: datetime | None = None
"""The fixed time of this process in a test (``django_dcron.testing``); None in production.

This is the only place where time can be set. Every clock of this process reads it first: ``now``,
the cluster clock, and ``db.now`` in Python and SQL. Tests therefore don't depend on which clock the
code reads.
"""


def now() -> datetime:
    """Return the time of this machine's wall clock, aware UTC.

    Use it only where an inexact time is acceptable.
    """
    return fixed_at or datetime.now(UTC)


class Clock(Protocol):
    def now(self) -> datetime:
        """Return the time, aware UTC."""

    def monotonic(self) -> float:
        """Return seconds of the monotonic clock. Only differences are meaningful."""


@dataclass(frozen=True, slots=True)
class ClockSample:
    cluster_time: datetime
    """The time of the database's clock."""
    monotonic: float
    """This machine's monotonic clock in the middle of the round trip."""
    round_trip: float
    """Seconds."""
    skew: timedelta
    """This machine's wall clock minus the database's clock."""

    def error_at(self, monotonic: float) -> float:
        """Return the greatest error at this time of the monotonic clock, in seconds."""
        return self.round_trip / 2 + DRIFT * (monotonic - self.monotonic)

    def contradicts(self, other: ClockSample) -> bool:
        """Return whether the samples differ by more than their errors, drift and the tolerance.

        Without the drift, a slow read long after the last sample would look like a jump.
        """
        passed = (self.cluster_time - other.cluster_time).total_seconds()
        elapsed = self.monotonic - other.monotonic
        error = (self.round_trip + other.round_trip) / 2 + DRIFT * abs(elapsed)
        return abs(passed - elapsed) > error + TOLERANCE


class ClusterClock:
    """The cluster clock. One thread adds samples; any thread reads the time."""

    def __init__(
        self, monotonic: Callable[[], float] = time.monotonic, wall: Callable[[], float] = time.time
    ):
        self._monotonic = monotonic
        self._wall = wall
        self._samples: deque[ClockSample] = deque(maxlen=SAMPLES_KEPT)
        self._best: ClockSample | None = None
        self._latest: ClockSample | None = None
        self._doubted: ClockSample | None = None
        """The first sample of a jump that isn't followed yet."""
        self.doubt = timedelta()
        """How far the database's clock has jumped while the jump isn't followed; otherwise zero."""

    def sample(self, read_database_clock: Callable[[], datetime]) -> None:
        """Take one sample. Exceptions of ``read_database_clock`` propagate."""
        before = self._monotonic()
        cluster_time = read_database_clock()
        self.add(cluster_time, before, self._monotonic())

    def add(self, cluster_time: datetime, before: float, after: float) -> None:
        """Add a sample: the database's clock, read between these times of the monotonic clock."""
        wall = datetime.fromtimestamp(self._wall() - (after - before) / 2, UTC)
        sample = ClockSample(
            cluster_time, (before + after) / 2, after - before, wall - cluster_time
        )
        if not any(sample.contradicts(earlier) for earlier in self._samples):
            self._end_doubt()
        elif self._latest is None or self._should_follow(sample, self._latest):
            self._samples.clear()  # The earlier samples are invalid.
        else:
            return
        self._samples.append(sample)
        self._latest = sample
        self._best = min(self._samples, key=lambda each: each.error_at(sample.monotonic))

    def _should_follow(self, sample: ClockSample, latest: ClockSample) -> bool:
        """Return whether to follow a sample that contradicts the others, and log a new decision.

        ``latest`` is the last of the others. Remembers the first sample of a doubted jump.
        """
        passed = sample.monotonic - latest.monotonic
        step = sample.cluster_time - latest.cluster_time - timedelta(seconds=passed)
        was_suspended = abs((sample.skew - latest.skew).total_seconds()) < DOUBTED_FROM
        if was_suspended or abs(step.total_seconds()) < DOUBTED_FROM:
            self._end_doubt()
            return True
        if self._doubted is None or sample.contradicts(self._doubted):
            if self._doubted is None:
                logger.warning(
                    "database clock jumped: step=%+.1fs; cluster time follows if it lasts for "
                    "%.0f s",
                    step.total_seconds(),
                    DOUBT_FOR,
                    extra={"event": "clock_doubted"},
                )
            self._doubted = sample
        self.doubt = step
        if sample.monotonic - self._doubted.monotonic < DOUBT_FOR:
            return False
        self._doubted, self.doubt = None, timedelta()
        logger.warning(
            "cluster time follows the database clock: step=%+.1fs",
            step.total_seconds(),
            extra={"event": "clock_stepped"},
        )
        return True

    def _end_doubt(self) -> None:
        if self._doubted is not None:
            logger.info("database clock correct again", extra={"event": "clock_restored"})
        self._doubted, self.doubt = None, timedelta()

    def now(self) -> datetime:
        if (at := fixed_at) is not None:
            return at
        best = self._best  # read once, because another thread may replace it
        if best is None:
            raise RuntimeError("the cluster clock was read before its first sample")
        return best.cluster_time + timedelta(seconds=self._monotonic() - best.monotonic)

    def monotonic(self) -> float:
        return self._monotonic()

    @property
    def skew(self) -> timedelta:
        """How far this machine's wall clock was ahead of the database's clock at the last sample.

        A jump of the database's clock counts even while it isn't followed.
        """
        latest = self._latest
        return latest.skew - self.doubt if latest else timedelta()
