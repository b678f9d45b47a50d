"""What the tests of ``django_dcron.testing`` share: a time they begin at, and targets that say when they were called."""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from django_dcron import current_run, targets
from django_dcron.domain import clock
from django_dcron.targets import functions
from django_dcron.testing import StandingClock, set_clock

NINE = datetime(2026, 3, 2, 9, tzinfo=UTC)
"""A Monday."""
MakeTarget = Callable[..., str]


@pytest.fixture(autouse=True)
def no_time_is_left_set() -> Iterator[None]:
    assert clock.stands_at is None
    yield
    assert clock.stands_at is None


@pytest.fixture
def nine() -> Iterator[StandingClock]:
    with set_clock(NINE) as standing:
        yield standing


@pytest.fixture
def calls() -> list[tuple[str, datetime, datetime]]:
    """(job, occurrence, what django-dcron took for now), for each call of a target of ``make_target``."""
    return []


@pytest.fixture
def make_target(calls: list[tuple[str, datetime, datetime]]) -> Iterator[MakeTarget]:
    """The key of a target that notes each call and then does what it is given."""

    def make(work: Callable[[], Any] = lambda: None) -> str:
        def target() -> Any:
            run = current_run()
            assert run is not None
            calls.append((run.job.name, run.scheduled_at, clock.now()))
            return work()

        target.__qualname__ = f"target_{len(functions.registered)}"
        return functions.register(target)

    with targets.isolated():
        yield make
