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
def test_sentence_lists_attempts_and_waits(policy: RetryPolicy, values: list[str]) -> None:
    assert re.findall(VALUES, RetryPicture(policy).sentence) == values


def test_jitter_is_mentioned_only_with_waits() -> None:
    assert "25%" in RetryPicture(RetryPolicy(max_attempts=2, jitter=0.25)).jitter_text
    assert RetryPicture(RetryPolicy(max_attempts=2, jitter=0)).jitter_text == ""
    assert RetryPicture(RetryPolicy(max_attempts=1)).jitter_text == ""


def test_chart_without_waits_is_empty() -> None:
    assert RetryPicture(RetryPolicy(max_attempts=1)).attempts == []
    assert RetryPicture(RetryPolicy(max_attempts=3, backoff=timedelta())).attempts == []


@given(
    st.integers(2, 100),
    st.integers(1, 10_000),
    st.floats(1, 100),
    st.integers(1, 10**8),
    st.floats(0, 1),
)
def test_attempts_are_placed_by_policy_delays_within_chart(
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
