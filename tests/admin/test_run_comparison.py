"""Test that a run's page compares it with the job's earlier successful runs."""

from datetime import datetime, timedelta
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from django_dcron import control
from django_dcron.admin.runs import comparison, page
from django_dcron.jobs.definitions import definition_id, store_definitions
from django_dcron.models import Attempt, Job, Run
from django_dcron.targets.shadow import NOT_EXECUTED
from tests.admin.conftest import NOON, StaffWith, make_attempt, make_job, make_run, run_url

SECOND, MINUTE, HOUR = timedelta(seconds=1), timedelta(minutes=1), timedelta(hours=1)

pytestmark = pytest.mark.django_db


@pytest.fixture
def job() -> Job:
    return make_job()


@pytest.fixture(autouse=True)
def _at_noon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "database_now", lambda using: NOON)


def succeeded(job: Job, at: datetime, seconds: int, **values: object) -> Run:
    times = {"started_at": at, "finished_at": at + seconds * SECOND}
    return make_run(job, at, state="succeeded", **times, **values)


def running(job: Job, elapsed: timedelta) -> Run:
    at = NOON - elapsed
    run = make_run(job, at, state="running", started_at=at, heartbeat_at=NOON)
    make_attempt(run)
    return run


def expected(client: Client, run: Run) -> str:
    found = [str(text) for text in client.get(run_url(run)).context["page"].sentences]
    return " ".join(text for text in found if "95 s" in text or "1m 35s" in text)


def test_running_run_shows_when_it_should_end(admin_client: Client, job: Job) -> None:
    for number, seconds in enumerate((90, 95, 400), start=1):
        succeeded(job, NOON - number * HOUR, seconds)

    soon = expected(admin_client, running(job, 10 * SECOND))
    assert "12:01:25" in soon

    Run.objects.filter(state="running").delete()
    late = expected(admin_client, running(job, 10 * MINUTE))
    assert late
    assert "<time" not in late


def test_too_few_successes_are_no_history(admin_client: Client, job: Job) -> None:
    for number in range(1, comparison.USUAL_DURATION_MIN_RUNS):
        succeeded(job, NOON - number * HOUR, 95)
    make_run(job, NOON - 9 * HOUR, state="failed", started_at=NOON, finished_at=NOON + 95 * SECOND)

    assert expected(admin_client, running(job, SECOND)) == ""


def test_runs_of_a_shadow_are_no_history(admin_client: Client, job: Job) -> None:
    for number in range(1, comparison.USUAL_DURATION_MIN_RUNS + 1):
        succeeded(job, NOON - number * HOUR, 95, reason=NOT_EXECUTED)

    run = running(job, SECOND)
    assert expected(admin_client, run) == ""
    Run.objects.filter(pk=run.pk).update(state="failed", finished_at=NOON)
    assert admin_client.get(run_url(run)).context["page"].comparison is None


def test_failed_run_is_compared_with_last_success(admin_client: Client, job: Job) -> None:
    succeeded(job, NOON - 3 * HOUR, 50)
    good = succeeded(job, NOON - 2 * HOUR, 95, args=[1])
    make_attempt(good, worker="celery@web-2")
    bad = make_run(
        job, NOON - HOUR, state="failed", started_at=NOON - HOUR, finished_at=NOON - HOUR + SECOND
    )
    make_attempt(bad, outcome="failed")
    succeeded(job, NOON, 1)  # a later one

    response = admin_client.get(run_url(bad))
    found = response.context["page"].comparison

    assert found.other == good
    assert run_url(good) in response.content.decode()
    assert found.facts[0].this_run != found.facts[0].last_success  # the durations
    assert not found.facts[0].differs
    differing = [fact for fact in found.facts if fact.differs]
    pairs = [(fact.this_run, fact.last_success) for fact in differing]
    assert ("celery@web-1", "celery@web-2") in pairs
    assert any("[1]" in fact.last_success and fact.differs for fact in found.facts)
    assert admin_client.get(run_url(good)).context["page"].comparison is None


def test_comparison_shows_the_duration_that_the_page_shows(admin_client: Client, job: Job) -> None:
    """The rows of a run and of its attempt have slightly different times of the start."""
    ended = {"started_at": NOON, "finished_at": NOON + 9 * SECOND}
    failed = make_run(job, NOON, state="failed", **ended)
    good = succeeded(job, NOON - HOUR, 9)
    for run, lasted in ((good, 11), (failed, 12)):
        times = {"started_at": run.finished_at - lasted * SECOND, "finished_at": run.finished_at}
        make_attempt(run, outcome=run.state, **times)
    shown = admin_client.get(run_url(failed)).context["page"]
    durations = dict(shown.facts)["duration"], shown.comparison.facts[0].this_run
    assert durations == ("12.0 s", "12.0 s")
    assert shown.comparison.facts[0].last_success == "11.0 s"
    Run.objects.filter(pk=failed.pk).update(attempt=2)
    assert admin_client.get(run_url(failed)).context["page"].comparison.facts[0].this_run == "9.0 s"


def test_comparison_shows_release_definition_and_logs(
    admin_client: Client, staff_with: StaffWith, job: Job
) -> None:
    def ran(run: Run, release: str, **fields: Any) -> Attempt:
        for name, value in fields.items():
            setattr(job, name, value)
        control.save(job)
        store_definitions([job])
        ended = {"outcome": run.state, "log": f"log of {release}"}
        return make_attempt(run, release=release, definition_id=definition_id(job), **ended)

    ended = {"started_at": NOON, "finished_at": NOON + SECOND}
    good = ran(succeeded(job, NOON - 2 * HOUR, 95), "r1", queue="slow")
    failed = make_run(job, NOON - HOUR, state="failed", **ended)
    bad = ran(failed, "r2", queue="fast")

    facts = admin_client.get(run_url(failed)).context["page"].comparison.facts
    pairs = {fact.label: (fact.this_run, fact.last_success) for fact in facts}
    assert pairs["release"] == ("r2", "r1")
    assert pairs["Queue"] == ("fast", "slow")
    logs = [f"/attempt/{attempt.pk}/text/log/" for attempt in (bad, good)]
    assert all(url in link for url, link in zip(logs, pairs["log"], strict=True))

    html = staff_with("view_run", "view_attempt").get(run_url(failed)).content.decode()
    assert "slow" not in html  # a field of the job
    assert "r1" in html


def test_comparison_shows_workers_only_with_permission(staff_with: StaffWith, job: Job) -> None:
    make_attempt(succeeded(job, NOON - 2 * HOUR, 95), worker="celery@secret")
    bad = make_run(
        job, NOON - HOUR, state="failed", started_at=NOON - HOUR, finished_at=NOON - HOUR + SECOND
    )
    make_attempt(bad, outcome="failed")

    html = staff_with("view_run", "view_job").get(run_url(bad)).content.decode()
    assert "dcron-comparison" in html
    assert "celery@" not in html


def test_long_history_needs_no_more_queries(admin_client: Client, job: Job) -> None:
    def queries(run: Run) -> int:
        admin_client.get(run_url(run))
        with CaptureQueriesContext(connection) as captured:
            admin_client.get(run_url(run))
        return len(captured)

    succeeded(job, NOON - 500 * HOUR, 95)
    bad = make_run(job, NOON, state="failed", started_at=NOON, finished_at=NOON + SECOND)
    few = queries(bad)
    for number in range(1, 40):
        succeeded(job, NOON - number * HOUR, 95)
    assert queries(bad) == few
