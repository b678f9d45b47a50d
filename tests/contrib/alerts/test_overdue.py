"""Test the detection of late runs and silent jobs, with many of them and over a long time."""

from datetime import datetime, timedelta

import pytest
from pytest_django import DjangoAssertNumQueries, Settings

from django_dcron.conf import settings as dcron
from django_dcron.contrib.alerts import overdue, rules
from django_dcron.contrib.alerts.job_alerts import check_job_alerts
from django_dcron.contrib.alerts.outbox import RETENTION
from django_dcron.contrib.alerts.overdue import OverdueCheck
from django_dcron.db.now import database_now
from django_dcron.models import Alert, AlertCheck, Job, Run, Statistics
from tests.factories import make_idle_job, make_run

pytestmark = pytest.mark.django_db

HOUR = timedelta(hours=1)


@pytest.fixture(autouse=True)
def channel(settings: Settings) -> None:
    settings.DCRON_ALERT_CHANNELS = {"ops": {"mail": ["ops@shop.example"]}}
    settings.DCRON_ALERTS = [
        {"on": "late", "to": ["ops"], "within": "10m"},
        {"on": "silent", "to": ["ops"], "for": "1h"},
    ]


def check(overdue: OverdueCheck, now: datetime | None = None) -> None:
    overdue.check(
        range(dcron.SHARDS), "", rules.rules_of_settings(), now or database_now("default")
    )


def alert_kinds() -> list[str]:
    return list(Alert.objects.order_by("pk").values_list("kind", flat=True))


def make_silent(job: Job, span: timedelta) -> None:
    AlertCheck.objects.filter(pk=job.pk).update(success_at=database_now("default") - span)
    Job.objects.filter(pk=job.pk).update(updated_at=database_now("default") - span)


def test_invalid_job_rules_are_logged_with_the_job_name(caplog: pytest.LogCaptureFixture) -> None:
    make_idle_job(name="roast", namespace="shop")
    Job.objects.update(alerts=[{"on": "failed", "to": ["gone"]}])
    check(OverdueCheck())
    (record,) = caplog.records
    assert "shop/roast" in record.getMessage()
    assert "rule 1: " in record.getMessage()
    assert (record.__dict__["event"], record.__dict__["job"]) == ("alert_rules", "shop/roast")


def test_reported_late_runs_do_not_block_the_detection_of_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(overdue, "BATCH_SIZE", 3)
    job, long_ago = make_idle_job(), database_now("default") - HOUR
    for _ in range(3):  # due at the same instant
        make_run(job, "queued", trigger="manual", claimed_at=long_ago, due_at=long_ago)
    for number in range(5):
        make_run(
            job,
            "queued",
            trigger="manual",
            claimed_at=long_ago,
            due_at=long_ago + timedelta(seconds=number),
        )
    detector = OverdueCheck()
    for _ in range(3):
        check(detector)
    assert alert_kinds() == ["late"] * 8
    for _ in range(3):
        check(detector)
    assert alert_kinds() == ["late"] * 8


def test_reported_silent_jobs_do_not_block_the_detection_of_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(overdue, "BATCH_SIZE", 2)
    jobs = [make_idle_job() for _ in range(5)]
    detector = OverdueCheck()
    for _ in range(3):
        check(detector)
    for number, job in enumerate(jobs):
        make_silent(job, 3 * HOUR - timedelta(minutes=number))
    for _ in range(6):
        check(detector)
    assert alert_kinds() == ["silent"] * 5


@pytest.mark.parametrize("resumed", [True, False])
def test_success_that_ends_failures_and_a_silence_is_reported(
    settings: Settings, resumed: bool
) -> None:
    """The run succeeds after the check of the counters, and before the check of silent jobs."""
    settings.DCRON_ALERTS = [*settings.DCRON_ALERTS, {"on": "recovered", "to": ["ops"]}]
    job, shards = make_idle_job(), range(dcron.SHARDS)
    check(OverdueCheck())
    statistics = Statistics.objects.filter(job=job)
    statistics.update(failed=2, consecutive_failures=2)
    assert check_job_alerts(shards, "", rules.rules_of_settings(), None)
    if resumed:
        statistics.update(consecutive_failures=0)
        assert check_job_alerts(shards, "", rules.rules_of_settings(), None)
    make_silent(job, 2 * HOUR)
    statistics.update(succeeded=1, consecutive_failures=0)
    for _ in range(2):
        check(OverdueCheck())
        assert check_job_alerts(shards, "", rules.rules_of_settings(), None)
    assert alert_kinds() == ["recovered"]


def test_problem_outlasting_its_alert_is_not_reported_again() -> None:
    job, now = make_idle_job(), database_now("default")
    check(OverdueCheck())
    make_silent(job, 2 * HOUR)
    make_run(job, "waiting", trigger="manual", claimed_at=now - HOUR, due_at=now - HOUR)
    check(OverdueCheck())
    assert sorted(alert_kinds()) == ["late", "silent"]
    Alert.objects.all().delete()  # as the cleanup of old alerts would
    check(OverdueCheck(), now + RETENTION)
    assert alert_kinds() == []


def test_waiting_backfilled_runs_are_not_late() -> None:
    now = database_now("default")
    job, year = make_idle_job(), timedelta(days=365)
    make_run(
        job,
        "waiting",
        trigger="backfill",
        scheduled_at=now - year,
        due_at=now - year,
        claimed_at=now - HOUR,
    )
    released = make_run(
        job,
        "queued",
        trigger="backfill",
        scheduled_at=now - 2 * year,
        due_at=now,
        claimed_at=now - HOUR,
    )
    check(OverdueCheck())
    assert alert_kinds() == []
    Run.objects.filter(pk=released.pk).update(due_at=now - HOUR)
    check(OverdueCheck())
    assert alert_kinds() == ["late"]


def test_check_of_reported_problems_needs_few_queries(
    django_assert_max_num_queries: DjangoAssertNumQueries,
) -> None:
    now = database_now("default")
    for _ in range(20):
        make_run(make_idle_job(), "queued", trigger="manual", claimed_at=now - HOUR)
    check(OverdueCheck())
    Job.objects.update(updated_at=now - 3 * HOUR)
    AlertCheck.objects.update(success_at=now - 2 * HOUR)
    check(OverdueCheck())
    assert sorted(alert_kinds()) == ["late"] * 20 + ["silent"] * 20
    # The time; the jobs' own rules; late runs and the keys of their alerts; missing rows of
    # AlertCheck, silent jobs and the keys of their alerts.
    with django_assert_max_num_queries(7):
        check(OverdueCheck())
