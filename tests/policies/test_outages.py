"""Outages: which pauses between the nodes' heartbeats count."""

from datetime import UTC, datetime, timedelta

import pytest

from django_dcron.policies.outages import FailedHeartbeat, Outage, find_outage

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("pause", "is_outage"),
    [
        (timedelta(seconds=59), False),
        (timedelta(minutes=1), True),
        (timedelta(days=7), True),
        (timedelta(minutes=-10), False),
    ],
)
def test_outage_lasts_for_a_minute_at_least(pause: timedelta, is_outage: bool) -> None:
    outage = Outage(NOON - pause, NOON)
    assert find_outage(NOON - pause, NOON) == (outage if is_outage else None)
    assert outage.duration == pause


def test_first_heartbeat_of_an_installation_ends_no_outage() -> None:
    assert find_outage(None, NOON) is None


def test_outage_has_the_failure_of_the_node_that_found_it() -> None:
    failure = FailedHeartbeat(NOON - timedelta(minutes=4), "gone")
    outage = find_outage(NOON - timedelta(minutes=5), NOON, failure)
    suspended = find_outage(NOON - timedelta(minutes=6), NOON, failure)
    assert suspended is not None
    assert suspended.failure is None, "the node was suspended before"
    assert outage is not None
    assert outage.failure == failure
