"""The misfire policy: which runs late occurrences get, and whether a late run still starts."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import pytest

from django_dcron.policies.misfire import LateOccurrences, Misfire, MisfirePolicy, PlannedRun

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


def misfire(policy: MisfirePolicy, *, catchup_limit: int = 3) -> Misfire:
    return Misfire(policy, grace=MINUTE, catchup_limit=catchup_limit)


def minutes(count: int) -> Sequence[datetime]:
    return [NOON + i * MINUTE for i in range(count)]


def late(count: int) -> LateOccurrences:
    occurrences = minutes(count)
    return LateOccurrences(occurrences, occurrences[-1], count)


@pytest.mark.parametrize(
    ("lateness", "late"),
    [
        (-MINUTE, False),
        (timedelta(), False),
        (MINUTE, False),
        (MINUTE + timedelta(microseconds=1), True),
    ],
)
def test_occurrence_is_late_after_its_grace_period(lateness: timedelta, late: bool) -> None:
    assert misfire(MisfirePolicy.SKIP).is_late(NOON, NOON + lateness) is late


def test_skip_records_the_backlog_as_one_missed_run() -> None:
    assert misfire(MisfirePolicy.SKIP).plan_runs(late(5)) == [
        PlannedRun(NOON + 4 * MINUTE, missed=True, missed_before=4, missed_from=NOON)
    ]


def test_run_latest_runs_the_newest_and_counts_the_others_as_missed() -> None:
    assert misfire(MisfirePolicy.RUN_LATEST).plan_runs(late(5)) == [
        PlannedRun(NOON + 4 * MINUTE, missed=False, missed_before=4, missed_from=NOON)
    ]


@pytest.mark.parametrize("policy", MisfirePolicy)
def test_backlog_of_one_counts_no_missed_occurrences(policy: MisfirePolicy) -> None:
    [span] = misfire(policy).plan_runs(late(1))
    assert (span.scheduled_at, span.missed_before, span.missed_from) == (NOON, 0, None)
    assert span.missed is (policy is MisfirePolicy.SKIP)


def test_run_all_runs_the_oldest_first_and_records_the_rest_as_missed() -> None:
    assert misfire(MisfirePolicy.RUN_ALL).plan_runs(late(6)) == [
        *map(PlannedRun, minutes(3)),
        PlannedRun(NOON + 5 * MINUTE, missed=True, missed_before=2, missed_from=NOON + 3 * MINUTE),
    ]


@pytest.mark.parametrize("count", [2, 3])
def test_run_all_runs_a_backlog_up_to_the_catchup_limit(count: int) -> None:
    assert misfire(MisfirePolicy.RUN_ALL).plan_runs(late(count)) == list(
        map(PlannedRun, minutes(count))
    )


def test_run_all_misses_only_the_occurrence_beyond_the_limit() -> None:
    assert misfire(MisfirePolicy.RUN_ALL).plan_runs(late(4))[3:] == [
        PlannedRun(NOON + 3 * MINUTE, missed=True)
    ]


def test_backlog_too_large_to_count_is_settled_with_its_minimum_size() -> None:
    """With too many late occurrences to count, the newest one and the minimum number are known."""
    known = LateOccurrences(minutes(4), NOON + 1000 * MINUTE, 5)
    assert misfire(MisfirePolicy.RUN_ALL).plan_runs(known)[3:] == [
        PlannedRun(
            NOON + 1000 * MINUTE, missed=True, missed_before=1, missed_from=NOON + 3 * MINUTE
        )
    ]
    assert misfire(MisfirePolicy.RUN_LATEST).plan_runs(known) == [
        PlannedRun(NOON + 1000 * MINUTE, missed_before=4, missed_from=NOON)
    ]


@pytest.mark.parametrize(
    ("policy", "newer_due", "ahead", "starts"),
    [
        (MisfirePolicy.SKIP, False, 0, False),
        (MisfirePolicy.RUN_LATEST, True, 0, False),
        (MisfirePolicy.RUN_LATEST, False, 99, True),
        (MisfirePolicy.RUN_ALL, True, 2, True),
        (MisfirePolicy.RUN_ALL, True, 3, False),
    ],
)
def test_late_run_at_a_worker_follows_the_misfire_policy(
    policy: MisfirePolicy, newer_due: bool, ahead: int, starts: bool
) -> None:
    assert misfire(policy).should_start(newer_due=newer_due, ahead_in_backlog=ahead) is starts
