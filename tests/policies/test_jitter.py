"""Jitter: the same for an occurrence in every process, and spread over the jobs."""

from datetime import UTC, datetime, timedelta, timezone

from hypothesis import given
from hypothesis import strategies as st

from django_dcron.policies.jitter import jitter_delay

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


@given(st.integers(1, 2**63 - 1), st.timedeltas(timedelta(), timedelta(days=1)))
def test_delay_is_between_zero_and_the_jitter(job_id: int, jitter: timedelta) -> None:
    assert timedelta() <= jitter_delay(job_id, NOON, jitter) <= jitter


@given(st.integers(1, 2**31), st.integers(-12, 14))
def test_delay_does_not_depend_on_the_time_zone_of_the_instant(job_id: int, hours: int) -> None:
    elsewhere = NOON.astimezone(timezone(timedelta(hours=hours)))
    assert jitter_delay(job_id, elsewhere, MINUTE) == jitter_delay(job_id, NOON, MINUTE)


def test_delay_is_zero_without_jitter() -> None:
    assert jitter_delay(7, NOON, timedelta()) == timedelta()


def test_delay_is_the_same_in_every_process_and_release() -> None:
    assert jitter_delay(7, NOON, MINUTE) == timedelta(microseconds=3521534)


def test_delay_spreads_over_jobs_and_occurrences() -> None:
    over_jobs = [jitter_delay(job_id, NOON, MINUTE).total_seconds() for job_id in range(1, 601)]
    over_time = [jitter_delay(7, NOON + i * MINUTE, MINUTE).total_seconds() for i in range(600)]
    for seconds in (over_jobs, over_time):
        tenths = [
            sum(6 * tenth <= value < 6 * tenth + 6 for value in seconds) for tenth in range(10)
        ]
        assert min(tenths) > 20, tenths
