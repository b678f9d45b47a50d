"""Test that the doctor reports a backfill only if no node releases its runs."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db.models import F

from django_dcron import control
from django_dcron.db.now import database_now
from django_dcron.diagnosis.doctor.findings import Code
from django_dcron.diagnosis.overdue import takeover_time
from django_dcron.models import Cursor, Job, Run, Statistics
from django_dcron.models.job_states import EXHAUSTED
from django_dcron.policies.slots import NO_SLOT, Slot
from django_dcron.scheduler.backfill_release import release
from tests.diagnosis.conftest import HOUR, MINUTE, System
from tests.factories import make_run

DAY = timedelta(days=1)


def make_backfill(system: System, *, waited: timedelta = MINUTE) -> None:
    """Create a backfill of three occurrences, ``waited`` ago. No other run has finished since."""
    start = system.latest - 2 * DAY
    assert len(control.backfill(system.job, start, start + 3 * MINUTE).occurrences) == 3
    Run.objects.filter(trigger="backfill").update(claimed_at=database_now("default") - waited)
    Statistics.objects.update(last_finished_at=database_now("default") - HOUR)


def test_new_backfill_causes_no_finding(system: System) -> None:
    make_backfill(system, waited=takeover_time() / 2)
    assert system.codes() == set()


def test_backfill_without_progress_is_reported(system: System) -> None:
    make_backfill(system)
    findings = system.examine().findings
    assert findings.counts == {Code.RUN_LEFT_WAITING: 3}
    assert "no other run of the job is in progress" in findings.listed[0].message
    Job.objects.update(enabled=False, pause_reason=EXHAUSTED)
    assert Code.RUN_LEFT_WAITING in system.codes()


@pytest.mark.parametrize(
    "keep_waiting",
    [
        lambda s: release(range(64), database_now("default")),
        lambda s: make_run(s.job, "running", slot=Slot.RUNNING),
        lambda s: Statistics.objects.update(last_finished_at=database_now("default")),
        lambda s: (control.pause(s.job), Cursor.objects.update(placed_at=F("placed_at") - DAY)),
        lambda s: control.resume(control.pause(s.job)),
    ],
)
def test_backfill_that_waits_for_other_runs_causes_no_finding(
    system: System, keep_waiting: Callable[[System], Any]
) -> None:
    make_backfill(system)
    keep_waiting(system)
    assert system.codes() == set()


def test_backfill_before_pruned_history_causes_no_finding(system: System) -> None:
    Cursor.objects.update(placed_at=system.latest - HOUR)
    Statistics.objects.update(succeeded=60)
    assert system.codes() == set(), "pruned"
    control.backfill(
        system.job, system.latest - 40 * MINUTE, system.latest - 38 * MINUTE, over_pruned=True
    )
    backfilled = Run.objects.filter(trigger="backfill")
    ended = {
        "state": "cancelled",
        "reason": "not needed",
        "finished_at": F("claimed_at"),
        **NO_SLOT,
    }
    assert backfilled.update(**ended) == 2
    Statistics.objects.update(cancelled=2)
    assert system.codes() == set(), "still pruned"
