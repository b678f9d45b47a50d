"""Cluster time: the database's clock, carried forward by this machine's monotonic clock.

Nobody trusts a node's wall clock. ``ClusterClock`` is fed with samples of the database's clock; the sample with the
shortest round trip among the last few has the smallest error (half the round trip) and is the one used. Between
samples only the monotonic clock counts, so a wall clock that is wrong, or stepped, changes nothing.

The database's clock may itself be set, or be wrong for a moment. Invariants:

- A jump of a second or more is believed once it has lasted for ``DOUBT_FOR``; until then cluster time goes on without it. Cluster
  time that followed at once would advance the cursors over everything up to a wrong time, and no job would run until then.
- A jump that is believed is one step, forward or back, and is logged.
- This machine may have slept, and its monotonic clock with it: then its wall clock still agrees with the database, and the new
  time is believed at once.
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
TOLERANCE = 0.05
"""Seconds: what two clocks drift apart while samples are kept, and the coarsest clock of a database, with room to spare."""
DOUBTED_FROM = 1.0
"""Seconds: a smaller step, as a time server makes them, is followed at once."""
DOUBT_FOR = 10.0
"""Seconds for which a jump must last."""


stands_at: datetime | None = None
"""Where a test has set the time of this process (``django_dcron.testing``); None, as always in production: it goes on by itself.

The one place where time can be set. Whoever tells somebody else in this process what time it is looks here first: ``now``, the cluster
clock, and ``models.database`` in Python as in SQL. So no test has to know who reads which clock.
"""


def now() -> datetime:
    """By this machine's wall clock, aware UTC: for what need not be exact."""
    return stands_at or datetime.now(UTC)


class Clock(Protocol):
    def now(self) -> datetime:
        """Aware UTC."""

    def monotonic(self) -> float:
        """Seconds; only differences mean anything."""


class SystemClock:
    """This machine's own clocks: for tests and for programs with one machine."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        return time.monotonic()


@dataclass(frozen=True, slots=True)
class Sample:
    cluster_time: datetime
    """What the database's clock said."""
    monotonic: float
    """This machine's monotonic clock half way through the round trip."""
    round_trip: float
    """Seconds."""
    skew: timedelta
    """This machine's wall clock less the database's."""

    def contradicts(self, other: Sample) -> bool:
        """Whether the two differ by more than their errors, and some drift, explain."""
        passed = (self.cluster_time - other.cluster_time) / timedelta(seconds=1)
        error = (self.round_trip + other.round_trip) / 2
        return abs(passed - (self.monotonic - other.monotonic)) > error + TOLERANCE


class ClusterClock:
    """Thread-safe: samples are added by one thread, the time is read by all."""

    def __init__(
        self, monotonic: Callable[[], float] = time.monotonic, wall: Callable[[], float] = time.time
    ):
        self._monotonic = monotonic
        self._wall = wall
        self._samples: deque[Sample] = deque(maxlen=SAMPLES_KEPT)
        self._best: Sample | None = None
        self._latest: Sample | None = None
        self._doubted: Sample | None = None
        """The first sample of a jump that is not believed yet."""
        self.doubt = timedelta()
        """How far the database's clock has jumped, while that is not believed; else zero."""

    def sample(self, read_database_clock: Callable[[], datetime]) -> None:
        """Take one sample; whatever ``read_database_clock`` raises passes through."""
        before = self._monotonic()
        cluster_time = read_database_clock()
        after = self._monotonic()
        wall = datetime.fromtimestamp(self._wall() - (after - before) / 2, UTC)
        sample = Sample(cluster_time, (before + after) / 2, after - before, wall - cluster_time)
        if not any(sample.contradicts(earlier) for earlier in self._samples):
            self._end_doubt()
        elif self._latest is None or self._believes(sample, self._latest):
            self._samples.clear()  # what was known is void
        else:
            return
        self._samples.append(sample)
        self._latest = sample
        self._best = min(self._samples, key=lambda sample: sample.round_trip)

    def _believes(self, sample: Sample, latest: Sample) -> bool:
        """Whether a sample that contradicts the others is right. ``latest``: of the others."""
        passed = sample.monotonic - latest.monotonic
        step = sample.cluster_time - latest.cluster_time - timedelta(seconds=passed)
        slept = abs((sample.skew - latest.skew).total_seconds()) < DOUBTED_FROM
        if slept or abs(step.total_seconds()) < DOUBTED_FROM:
            self._end_doubt()
            return True
        if self._doubted is None or sample.contradicts(self._doubted):
            if self._doubted is None:
                logger.warning(
                    "database clock jumped: step=%+.1fs; cluster time follows if that lasts for %.0f s",
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
            logger.info("the database clock is right again", extra={"event": "clock_right"})
        self._doubted, self.doubt = None, timedelta()

    def now(self) -> datetime:
        if (at := stands_at) is not None:
            return at
        best = self._best  # read once: another thread may put a better one in its place
        if best is None:
            raise RuntimeError("the cluster clock was read before its first sample")
        return best.cluster_time + timedelta(seconds=self._monotonic() - best.monotonic)

    def monotonic(self) -> float:
        return self._monotonic()

    @property
    def skew(self) -> timedelta:
        """How far this machine's wall clock is ahead of cluster time, at the last sample."""
        latest = self._latest
        return latest.skew if latest else timedelta()
