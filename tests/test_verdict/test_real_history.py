"""A history of real processes, and any single corruption of it is found.

``DCRON_TEST_HISTORIES`` names a directory in which scenarios of ``make chaos`` write their
histories. ``histories/`` has one of them.
"""

import random
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.test_verdict.good import change, drop, repeat
from tests.verdict.history import FINAL, History
from tests.verdict.judgement import judge

REAL = History.read(Path(__file__).parent / "histories" / "killed_workers.json")
LONG = timedelta(minutes=10)
"""Longer than the history."""

Corrupt = Callable[[random.Random], History]


def test_real_history_has_no_findings() -> None:
    verdict = judge(REAL)
    assert verdict.findings == ()
    assert verdict.totals.occurrences > 50
    assert verdict.totals.attempts > verdict.totals.runs, "the faults made retries necessary"


def _place(kind: str, rng: random.Random) -> int:
    return rng.randrange(len(getattr(REAL, kind)))


def _ended_run(rng: random.Random) -> int:
    return rng.choice([n for n, run in enumerate(REAL.runs) if run.state in FINAL])


def _drop_row(rng: random.Random) -> History:
    return drop(REAL, "runs", _ended_run(rng))


def _double_row(rng: random.Random) -> History:
    return repeat(REAL, "runs", _ended_run(rng), id="another")


def _move_row(rng: random.Random) -> History:
    place = _ended_run(rng)
    by = rng.choice([-1, 1]) * timedelta(milliseconds=rng.randint(1, 5000))
    return change(REAL, "runs", place, scheduled_at=REAL.runs[place].scheduled_at + by)


def _change_state(rng: random.Random) -> History:
    place = _ended_run(rng)
    others = sorted(FINAL - {REAL.runs[place].state})
    return change(REAL, "runs", place, state=rng.choice(others))


def _drop_attempt(rng: random.Random) -> History:
    return drop(REAL, "attempts", _place("attempts", rng))


def _renumber_attempt(rng: random.Random) -> History:
    place = _place("attempts", rng)
    number = REAL.attempts[place].number
    other = rng.choice([each for each in range(7) if each != number])
    return change(REAL, "attempts", place, number=other)


def _shift_start(rng: random.Random) -> History:
    place = _place("attempts", rng)
    by = rng.choice([-1, 1]) * rng.uniform(1, 5) * LONG
    return change(REAL, "attempts", place, started_at=REAL.attempts[place].started_at + by)


def _double_start(rng: random.Random) -> History:
    return repeat(REAL, "starts", _place("starts", rng), process="another")


def _shift_witness(rng: random.Random) -> History:
    place = _place("starts", rng)
    start = REAL.starts[place]
    return change(REAL, "starts", place, began_at=start.began_at - rng.uniform(1, 5) * LONG)


def _drop_successful_start(rng: random.Random) -> History:
    succeeded = {(each.run, each.number) for each in REAL.attempts if each.outcome == "succeeded"}
    places = [n for n, each in enumerate(REAL.starts) if (each.run, each.attempt) in succeeded]
    return drop(REAL, "starts", rng.choice(places))


def _change_counter(rng: random.Random) -> History:
    place = _place("counters", rng)
    state = rng.choice(sorted(FINAL))
    value = getattr(REAL.counters[place], state) + rng.choice([-1, 1])
    return change(REAL, "counters", place, **{state: value})


def _move_cursor(rng: random.Random) -> History:
    places = [n for n, job in enumerate(REAL.jobs) if job.next_at]
    place = rng.choice(places)
    at = REAL.jobs[place].next_at
    assert at is not None
    by = rng.choice([-60, -4, -2, 2, 4, 60]) * timedelta(seconds=1)
    return change(REAL, "jobs", place, next_at=at + by)


CORRUPTIONS: list[Corrupt] = [
    _drop_row,
    _double_row,
    _move_row,
    _change_state,
    _drop_attempt,
    _renumber_attempt,
    _shift_start,
    _double_start,
    _shift_witness,
    _drop_successful_start,
    _change_counter,
    _move_cursor,
]


@pytest.mark.parametrize("corrupt", CORRUPTIONS, ids=lambda each: each.__name__.strip("_"))
@given(seed=st.integers(0, 10**6))
def test_any_single_corruption_is_found(corrupt: Corrupt, seed: int) -> None:
    assert judge(corrupt(random.Random(seed))).findings


def test_faults_do_not_change_the_verdict() -> None:
    assert judge(replace(REAL, faults={})).findings == ()
