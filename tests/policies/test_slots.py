"""Slots, and the database constraints that enforce them."""

from datetime import UTC, datetime
from typing import Any

import pytest
from django.db import IntegrityError, transaction

from django_dcron.models import Run
from django_dcron.policies.slots import NO_SLOT, Slot, backfill_number
from tests.factories import make_idle_job, make_run

OCCURRENCES = [datetime(year, 1, 1, tzinfo=UTC) for year in (1900, 1970, 2025, 9999)]

RUNNING: dict[str, Any] = {"slot": Slot.RUNNING}
NEXT_IN_LINE: dict[str, Any] = {"slot": Slot.NEXT_IN_LINE}


def in_backfill(number: int) -> dict[str, Any]:
    return {"slot": Slot.BACKFILL, "slot_number": number}


def test_backfill_numbers_follow_the_occurrences_and_fit_into_64_bits() -> None:
    numbers = [backfill_number(at) for at in OCCURRENCES]
    assert numbers == sorted(set(numbers))
    assert -(2**63) <= numbers[0] < numbers[-1] < 2**63


@pytest.mark.django_db
@pytest.mark.parametrize("slot", [RUNNING, NEXT_IN_LINE, in_backfill(7)], ids=str)
def test_slot_has_at_most_one_run(slot: dict[str, Any]) -> None:
    job = make_idle_job()
    make_run(job, **slot)
    with pytest.raises(IntegrityError), transaction.atomic():
        make_run(job, **slot)
    assert make_run(make_idle_job(), **slot), "another job has slots of its own"


@pytest.mark.django_db
def test_slots_do_not_exclude_one_another() -> None:
    job = make_idle_job()
    for columns in (RUNNING, NEXT_IN_LINE, in_backfill(0), in_backfill(7), NO_SLOT, NO_SLOT):
        make_run(job, **columns)
    assert Run.objects.count() == 6


@pytest.mark.django_db
@pytest.mark.parametrize("slot", [Slot.RUNNING, Slot.NEXT_IN_LINE, None])
def test_only_backfill_slots_have_numbers(slot: Slot | None) -> None:
    """With another number, a second run could have the running slot."""
    with pytest.raises(IntegrityError), transaction.atomic():
        make_run(make_idle_job(), slot=slot, slot_number=7)


@pytest.mark.django_db
def test_waiting_backfilled_runs_sort_by_job_and_then_by_occurrence() -> None:
    jobs = [make_idle_job(), make_idle_job()]
    for number in (3, -1, 2):
        for job in reversed(jobs):
            make_run(job, "waiting", trigger="backfill", **in_backfill(number))
    make_run(jobs[0], **RUNNING), make_run(jobs[0], **NEXT_IN_LINE), make_run(jobs[0])
    first, second = (job.pk for job in jobs)
    waiting = Run.objects.waiting_in_backfill_from(first).values_list("job_id", "slot_number")
    assert list(waiting) == [(job_id, n) for job_id in (first, second) for n in (-1, 2, 3)]
    assert not Run.objects.waiting_in_backfill_from(second + 1).exists()
    own = Run.objects.waiting_in_backfill(first).values_list("slot_number", flat=True)
    assert list(own) == [-1, 2, 3]
