"""Count the occurrences that were due during a pause."""

from datetime import timedelta

import pytest

from django_dcron import control
from django_dcron.db.now import database_now
from django_dcron.diagnosis import pause_occurrences
from django_dcron.diagnosis.pause_occurrences import PauseOccurrences, counted_pauses, without_run
from django_dcron.models import AuditEntry, Job
from django_dcron.models.job_states import HANDED_BACK
from tests.factories import age_pauses, forget_entries, make_job, make_run

pytestmark = pytest.mark.django_db


def resumed(job: Job, **paused_since: float) -> PauseOccurrences | None:
    """Resume the job as if it had been paused some time ago."""
    age_pauses(timedelta(**paused_since))
    job.refresh_from_db()
    pause = counted_pauses([job]).get(job.pk)
    return without_run(control.resume(job), pause)


def paused_job(**fields: object) -> Job:
    return control.pause(make_job(schedule="@daily", **fields), "moving")


def test_occurrences_without_a_run_are_counted() -> None:
    job = paused_job()
    midnight = database_now("default").replace(hour=0, minute=0, second=0, microsecond=0)
    make_run(job, "succeeded", scheduled_at=midnight)
    counted = resumed(job, days=3)
    assert counted is not None
    assert (counted.number, counted.may_be_more) == (2, False)


def test_count_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pause_occurrences, "MOST_COUNTED", 2)
    counted = resumed(paused_job(), days=3)
    assert counted is not None
    assert (counted.number, counted.may_be_more) == (2, True)
    assert str(counted).startswith("At least 2 ")


def test_pause_after_failures_is_counted() -> None:
    job = make_job(schedule="@daily")
    control.pause(job, "paused automatically after 3 consecutive failed runs")
    assert AuditEntry.objects.filter(action="pause", actor="").exists()
    counted = resumed(job, days=1)
    assert counted is not None
    assert counted.number == 1


def test_nothing_is_counted_without_an_occurrence_or_a_known_pause() -> None:
    assert resumed(paused_job(), seconds=0) is None
    job = paused_job()
    forget_entries()
    assert resumed(job, days=3) is None
    assert resumed(make_job(schedule="@daily"), days=3) is None


def test_nothing_is_counted_while_the_source_runs_the_occurrences() -> None:
    job = make_job(schedule="@daily", import_source="redbeat", import_key="k")
    control.pause(job, HANDED_BACK)
    assert job.awaits_handover
    assert resumed(job, days=3) is None
