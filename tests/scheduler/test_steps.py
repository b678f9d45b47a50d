"""The steps of a tick: intervals, contention and signs of activity."""

from functools import partial

import pytest
from django.db import OperationalError

from django_dcron.scheduler.steps import Steps, StillLocked, TickStep
from tests.scheduler.stand_ins import StillClock


@pytest.fixture
def clock() -> StillClock:
    return StillClock()


@pytest.fixture
def done() -> list[str]:
    """The steps that ran, and the signs of activity."""
    return []


@pytest.fixture
def steps(clock: StillClock, done: list[str]) -> Steps:
    return Steps("a", clock.monotonic, lambda: done.append("alive"))


def test_step_runs_again_after_its_interval(
    steps: Steps, clock: StillClock, done: list[str]
) -> None:
    listed = [
        TickStep("often", lambda: done.append("often")),
        TickStep("rarely", lambda: None, every=2.0),
    ]
    for _ in range(3):
        steps.run_due(listed)
        clock.advance(1)
    assert done.count("often") == 3
    assert done.count("alive") == 3 + 2, "once before each step"
    steps.run_due(listed)
    steps.repeat("rarely")
    done.clear()
    steps.run_due(listed)
    assert done.count("alive") == 2


def test_step_that_may_not_run_stays_due(steps: Steps, done: list[str]) -> None:
    """Otherwise, it would wait for its whole interval after it may run again."""
    allowed = [False, True]
    step = TickStep("rescue", lambda: done.append("ran"), when=lambda: allowed.pop(0), every=60.0)
    steps.run_due([step])
    assert done == []
    steps.run_due([step])
    assert done == ["alive", "ran"]


def test_blocked_step_does_not_block_the_others(
    steps: Steps, clock: StillClock, done: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "django_dcron.scheduler")
    blocked = [True, True, False, False]

    def claim() -> None:
        if blocked.pop(0):
            raise StillLocked("locked")

    listed = [TickStep("claim", claim, every=1.0), TickStep("adopt", lambda: done.append("adopt"))]
    for number in range(6):
        errors = steps.run_due(listed)
        assert [str(error) for error in errors] == (["locked"] if number in (0, 2) else [])
        assert steps.is_blocked("claim") is (number < 4)
        clock.advance(0.5)
    assert done.count("adopt") == 6
    assert [vars(record)["event"] for record in caplog.records] == ["contention", "contention_over"]


def test_step_that_stays_blocked_is_reported(
    steps: Steps, clock: StillClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "django_dcron.scheduler")
    is_blocked = True

    def claim() -> None:
        if is_blocked:
            raise OperationalError("database is locked")

    listed = [TickStep("claim", claim), TickStep("prune", claim, every=6.0)]
    for second in range(13):
        steps.run_due(listed)
        # The time between the tries of a step that runs rarely doesn't count.
        assert steps.blocked_steps() == ({"claim": second} if second >= 10 else {})
        clock.advance(1)
    warnings = [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]
    assert warnings == [
        "step blocked for 10 s by another transaction: node=a step=claim error=database is locked"
    ]
    is_blocked = False
    steps.run_due(listed)
    assert steps.blocked_steps() == {}
    claimed = [each for each in caplog.records if vars(each)["step"] == "claim"]
    assert claimed[-1].levelname == "WARNING", "the end of a warning is as important"


def test_step_that_leaves_some_rows_for_later_is_not_blocked_for_long(
    steps: Steps, clock: StillClock
) -> None:
    def mark() -> None:
        raise StillLocked("some runs are locked; the others were marked")

    for _ in range(20):
        steps.run_due([TickStep("mark", mark)])
        clock.advance(1)
    assert steps.is_blocked("mark")
    assert steps.blocked_steps() == {}


def test_step_that_the_node_no_longer_has_to_run_is_not_blocked(
    steps: Steps, clock: StillClock
) -> None:
    def claim() -> None:
        raise OperationalError("database is locked")

    for second in range(15):
        leads = second < 12
        steps.run_due([TickStep("claim", claim, when=partial(bool, leads))])
        assert bool(steps.blocked_steps()) is (10 <= second < 12)
        clock.advance(1)


def test_error_other_than_contention_ends_the_tick(steps: Steps, done: list[str]) -> None:
    def fail() -> None:
        raise OperationalError("server closed the connection")

    with pytest.raises(OperationalError):
        steps.run_due([TickStep("claim", fail), TickStep("adopt", lambda: done.append("adopt"))])
    assert "adopt" not in done
