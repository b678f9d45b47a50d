"""Test ``dcron show``: a job's definition, status, statistics and next runs."""

from datetime import UTC, datetime, timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils.timezone import now
from pytest_django import Settings

from django_dcron import control, targets
from django_dcron.models import Cursor, Job, Run, Statistics
from django_dcron.models.statistics import count_ended_runs
from django_dcron.policies.lifecycle import State
from django_dcron.targets import cron
from tests.factories import make_idle_job, make_run
from tests.management.calling import call

pytestmark = pytest.mark.django_db


def shown(name: str = "report") -> str:
    code, out, err = call("show", name)
    assert (code, err) == (0, "")
    return " ".join(out.split())


def test_show_prints_definition_and_statistics() -> None:
    job = make_idle_job(
        name="report",
        description="Ask Ann.",
        max_attempts=3,
        timeout=timedelta(minutes=90),
        tags=["billing"],
    )
    make_run(job, "succeeded", finished_at=now())
    count_ended_runs([job.pk], State.SUCCEEDED, 7)
    text = shown()
    for part in (
        "report Ask Ann. state enabled next run ",
        f"number {job.pk}, version 1",
        "runs 7 succeeded, 0 failed, 0 skipped, 0 missed, 0 cancelled",
        "success rate 100% of the latest 1",
        "target tests.app.tasks.ok args [] kwargs {} schedule 0 0 1 1 * timezone UTC",
        "timeout 1h30m",
        "max_attempts 3",
        'tags ["billing"]',
        "-01-01 00:00:00",
    ):
        assert part in text, part
    assert "retry_backoff" not in text, "at its default"


@pytest.mark.usefixtures("routes")
def test_show_prints_queue_and_where_it_comes_from() -> None:
    make_idle_job(name="report", target="tests.app.tasks.echo")
    make_idle_job(name="plain")
    make_idle_job(name="mail", target="tests.app.tasks.echo", queue="mail")
    assert "queue reports (from the target's route)" in shown("report")
    assert "queue celery (from the target's route)" in shown("plain")
    assert "queue mail" in shown("mail")
    assert "route)" not in shown("mail")


def test_show_says_whether_code_still_declares_the_job() -> None:
    make_idle_job(name="report", declared={"schedule": "@never"})
    assert "declared no longer" in shown()
    with targets.isolated_registry():
        cron("@never", name="report")(shown)
        assert "declared in code (@cron)" in shown()


def test_show_prints_pause_running_run_and_problem() -> None:
    job = make_idle_job(name="report")
    run = make_run(job, "running")
    control.pause(job, "stocktaking", now() + timedelta(days=1))
    text = shown()
    assert "state paused pause reason stocktaking" in text
    assert "These are its occurrences if it is resumed now." in text
    assert "paused until 2" in text
    assert f"running {run.pk} since" in text
    Job.objects.filter(pk=job.pk).update(schedule="nonsense", enabled=True)
    Cursor.objects.filter(pk=job.pk).update(problem="schedule: 'nonsense' has 1 field")
    text = shown()
    assert "state quarantined problem " in text
    assert "'nonsense'" in text


def test_show_says_how_many_runs_wait_and_since_when() -> None:
    job = make_idle_job(name="billing")
    assert "waiting" not in call("show", "billing").out
    for minutes in (9, 2):
        make_run(job, "waiting", due_at=now() - timedelta(minutes=minutes))
    make_run(job, "waiting", due_at=now() + timedelta(hours=1))
    assert "2 runs for earlier runs; the oldest was due at " in call("show", "billing").out


def test_show_counts_the_runs_of_a_shadow() -> None:
    job = make_idle_job(name="report")
    Statistics.objects.filter(pk=job.pk).delete()
    Statistics.objects.create(job=job, succeeded=5, shadow_runs=3, last_state="succeeded")
    assert "runs 2 succeeded" in shown()
    assert "3 as a shadow (the target wasn't called)" in shown()


def test_all_times_are_in_the_zone_of_the_site(settings: Settings) -> None:
    settings.TIME_ZONE = "Asia/Kolkata"
    make_idle_job(name="report", ends_at=datetime(2090, 1, 1, 12, tzinfo=UTC))
    assert "ends_at 2090-01-01 17:30:00 IST" in shown()


def test_show_names_an_unknown_target_and_arguments_that_the_target_does_not_accept() -> None:
    make_idle_job(name="report")
    assert "Runs fail" not in shown()
    assert call("show", "report", "--json").json["arguments_rejected"] == ""
    Job.objects.update(kwargs={"renamed": 1})
    assert "Runs fail: kwargs: Unknown parameter 'renamed'" in shown()
    assert "'renamed'" in call("show", "report", "--json").json["arguments_rejected"]
    Job.objects.update(target="nobody.has.this")
    assert "Runs fail: Unknown target 'nobody.has.this'" in shown()
    Job.objects.update(enabled=False)
    assert "Runs fail" not in shown()


def test_json_contains_definition_and_occurrences() -> None:
    job = make_idle_job(name="report", timeout=timedelta(seconds=90))
    document = call("show", "report", "-n", "2", "--json").json
    assert list(document) == [
        "version",
        "at",
        "job",
        "followed_by",
        "running",
        "arguments_rejected",
        "statistics",
        "success_percent_of_latest",
        "words",
        "occurrences",
        "cautions",
    ]
    assert document["job"]["id"] == job.pk
    assert document["job"]["version"] == 1
    assert document["job"]["timeout"] == "1m30s"
    assert len(document["occurrences"]) == 2
    assert document["statistics"]["succeeded"] == 0


def test_number_of_queries_is_constant() -> None:
    job = make_idle_job(name="report")

    def number_of_queries() -> int:
        with CaptureQueriesContext(connection) as queries:
            shown()
        return len(queries)

    few = number_of_queries()
    for _ in range(20):
        make_run(job, "succeeded", finished_at=now())
    assert Run.objects.count() == 20
    assert number_of_queries() == few <= 12


def test_show_rejects_unknown_job() -> None:
    assert call("show", "nobody")[:2] == (2, "")
