"""Test that the chart of a retry policy places every attempt after its wait."""

import re
from datetime import timedelta
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_dcron.admin.jobs.retry_picture import LEFT, RIGHT, WIDTH, RetryPicture
from django_dcron.policies.retry import RetryPolicy

SECOND = timedelta(seconds=1)
VALUES = r"\d+[dhms]?(?:,? (?:… )?\d+[dhms])*"
"""Matches a number, a duration or a list of durations."""


@pytest.mark.parametrize(
    ("policy", "values"),
    [
        (RetryPolicy(max_attempts=1), []),
        (RetryPolicy(max_attempts=2), ["2", "10s", "10s"]),
        (RetryPolicy(max_attempts=5), ["5", "10s, 20s, 40s, 1m 20s", "2m 30s"]),
        (
            RetryPolicy(max_attempts=100, backoff_max=timedelta(minutes=1)),
            ["100", "10s, 20s, 40s, 1m, 1m … 1m", "1h 37m 10s"],
        ),
        (RetryPolicy(max_attempts=3, backoff=timedelta()), ["3"]),
    ],
)
def test_the_sentence_has_the_attempts_and_the_waits(
    policy: RetryPolicy, values: list[str]
) -> None:
    assert re.findall(VALUES, RetryPicture(policy).sentence) == values


def test_jitter_is_reported_where_it_does_something() -> None:
    assert "25%" in RetryPicture(RetryPolicy(max_attempts=2, jitter=0.25)).spread
    assert RetryPicture(RetryPolicy(max_attempts=2, jitter=0)).spread == ""
    assert RetryPicture(RetryPolicy(max_attempts=1)).spread == ""


def test_without_a_wait_there_is_nothing_to_draw() -> None:
    assert RetryPicture(RetryPolicy(max_attempts=1)).attempts == []
    assert RetryPicture(RetryPolicy(max_attempts=3, backoff=timedelta())).attempts == []


@given(
    st.integers(2, 100),
    st.integers(1, 10_000),
    st.floats(1, 100),
    st.integers(1, 10**8),
    st.floats(0, 1),
)
def test_attempts_stand_in_their_place(
    max_attempts: int, backoff: int, factor: float, longest: int, jitter: float
) -> None:
    policy = RetryPolicy(max_attempts, backoff * SECOND, factor, longest * SECOND, jitter)
    attempts = RetryPicture(policy).attempts

    assert len(attempts) == max_attempts
    assert attempts[0].x == LEFT
    for earlier, later in pairwise(attempts):
        assert later.after - earlier.after == later.wait == policy.delay(earlier.number)
        assert earlier.x <= later.x
    for attempt in attempts:
        assert LEFT <= attempt.earliest_x <= attempt.x <= attempt.latest_x <= WIDTH - RIGHT
    numbered = [attempt for attempt in attempts if attempt.is_numbered]
    assert all(later.x - earlier.x >= 13 for earlier, later in pairwise(numbered))
