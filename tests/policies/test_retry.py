"""The retry policy: whether another attempt follows, and when."""

import random
from datetime import datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_dcron.policies.retry import CONTENTION_WAIT, Failure, FailureClass, RetryPolicy

SECOND = timedelta(seconds=1)
TRANSIENT = Failure(FailureClass.TRANSIENT)
CONTENTION = Failure(FailureClass.CONTENTION)


def policy(**given: object) -> RetryPolicy:
    return RetryPolicy(**{"max_attempts": 10, "backoff": 10 * SECOND, "jitter": 0.0, **given})  # type: ignore[arg-type]


def raised(*names: str, kind: FailureClass = FailureClass.TRANSIENT) -> Failure:
    return Failure(kind, frozenset(names))


def test_max_attempts_includes_the_first_attempt() -> None:
    assert policy(max_attempts=1).retry_after(TRANSIENT, 1) is None
    assert policy(max_attempts=3).retry_after(TRANSIENT, 2) is not None
    assert policy(max_attempts=3).retry_after(TRANSIENT, 3) is None


def test_backoff_grows_by_the_factor_up_to_the_maximum() -> None:
    waits = [
        policy(factor=3, backoff_max=100 * SECOND).retry_after(TRANSIENT, n) for n in range(1, 6)
    ]
    assert waits == [10 * SECOND, 30 * SECOND, 90 * SECOND, 100 * SECOND, 100 * SECOND]


@pytest.mark.parametrize("factor", [100.0, float("inf"), float("nan")])
def test_backoff_with_extreme_factor_is_capped(factor: float) -> None:
    patient = policy(max_attempts=1000, factor=factor, backoff_max=timedelta(hours=1))
    assert patient.retry_after(TRANSIENT, 500) == timedelta(hours=1)


def test_longest_wait_does_not_overflow_datetime() -> None:
    endless = policy(backoff=timedelta.max, backoff_max=timedelta.max, jitter=1.0)
    for failure in (
        TRANSIENT,
        Failure(FailureClass.TRANSIENT, retry_wanted=True, retry_after=timedelta.max),
    ):
        wait = endless.retry_after(failure, 1)
        assert wait is not None
        assert datetime(2200, 1, 1) + wait  # noqa: DTZ001 (only that it does not overflow)


@given(
    attempt=st.integers(1, 99),
    jitter=st.floats(0, 1),
    backoff=st.timedeltas(timedelta(), timedelta(days=2)),
    factor=st.floats(1, 100),
    kind=st.sampled_from([FailureClass.TRANSIENT, FailureClass.CONTENTION]),
)
def test_jitter_stays_within_its_bounds_in_both_directions(
    attempt: int, jitter: float, backoff: timedelta, factor: float, kind: FailureClass
) -> None:
    given_policy = policy(
        max_attempts=100,
        backoff=backoff,
        factor=factor,
        jitter=jitter,
        backoff_max=timedelta(days=2),
    )
    without = policy(
        max_attempts=100, backoff=backoff, factor=factor, jitter=0.0, backoff_max=timedelta(days=2)
    ).retry_after(Failure(kind), attempt)
    wait = given_policy.retry_after(Failure(kind), attempt, random.Random(attempt))
    rounding = timedelta(milliseconds=1)
    assert wait is not None
    assert without is not None
    assert timedelta() <= wait
    assert without * (1 - jitter) - rounding <= wait <= without * (1 + jitter) + rounding


def test_jitter_varies_the_wait() -> None:
    waits = {policy(jitter=0.5).retry_after(TRANSIENT, 1) for _ in range(20)}
    assert len(waits) > 1


def test_contention_is_retried_soon_three_times_then_with_backoff() -> None:
    waits = [policy().retry_after(CONTENTION, n) for n in range(1, 5)]
    assert waits == [CONTENTION_WAIT, CONTENTION_WAIT, CONTENTION_WAIT, 80 * SECOND]
    assert policy(backoff=timedelta()).retry_after(CONTENTION, 1) == timedelta()


def test_permanent_failure_is_not_retried() -> None:
    assert policy().retry_after(raised("ValueError", kind=FailureClass.PERMANENT), 1) is None


@pytest.mark.parametrize(
    ("retry_on", "never_retry_on", "names", "again"),
    [
        ([], [], ["OSError"], True),
        (["OSError"], [], ["OSError", "TimeoutError"], True),
        (["requests.Timeout"], [], ["Timeout", "requests.Timeout"], True),
        (["OSError"], [], ["ValueError"], False),
        ([], ["ValueError"], ["ValueError"], False),
        (["OSError"], ["TimeoutError"], ["OSError", "TimeoutError"], False),
        (["OSError"], ["ValueError"], [], True),  # a lost attempt has no exception
    ],
)
def test_exception_names_decide_whether_to_retry(
    retry_on: list[str], never_retry_on: list[str], names: list[str], again: bool
) -> None:
    wait = policy(retry_on=retry_on, never_retry_on=never_retry_on).retry_after(raised(*names), 1)
    assert (wait is not None) is again


def test_reason_names_what_forbids_the_retry() -> None:
    only = policy(retry_on=["OSError"], never_retry_on=["ValueError"])
    assert only.why_not_retried(raised("OSError")) == ""
    assert only.why_not_retried(raised("KeyError")) == "not listed in retry_on"
    assert only.why_not_retried(raised("ValueError")) == "listed in never_retry_on"
    assert only.why_not_retried(Failure(FailureClass.PERMANENT)) == "permanent failure"


def test_retry_later_overrides_retry_on_but_not_the_other_limits() -> None:
    requested = Failure(
        FailureClass.TRANSIENT, frozenset({"RetryLater"}), True, timedelta(minutes=7)
    )
    assert policy(retry_on=["OSError"], jitter=0.5).retry_after(requested, 1) == timedelta(
        minutes=7
    )
    assert policy(max_attempts=1).retry_after(requested, 1) is None
    assert policy(never_retry_on=["RetryLater"]).retry_after(requested, 1) is None


def test_retry_later_without_delay_uses_the_backoff() -> None:
    requested = Failure(FailureClass.TRANSIENT, frozenset({"RetryLater"}), retry_wanted=True)
    assert policy(retry_on=["OSError"]).retry_after(requested, 2) == 20 * SECOND


def test_retry_later_with_negative_delay_retries_immediately() -> None:
    requested = Failure(FailureClass.TRANSIENT, retry_wanted=True, retry_after=-SECOND)
    assert policy().retry_after(requested, 1) == timedelta()
