"""The encoding of slots in one unique column."""

from datetime import UTC, datetime

from django_dcron.policies.slots import (
    FIRST_BACKFILL_SLOT,
    backfill_slot,
    first_backfill_slot,
    next_in_line_slot,
    running_slot,
)

OCCURRENCES = [datetime(year, 1, 1, tzinfo=UTC) for year in (1970, 2025, 2240)]
JOBS = [1, 2, 1000, 2**29 - 1]


def test_backfill_slots_sort_by_job_and_then_by_occurrence() -> None:
    slots = [backfill_slot(job_id, at) for job_id in JOBS for at in OCCURRENCES]
    assert slots == sorted(set(slots))
    for job_id in JOBS:
        for at in OCCURRENCES:
            slot = backfill_slot(job_id, at)
            assert first_backfill_slot(job_id) <= slot < first_backfill_slot(job_id + 1)


def test_slots_are_unique_and_fit_into_64_bits() -> None:
    slots = [
        slot
        for job_id in (*range(1, 100), *JOBS[2:])
        for slot in (
            running_slot(job_id),
            next_in_line_slot(job_id),
            *(backfill_slot(job_id, at) for at in OCCURRENCES),
        )
    ]
    assert len(set(slots)) == len(slots)
    assert min(slots) >= -(2**63)
    assert max(slots) < 2**63


def test_backfill_slots_are_above_all_other_slots() -> None:
    for job_id in JOBS:
        others = running_slot(job_id), next_in_line_slot(job_id)
        assert max(others) < FIRST_BACKFILL_SLOT <= backfill_slot(job_id, OCCURRENCES[0])
