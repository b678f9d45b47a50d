"""Any single corruption of a good history is found."""

import random
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.verdict.history import FINAL, History
from tests.verdict.judgement import judge
from tests.verdict.tests.good import change, drop, good_history, repeat

GOOD = good_history()
LONG = timedelta(minutes=10)
"""Longer than the history."""

Corrupt = Callable[[random.Random], History]


def _index(kind: str, rng: random.Random) -> int:
    return rng.randrange(len(getattr(GOOD, kind)))


def _ended_run(rng: random.Random) -> int:
    return rng.choice([n for n, run in enumerate(GOOD.runs) if run.state in FINAL])


def _drop_row(rng: random.Random) -> History:
    return drop(GOOD, "runs", _ended_run(rng))


def _duplicate_row(rng: random.Random) -> History:
    return repeat(GOOD, "runs", _ended_run(rng), id="another")


def _move_row(rng: random.Random) -> History:
    index = _ended_run(rng)
    by = rng.choice([-1, 1]) * timedelta(milliseconds=rng.randint(1, 5000))
    return change(GOOD, "runs", index, scheduled_at=GOOD.runs[index].scheduled_at + by)


def _change_state(rng: random.Random) -> History:
    index = _ended_run(rng)
    others = sorted(FINAL - {GOOD.runs[index].state})
    return change(GOOD, "runs", index, state=rng.choice(others))


def _drop_attempt(rng: random.Random) -> History:
    return drop(GOOD, "attempts", _index("attempts", rng))


def _renumber_attempt(rng: random.Random) -> History:
    index = _index("attempts", rng)
    number = GOOD.attempts[index].number
    other = rng.choice([each for each in range(7) if each != number])
    return change(GOOD, "attempts", index, number=other)


def _shift_start(rng: random.Random) -> History:
    index = _index("attempts", rng)
    by = rng.choice([-1, 1]) * rng.uniform(1, 5) * LONG
    return change(GOOD, "attempts", index, started_at=GOOD.attempts[index].started_at + by)


def _duplicate_start(rng: random.Random) -> History:
    return repeat(GOOD, "starts", _index("starts", rng), process="another")


def _shift_witness(rng: random.Random) -> History:
    index = _index("starts", rng)
    start = GOOD.starts[index]
    return change(GOOD, "starts", index, began_at=start.began_at - rng.uniform(1, 5) * LONG)


def _drop_successful_start(rng: random.Random) -> History:
    succeeded = {(each.run, each.number) for each in GOOD.attempts if each.outcome == "succeeded"}
    indexes = [n for n, each in enumerate(GOOD.starts) if (each.run, each.attempt) in succeeded]
    return drop(GOOD, "starts", rng.choice(indexes))


def _repeat_fence(rng: random.Random) -> History:
    index, other = rng.sample(range(len(GOOD.attempts)), 2)
    return change(GOOD, "attempts", index, fence=GOOD.attempts[other].fence)


def _raise_first_fence(rng: random.Random) -> History:
    """A token that is higher than all later ones."""
    first = min(range(len(GOOD.attempts)), key=lambda index: GOOD.attempts[index].started_at)
    return change(GOOD, "attempts", first, fence=rng.randint(1000, 2**62))


def _change_late_outcome(rng: random.Random) -> History:
    indexes = [n for n, each in enumerate(GOOD.attempts) if each.outcome != "succeeded"]
    index = rng.choice(indexes)
    late = "" if GOOD.attempts[index].late_outcome else "succeeded"
    return change(GOOD, "attempts", index, late_outcome=late)


def _change_counter(rng: random.Random) -> History:
    index = _index("counters", rng)
    state = rng.choice(sorted(FINAL))
    value = getattr(GOOD.counters[index], state) + rng.choice([-1, 1])
    return change(GOOD, "counters", index, **{state: value})


def _move_cursor(rng: random.Random) -> History:
    indexes = [n for n, job in enumerate(GOOD.jobs) if job.next_at]
    index = rng.choice(indexes)
    at = GOOD.jobs[index].next_at
    assert at is not None
    by = rng.choice([-60, -4, -2, 2, 4, 60]) * timedelta(seconds=1)
    return change(GOOD, "jobs", index, next_at=at + by)


CORRUPTIONS: list[Corrupt] = [
    _drop_row,
    _duplicate_row,
    _move_row,
    _change_state,
    _drop_attempt,
    _renumber_attempt,
    _shift_start,
    _duplicate_start,
    _shift_witness,
    _drop_successful_start,
    _repeat_fence,
    _raise_first_fence,
    _change_late_outcome,
    _change_counter,
    _move_cursor,
]


@pytest.mark.parametrize("corrupt", CORRUPTIONS, ids=lambda each: each.__name__.strip("_"))
@given(seed=st.integers(0, 10**6))
def test_any_single_corruption_is_found(corrupt: Corrupt, seed: int) -> None:
    assert judge(corrupt(random.Random(seed))).findings


def test_verdict_does_not_depend_on_the_faults() -> None:
    assert judge(replace(GOOD, faults={})).findings == ()
