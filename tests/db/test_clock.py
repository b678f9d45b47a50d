"""Cluster time: the database's clock, advanced by the monotonic clock, not the wall clock."""

import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

from django_dcron.db import clock as clocks
from django_dcron.db.clock import SAMPLES_KEPT, ClockSample, ClusterClock

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


class World:
    """Three clocks: the database's correct one, this machine's monotonic one and its wall clock."""

    def __init__(self, skew: float = 0.0) -> None:
        self.elapsed = 0.0
        self.skew = skew
        self.clock = ClusterClock(monotonic=lambda: 1000 + self.elapsed, wall=self._wall)

    @property
    def truth(self) -> datetime:
        return NOON + timedelta(seconds=self.elapsed)

    def _wall(self) -> float:
        return self.truth.timestamp() + self.skew

    def reading(self, way_there: float, way_back: float) -> Callable[[], datetime]:
        """Return a function that reads the clock over a network with these delays, in seconds."""

        def read() -> datetime:
            self.elapsed += way_there
            answer = self.truth
            self.elapsed += way_back
            return answer

        return read

    @property
    def error(self) -> float:
        return abs((self.clock.now() - self.truth).total_seconds())


def test_now_fails_before_first_sample() -> None:
    with pytest.raises(RuntimeError, match="first sample"):
        ClusterClock().now()
    assert ClusterClock().skew == timedelta()
    assert ClusterClock().doubt == timedelta()


def test_cluster_time_is_database_time_advanced_by_monotonic_clock() -> None:
    world = World(skew=600)
    world.clock.sample(world.reading(0, 0))
    world.elapsed += 3600
    assert world.error == 0
    assert world.clock.monotonic() == 4600


def test_wall_clock_step_changes_only_reported_skew() -> None:
    world = World()
    world.clock.sample(world.reading(0, 0))
    world.skew = -86_400.0
    assert world.error == 0
    world.clock.sample(world.reading(0.01, 0.01))
    assert world.error < 0.01
    assert abs(world.clock.skew.total_seconds() + 86_400) < 0.001


def test_error_is_at_most_half_the_round_trip() -> None:
    world = World()
    world.clock.sample(world.reading(0.8, 0.2))
    assert world.error <= 0.5 + 1e-6


def test_sample_is_timed_at_midpoint_of_round_trip() -> None:
    world = World(skew=600)
    world.clock.sample(world.reading(1.0, 3.0))

    assert world.clock.now() == NOON + timedelta(seconds=3)
    assert world.clock.skew == timedelta(seconds=601)


def sample_at(cluster: float, monotonic: float, round_trip: float = 0.0) -> ClockSample:
    return ClockSample(NOON + timedelta(seconds=cluster), monotonic, round_trip, timedelta())


@pytest.mark.parametrize(
    ("one", "other", "contradict"),
    [
        (sample_at(0, 0), sample_at(0, 0), False),
        (sample_at(100, 1100), sample_at(40, 1040), False),
        (sample_at(0.05, 0), sample_at(0, 0), False),  # drift may explain this difference
        (sample_at(0.051, 0), sample_at(0, 0), True),
        (sample_at(10.5, 10), sample_at(0, 0), True),
        (sample_at(10, 10.5), sample_at(0, 0), True),
        # Up to half of each round trip may be an error.
        (sample_at(10.34, 10, 0.2), sample_at(0, 0, 0.4), False),
        (sample_at(10.36, 10, 0.2), sample_at(0, 0, 0.4), True),
        (sample_at(10.34, 10, 0.6), sample_at(0, 0), False),
        (sample_at(10.36, 10, 0.6), sample_at(0, 0), True),
    ],
)
def test_samples_contradict_when_difference_exceeds_error_bounds(
    one: ClockSample, other: ClockSample, contradict: bool
) -> None:
    assert one.contradicts(other) is contradict
    assert other.contradicts(one) is contradict


def test_sample_with_shortest_round_trip_is_used() -> None:
    world = World()
    world.clock.sample(world.reading(0.001, 0.001))
    world.clock.sample(world.reading(4.0, 0.0))
    assert world.error < 0.002


@pytest.mark.parametrize("drift", [clocks.DRIFT, -clocks.DRIFT])
def test_old_sample_is_replaced_before_drift_makes_it_worse(drift: float) -> None:
    """A suspended process takes no samples, and the clocks drift apart meanwhile."""
    world = World()
    world.clock.sample(world.reading(0.0, 0.0))
    world.elapsed += 400
    ahead = timedelta(seconds=400 * drift)  # not enough to contradict the first sample
    read = world.reading(0.01, 0.01)
    world.clock.sample(lambda: read() + ahead)
    assert abs((world.clock.now() - world.truth - ahead).total_seconds()) <= 0.01


def test_best_sample_expires() -> None:
    """Clocks drift apart, so even the best sample must expire."""
    world = World()
    world.clock.sample(lambda: world.truth + timedelta(seconds=0.04))
    for _ in range(SAMPLES_KEPT - 1):
        world.clock.sample(world.reading(0.02, 0.02))
        assert world.error == pytest.approx(0.04, abs=1e-4)
    world.clock.sample(world.reading(0.02, 0.02))
    assert world.error == pytest.approx(0, abs=1e-4)


def events(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [vars(record)["event"] for record in caplog.records]


@pytest.mark.parametrize("jump", [3600.0, -3600.0, 2.0, 1.0, -1.0], ids=str)
def test_brief_jump_of_database_clock_is_not_followed(
    jump: float, caplog: pytest.LogCaptureFixture
) -> None:
    """Otherwise, the cursors would move to a future time, and no job would run until then."""
    caplog.set_level("INFO", "django_dcron.scheduler")
    world = World()
    world.clock.sample(world.reading(0, 0))
    for _ in range(4):
        world.elapsed += 2
        world.clock.sample(lambda: world.truth + timedelta(seconds=jump))
        assert world.error == 0
        assert world.clock.doubt == timedelta(seconds=jump)
        assert world.clock.skew == timedelta(seconds=-jump), (
            "the node's row stores the skew for doctor"
        )
    world.elapsed += 2
    world.clock.sample(world.reading(0, 0))
    assert (world.error, world.clock.doubt) == (0, timedelta())
    assert events(caplog) == ["clock_doubted", "clock_restored"]


@pytest.mark.parametrize("jump", [3600.0, -3600.0], ids=str)
def test_lasting_jump_of_database_clock_is_followed_and_logged(
    jump: float, caplog: pytest.LogCaptureFixture
) -> None:
    world = World()
    world.clock.sample(world.reading(0, 0))
    errors = []
    for _ in range(8):
        world.elapsed += 2
        world.clock.sample(lambda: world.truth + timedelta(seconds=jump))
        errors.append((world.clock.now() - world.truth).total_seconds())
    assert errors == [0.0] * 5 + [jump] * 3
    assert world.clock.doubt == timedelta()
    assert events(caplog) == ["clock_doubted", "clock_stepped"]
    assert f"step={jump:+.1f}s" in caplog.messages[1]


def test_database_clock_that_keeps_jumping_is_not_followed() -> None:
    world = World()
    world.clock.sample(world.reading(0, 0))
    for jump in range(100, 2000, 100):
        world.elapsed += 2
        world.clock.sample(lambda: world.truth + timedelta(seconds=jump))  # noqa: B023
        assert world.error == 0


@pytest.mark.parametrize("drift", [-0.9e-4, 0.9e-4])
def test_slow_reads_long_after_the_last_sample_are_no_jump(drift: float) -> None:
    """The clocks have drifted apart meanwhile, and half of a slow round trip is its error."""
    world = World()
    clock = ClusterClock(lambda: world.elapsed * (1 + drift), world._wall)
    clock.sample(world.reading(0, 0))
    for seconds in (500, 780):
        world.elapsed += 1000
        clock.sample(world.reading(seconds, 0))
    assert abs((clock.now() - world.truth).total_seconds()) < 1
    assert clock.doubt == timedelta()


def test_small_step_of_database_clock_is_followed_at_once(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    world.clock.sample(world.reading(0, 0))
    world.clock.sample(lambda: world.truth + timedelta(seconds=0.9))
    assert world.error == 0.9
    assert not caplog.records


def test_small_step_of_database_clock_is_followed_although_wall_clock_jumps(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = World()
    world.clock.sample(world.reading(0, 0))
    world.skew = 600.0
    world.clock.sample(lambda: world.truth + timedelta(seconds=0.9))
    assert (world.error, world.clock.doubt) == (0.9, timedelta())
    assert not caplog.records


def test_small_step_of_database_clock_ends_doubt(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "django_dcron.scheduler")
    world = World()
    world.clock.sample(world.reading(0, 0))
    world.clock.sample(lambda: world.truth + timedelta(seconds=100))
    assert world.clock.doubt == timedelta(seconds=100)
    world.clock.sample(lambda: world.truth + timedelta(seconds=0.5))
    assert (world.error, world.clock.doubt) == (0.5, timedelta())
    assert events(caplog) == ["clock_doubted", "clock_restored"]


def test_clock_is_corrected_at_once_after_machine_sleep(caplog: pytest.LogCaptureFixture) -> None:
    """Sleep stops the monotonic clock but not the wall clock."""
    now = NOON
    clock = ClusterClock(monotonic=lambda: 1000.0, wall=lambda: now.timestamp() + 5)
    clock.sample(lambda: now)
    now += timedelta(hours=1)
    clock.sample(lambda: now)
    assert clock.now() == now
    assert not caplog.records


def test_failed_sample_leaves_clock_unchanged() -> None:
    world = World()
    world.clock.sample(world.reading(0, 0))

    def unreachable() -> datetime:
        raise ConnectionError

    with pytest.raises(ConnectionError):
        world.clock.sample(unreachable)
    assert world.error == 0


def test_concurrent_reader_never_mixes_two_samples() -> None:
    """The sample is replaced while another thread computes the time from it."""
    world = World()
    clock = ClusterClock(monotonic=lambda: replacing(), wall=world._wall)
    replacement = ClockSample(NOON + timedelta(seconds=50), 50.0, 0.0, timedelta())
    armed = threading.Event()

    def replacing() -> float:
        if armed.is_set():
            clock._best = replacement
        return 60.0

    clock._best = ClockSample(NOON, 0.0, 0.0, timedelta())
    armed.set()
    assert clock.now() == NOON + timedelta(seconds=60)


def test_fixed_time_applies_to_every_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    assert clocks.fixed_at is None
    assert clocks.now().utcoffset() == timedelta()
    monkeypatch.setattr(clocks, "fixed_at", NOON)
    assert clocks.now() == NOON
    assert ClusterClock().now() == NOON
