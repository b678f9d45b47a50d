"""Test that the doctor reports no false findings after real pruning and still finds faults."""

from datetime import timedelta
from uuid import uuid4

import pytest
from django.db import transaction

from django_dcron import control
from django_dcron.db.now import database_now
from django_dcron.diagnosis.doctor.findings import Code
from django_dcron.diagnosis.why.explanation import explain
from django_dcron.diagnosis.why.verdicts import WhyVerdict
from django_dcron.models import Attempt, Cursor, Job, Run, Statistics
from django_dcron.runs import retention
from tests.diagnosis.conftest import MINUTE, System
from tests.factories import make_run


@pytest.fixture
def history(system: System) -> System:
    """Create an hour of history with a run each minute.

    Every seventh run failed, one was rerun, and some count missed occurrences.
    """
    job, counted = system.job, Statistics.objects.get(pk=system.job.pk)
    for back in range(5, 56):
        if 29 <= back <= 31:
            continue  # missed, and counted on the run of 28 minutes ago
        at = system.latest - back * MINUTE
        state = "failed" if back % 7 == 0 else "succeeded"
        given = {
            "scheduled_at": at,
            "due_at": at,
            "claimed_at": at,
            "started_at": at,
            "finished_at": at,
        }
        if back == 28:
            given |= {"missed_before": 3, "missed_from": at - 3 * MINUTE}
        run = make_run(job, state, **given)
        Attempt.objects.create(
            run=run,
            number=1,
            token=uuid4(),
            worker="w",
            started_at=at,
            finished_at=at,
            outcome=state,
        )
        setattr(counted, state, getattr(counted, state) + 1)
    counted.missed += 3
    counted.save()
    Cursor.objects.filter(pk=job.pk).update(placed_at=system.latest - 55.5 * MINUTE)
    assert system.codes() == set()
    return system


def prune(system: System, **keep: object) -> int:
    for name, value in keep.items():
        setattr(system.job, name, value)
    control.save(system.job)
    return sum(retention.prune_runs(system.job.pk, lambda: database_now("default")))


@pytest.mark.parametrize(
    "keep",
    [
        {"keep_for": 20 * MINUTE, "keep_failed_for": 40 * MINUTE},
        {"keep_for": 40 * MINUTE, "keep_failed_for": 40 * MINUTE},
        {"keep_runs": 4},
        {"keep_runs": 1},
        {"keep_for": 30.5 * MINUTE, "keep_runs": 35},
        {"keep_for": timedelta(seconds=1), "keep_failed_for": timedelta(seconds=1)},
    ],
)
def test_pruned_batches_cause_no_finding(
    history: System, keep: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "BATCH_SIZE", 4)
    for name, value in keep.items():
        setattr(history.job, name, value)
    control.save(history.job)
    counters = Statistics.objects.values().get()
    batches = 0
    for number in retention.prune_runs(history.job.pk, lambda: database_now("default")):
        batches += number > 0
        assert history.codes() == set()
    assert batches > 3
    assert Statistics.objects.values().get() == counters


def test_missing_occurrence_after_pruning_is_found(history: System) -> None:
    assert prune(history, keep_for=20 * MINUTE, keep_failed_for=50 * MINUTE) > 20
    assert history.codes() == set()
    Run.objects.filter(scheduled_at=history.latest - 10 * MINUTE).delete()
    assert history.codes() == {Code.OCCURRENCE_MISSING}


def test_long_run_kept_by_pruning_causes_no_finding(history: System) -> None:
    """It started before runs that have finished, and ends after them."""
    Job.objects.filter(pk=history.job.pk).update(overlap_policy="allow")
    history.job.refresh_from_db()
    at = history.latest - 40 * MINUTE
    with transaction.atomic():
        Run.objects.filter(scheduled_at=at).update(
            state="running", finished_at=None, heartbeat_at=history.latest + MINUTE
        )
        Attempt.objects.filter(run__scheduled_at=at).update(outcome="", finished_at=None)
    prune(history, keep_for=10 * MINUTE, keep_failed_for=10 * MINUTE, keep_runs=3)
    assert Run.objects.filter(scheduled_at__lt=at).count() == 0
    Run.objects.filter(scheduled_at=at).update(
        state="succeeded", finished_at=history.latest, slot=None
    )
    Attempt.objects.filter(run__scheduled_at=at).update(
        outcome="succeeded", finished_at=history.latest
    )
    assert history.codes() == set()


def test_pruned_run_is_explained_as_pruned(history: System) -> None:
    Job.objects.update(created_at=history.latest - 60 * MINUTE)
    history.job.refresh_from_db()
    prune(history, keep_runs=5)
    assert explain(history.job, history.latest - 10 * MINUTE).verdict is WhyVerdict.PRUNED
    assert explain(history.job, history.latest).verdict is not WhyVerdict.PRUNED
