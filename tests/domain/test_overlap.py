"""The overlap policy: what a run does that found its job's slot taken."""

from datetime import UTC, datetime

import pytest

from django_dcron.domain.overlap import (
    FIRST_TURN,
    Held,
    OverlapPolicy,
    first_turn_of,
    next_slot_of,
    read_policy,
    slot_of,
    turn_of,
    when_held,
)


def test_every_policy_but_allow_needs_the_slot() -> None:
    assert {policy for policy in OverlapPolicy if not policy.exclusive} == {OverlapPolicy.ALLOW}


@pytest.mark.parametrize(
    ("policy", "held"),
    [
        (OverlapPolicy.SKIP, Held.SKIP),
        (OverlapPolicy.QUEUE_ONE, Held.WAIT_NEXT),
        (OverlapPolicy.QUEUE_ALL, Held.WAIT),
        (OverlapPolicy.CANCEL_RUNNING, Held.REPLACE),
    ],
)
def test_each_policy_has_its_answer(policy: OverlapPolicy, held: Held) -> None:
    assert when_held(policy) is held


@pytest.mark.parametrize(
    ("policy", "held"),
    [
        (OverlapPolicy.SKIP, Held.WAIT_NEXT),
        (OverlapPolicy.QUEUE_ONE, Held.WAIT_NEXT),
        (OverlapPolicy.QUEUE_ALL, Held.WAIT),
        (OverlapPolicy.CANCEL_RUNNING, Held.REPLACE_NEXT),
    ],
)
def test_nobody_skips_or_cancels_for_a_backfilled_run(policy: OverlapPolicy, held: Held) -> None:
    assert when_held(policy, by_backfill=True) is held


def test_a_policy_that_nobody_knows_is_as_strict_as_can_be() -> None:
    assert [read_policy(policy) for policy in OverlapPolicy] == list(OverlapPolicy)
    for stored in ("", "ALLOW", "one_per_weekday"):
        assert read_policy(stored).exclusive
        assert {when_held(read_policy(stored)), when_held(read_policy("skip"))} == {Held.SKIP}


def test_allow_never_meets_a_taken_slot() -> None:
    with pytest.raises(ValueError, match="allows overlap"):
        when_held(OverlapPolicy.ALLOW)


def test_turns_are_in_the_order_of_jobs_and_occurrences_and_apart_from_slots_in_a_column_of_64_bits() -> None:
    occurrences = [datetime(year, 1, 1, tzinfo=UTC) for year in (1970, 2025, 2240)]
    jobs = [1, 2, 1000, 2**29 - 1]
    turns = [turn_of(job_id, at) for job_id in jobs for at in occurrences]
    assert turns == sorted(set(turns))
    for job_id in jobs:
        for at in occurrences:
            assert first_turn_of(job_id) <= turn_of(job_id, at) < first_turn_of(job_id + 1)
    assert max(jobs) < FIRST_TURN <= turns[0]
    assert turns[-1] < 2**63


def test_no_two_jobs_share_a_slot_value() -> None:
    values = [value for job_id in range(1, 100) for value in (slot_of(job_id), next_slot_of(job_id))]
    assert len(set(values)) == len(values)
