"""Fixtures for tests of ``django_dcron.testing``: a start time, and targets that record calls."""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from django_dcron import current_run, targets
from django_dcron.db import clock
from django_dcron.targets import functions
from django_dcron.testing import ManualClock, set_clock

NINE = datetime(2026, 3, 2, 9, tzinfo=UTC)
"""A Monday."""
MakeTarget = Callable[..., str]


@pytest.fixture(autouse=True)
def assert_no_clock_is_set() -> Iterator[None]:
    assert clock.fixed_at is None
    yield
    assert clock.fixed_at is None


@pytest.fixture
def clock_at_nine() -> Iterator[ManualClock]:
    with set_clock(NINE) as manual_clock:
        yield manual_clock


@pytest.fixture
def calls() -> list[tuple[str, datetime, datetime]]:
    """The recorded calls of the targets that ``make_target`` made.

    Each is a job, an occurrence, and django-dcron's current time.
    """
    return []


@pytest.fixture
def make_target(calls: list[tuple[str, datetime, datetime]]) -> Iterator[MakeTarget]:
    """Yield a function that registers a target and returns its key.

    The target records each call and then calls ``work``.
    """

    def make(work: Callable[[], Any] = lambda: None) -> str:
        def target() -> Any:
            run = current_run()
            assert run is not None
            calls.append((run.job.name, run.scheduled_at, clock.now()))
            return work()

        target.__qualname__ = f"target_{len(functions.registered)}"
        return functions.register_function(target)

    with targets.isolated_registry():
        yield make
