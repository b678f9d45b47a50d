"""The steps of a tick: intervals, contention and signs of activity."""

from functools import partial
from uuid import UUID

import pytest
from django.db import OperationalError

from django_dcron.scheduler.steps import Steps, StillLocked, TickStep
from tests.scheduler.stand_ins import StillClock

RUNS = [UUID(int=number) for number in range(3)]


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
            raise StillLocked([RUNS[0]])

    listed = [TickStep("claim", claim, every=1.0), TickStep("adopt", lambda: done.append("adopt"))]
    for number in range(6):
        errors = steps.run_due(listed)
        assert [str(RUNS[0]) in str(error) for error in errors] == [True] * (number in (0, 2))
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

    listed = [TickStep("claim", claim), TickStep("prune", claim, every=12.0)]
    for second in range(13):
        steps.run_due(listed)
        # Two short locks would look the same for a step that runs rarely.
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


def test_waits_of_other_steps_count(steps: Steps, clock: StillClock) -> None:
    """While a table is locked, each try of each step waits, so the tries are far apart."""

    def wait() -> None:
        clock.advance(20)
        raise OperationalError("database is locked")

    listed = [TickStep("mark", wait), TickStep("claim", wait, every=5.0)]
    for _ in range(3):
        steps.run_due(listed)
    assert steps.blocked_steps() == {"mark": 80, "claim": 80}


def test_only_runs_that_stay_locked_block_a_step_for_long(
    steps: Steps, clock: StillClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "django_dcron.scheduler")
    locked: set[UUID] = set()

    def mark() -> None:
        raise StillLocked(locked)

    def try_for(seconds: int) -> None:
        for _ in range(seconds):
            steps.run_due([TickStep("mark", mark)])
            clock.advance(1)

    for run in RUNS[1:] * 8:  # as workers lock one run after the other
        locked = {run}
        try_for(1)
    assert steps.is_blocked("mark")
    assert steps.blocked_steps() == {}
    for run in RUNS[1:] * 8:
        locked = {RUNS[0], run}
        try_for(1)
    assert steps.blocked_steps() == {"mark": 15}
    locked = {RUNS[1]}
    try_for(1)
    assert (steps.is_blocked("mark"), steps.blocked_steps()) == (True, {})
    try_for(11)
    assert steps.blocked_steps() == {"mark": 11}
    assert [each.levelname for each in caplog.records] == [
        *("INFO", "WARNING", "WARNING", "INFO", "WARNING")
    ]
    named = [each.getMessage() for each in caplog.records if "blocked for" in each.getMessage()]
    assert [str(RUNS[0]) in named[0], str(RUNS[1]) in named[1]] == [True, True]


def test_end_of_a_block_is_logged_if_the_node_no_longer_has_to_run_the_step(
    steps: Steps, clock: StillClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "django_dcron.scheduler")

    def claim() -> None:
        raise OperationalError("database is locked")

    steps.run_due([TickStep("claim", claim)])
    steps.run_due([TickStep("claim", claim, when=lambda: False)])
    assert not steps.is_blocked("claim")
    assert [vars(record)["event"] for record in caplog.records] == ["contention", "contention_over"]


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
