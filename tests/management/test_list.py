"""Test ``dcron list``, and the selection of jobs that other subcommands share."""

from datetime import UTC, datetime, timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from pytest_django import Settings

from django_dcron import control
from django_dcron.db.now import database_now
from django_dcron.diagnosis import system_health
from django_dcron.diagnosis.system_health import read_verdict
from django_dcron.jobs.representation import summary_of
from django_dcron.management.dcron import list as list_command
from django_dcron.management.dcron.job_selection import schedule_with_zone
from django_dcron.models import Cursor, Job, Node, Run
from django_dcron.models.statistics import count_ended_runs
from django_dcron.policies.health.problems import Problem
from django_dcron.policies.lifecycle import State
from tests.factories import make_idle_job, make_job, make_node, make_run
from tests.management.calling import call, table

pytestmark = pytest.mark.django_db


def names(*options: str) -> list[str]:
    answer = call("list", "--json", *options)
    assert answer.code == 0
    return [job["name"] for job in answer.json["jobs"]]


def test_list_prints_one_line_per_job() -> None:
    report = make_job(name="report", schedule="30 3 * * *", timezone="Europe/Berlin")
    count_ended_runs([report.pk], State.FAILED)
    control.pause(make_idle_job(name="import", namespace="shop"), "stocktaking")
    code, out, _err = call("list")
    head, first, second = table(out)
    assert code == 0
    assert head == ["Job", "Schedule", "Next (UTC)", "Last", "State"]
    assert first[0] == "report"
    assert first[1] == "30 3 * * * (Europe/Berlin)"
    assert first[-1] == "enabled"
    assert "failed" in out
    assert second == ["shop/import", "0 0 1 1 *", "-", "-", "paused: stocktaking"]


def test_list_shows_the_beginning_of_a_long_pause_reason() -> None:
    control.pause(make_idle_job(name="import"), "stocktaking\n" * 20)
    _head, row = table(call("list").out)
    assert row[-1].startswith("paused: stocktaking stocktaking")
    assert row[-1].endswith("…")
    assert len(row[-1]) < 80


@pytest.mark.parametrize(
    ("schedule", "shown"),
    [
        ("CRON_TZ=UTC 0 9 * * *", "CRON_TZ=UTC 0 9 * * *"),
        ("0 9 * * *\nTZ=UTC 0 8 * * *", "0 9 * * *; TZ=UTC 0 8 * * * (Asia/Tokyo)"),
        ("TZ=UTC 0 8 * * *\n0 9 * * *", "TZ=UTC 0 8 * * *; 0 9 * * * (Asia/Tokyo)"),
        ("TZ=UTC 0 8 * * *\n\n  CRON_TZ=UTC 0 9 * * *", "TZ=UTC 0 8 * * *; CRON_TZ=UTC 0 9 * * *"),
    ],
)
def test_zone_is_shown_unless_every_line_names_one(schedule: str, shown: str) -> None:
    assert schedule_with_zone(Job(schedule=schedule, timezone="Asia/Tokyo")) == shown


@pytest.mark.parametrize(
    ("schedule", "has_effect"),
    [
        ("@every 5m", False),
        ("@Every  1h", False),
        ("@never", False),
        ("@at 2026-12-01T09:00+02:00", False),
        ("@at 2026-12-01 09:00:30z\nTZ=UTC 0 8 * * *", False),
        ("@at 2026-12-01T09:00", True),
        ("@at 2026-12-01 09:00", True),
        ("@at 2026-12-01T09:00Z\n0 8 * * *", True),
        ("@daily", True),
    ],
)
def test_zone_without_effect_is_not_shown(schedule: str, has_effect: bool) -> None:
    job = Job(schedule=schedule, timezone="Asia/Tokyo")
    assert schedule_with_zone(job).endswith(" (Asia/Tokyo)") == has_effect
    job.calendar_id = "closed"
    assert schedule_with_zone(job).endswith(" (Asia/Tokyo)"), "dates of calendars are local"


def test_shadow_is_marked() -> None:
    make_idle_job(name="shadow", target="shadow:tests.app.tasks.ok")
    assert table(call("list").out)[1][-1] == "enabled, shadow"


def test_next_run_is_shown_in_site_time_zone(settings: Settings) -> None:
    settings.TIME_ZONE = "Asia/Tokyo"
    make_job(schedule="0 12 * * *", timezone="UTC")
    out = call("list").out
    assert "Next (Asia/Tokyo)" in out
    assert " 21:00:00+09:00 " in out


def test_empty_list_distinguishes_no_jobs_from_no_match() -> None:
    assert call("list").out == "There are no jobs yet.\n"
    make_idle_job()
    assert call("list", "--search", "nobody").out == "No jobs match.\n"


def test_json_contains_definition_and_status() -> None:
    job = make_idle_job(name="report", tags=["billing"])
    count_ended_runs([job.pk], State.FAILED)
    document = call("list", "--json").json
    (row,) = document["jobs"]
    assert (document["version"], document["more"]) == (1, 0)
    assert document["at"].endswith("Z")
    status = row.pop("status")
    assert row == summary_of(Job.objects.get())
    assert "args" not in row
    assert status.pop("next_at").endswith("-01-01T00:00:00Z")
    assert status.pop("last_finished_at").endswith("Z")
    assert status == {
        "state": "enabled",
        "problem": "",
        "last_state": "failed",
        "consecutive_failures": 1,
    }


def test_list_is_filtered_by_namespace_tag_and_text() -> None:
    make_idle_job(name="a", tags=["x", "y"])
    make_idle_job(name="b", tags=["x"], description="Sends INVOICES.")
    make_idle_job(name="c", namespace="shop")
    assert names() == ["a", "b", "c"]
    assert names("--namespace", "shop") == ["c"]
    assert names("--tag", "x") == ["a", "b"]
    assert names("--tag", "x", "--tag", "y") == ["a"]
    assert names("--search", "invoice") == ["b"]
    assert names("--search", "tasks.ok", "--namespace", "default", "--tag", "y") == ["a"]


def test_list_is_filtered_by_source() -> None:
    make_idle_job(name="a", declared={"schedule": "@daily"})
    make_idle_job(name="b")
    make_idle_job(name="c", import_source="redbeat", import_key="c")
    make_idle_job(name="d", import_source="crontab /etc/crontab", import_key="d")
    make_idle_job(name="e", import_source="crontabs", import_key="e")
    assert names("--source", "code") == ["a"]
    assert names("--source", "admin") == ["b"]
    assert names("--source", "redbeat") == ["c"]
    assert names("--source", "crontab") == names("--source", "crontab /etc/crontab") == ["d"]
    assert names("--source", "nothing") == []


@pytest.mark.usefixtures("routes")
def test_list_is_filtered_by_queue_of_the_runs() -> None:
    make_idle_job(name="a", target="tests.app.tasks.slow", queue="reports")
    make_idle_job(name="b", target="tests.app.tasks.echo")
    make_idle_job(name="c", target="shadow:tests.app.tasks.echo")
    make_idle_job(name="d", target="tests.app.tasks.echo", queue="mail")
    make_idle_job(name="e")
    assert names("--queue", "reports") == ["a", "b", "c"]
    assert names("--queue", "mail") == ["d"]
    assert names("--queue", "celery") == ["e"]
    assert names("--queue", "report") == []
    assert names("--queue", "reports", "--search", "slow") == ["a"]


def test_without_queues_only_jobs_that_name_one_are_listed(settings: Settings) -> None:
    settings.DCRON_DISPATCHER = "thread"
    make_idle_job(name="a", queue="reports")
    make_idle_job(name="b")
    assert names("--queue", "reports") == ["a"]
    assert names("--queue", "celery") == []


def test_list_is_filtered_by_state() -> None:
    failing, running = make_idle_job(name="failing"), make_idle_job(name="running")
    count_ended_runs([failing.pk], State.FAILED)
    make_run(running, "running")
    control.pause(make_idle_job(name="paused"), "stocktaking")
    Cursor.objects.filter(pk=make_idle_job(name="unreadable").pk).update(problem="schedule: no")
    make_idle_job(name="fine")
    assert names("--failing") == names("--state", "failing") == ["failing"]
    assert names("--state", "running") == ["running"]
    assert names("--paused") == ["paused"]
    assert names("--state", "quarantined") == ["unreadable"]
    assert names("--enabled") == ["failing", "fine", "running"]
    assert "quarantined" in call("list").out
    count_ended_runs([failing.pk], State.SUCCEEDED)
    assert names("--failing") == []


def test_limit_is_applied_and_reported() -> None:
    for name in "abc":
        make_idle_job(name=name)
    assert names("--limit", "2") == ["a", "b"]
    assert call("list", "--limit", "2", "--json").json["more"] == 1
    assert "and 1 more. Use --limit 3" in call("list", "--limit", "2").out


def test_jobs_are_listed_by_their_next_run() -> None:
    make_job(name="late", schedule="@at 2087-06-07T12:34:56")
    make_job(name="claimed", schedule="@at 2083-06-07T12:34:56\n@at 2089-01-01T00:00:00")
    Cursor.objects.filter(job__name="claimed").update(next_at=datetime(2089, 1, 1, tzinfo=UTC))
    make_job(name="early", schedule="@at 2084-06-07T12:34:56")
    control.pause(make_job(name="away", schedule="@at 2082-06-07T12:34:56"), "stocktaking")
    assert names("--sort", "next") == ["claimed", "early", "late", "away"]
    assert names("--sort", "next", "--limit", "2") == ["claimed", "early"]
    assert "and 1 more." in call("list", "--sort", "next", "--limit", "3").out
    assert names("--sort", "name") == names() == ["away", "claimed", "early", "late"]


def test_end_of_a_pause_is_shown() -> None:
    job = make_idle_job(name="import")
    control.pause(job, "stocktaking", until=datetime(2089, 1, 1, tzinfo=UTC))
    _head, row = table(call("list").out)
    assert row[-1] == "paused until 2089-01-01 00:00:00+00:00: stocktaking"


def test_list_includes_jobs_without_cursor_or_valid_schedule() -> None:
    Job.objects.create(name="new", target="tests.app.tasks.ok", schedule="@daily")
    Job.objects.filter(pk=make_idle_job(name="odd").pk).update(
        schedule="nonsense", timezone="Nowhere/Land"
    )
    assert names() == ["new", "odd"]
    assert "nonsense (Nowhere/Land)" in call("list").out


def test_number_of_queries_is_constant() -> None:
    def number_of_queries() -> int:
        with CaptureQueriesContext(connection) as queries:
            call("list", "--state", "enabled")
        return len(queries)

    make_idle_job()
    few = number_of_queries()
    for _ in range(5):
        make_run(make_idle_job(), "succeeded")
    # The time, the freezes, the jobs and the nodes; and three statements for the limit for locks.
    assert number_of_queries() == few <= 7


def test_list_names_the_most_urgent_error_of_the_health_verdict(
    capsys: pytest.CaptureFixture[str],
) -> None:
    make_node()
    late = database_now("default") - timedelta(hours=1)
    run = make_run(make_idle_job(), "pending", scheduled_at=late, due_at=late)
    call("list")
    error = str(read_verdict().issues[0])
    assert error in capsys.readouterr().err
    Run.objects.filter(pk=run.pk).update(state="succeeded", finished_at=late)
    call("list")
    assert capsys.readouterr().err == ""


def test_list_names_a_service_that_a_node_can_not_use(capsys: pytest.CaptureFixture[str]) -> None:
    make_idle_job()
    node = make_node(degraded=True)
    call("list")
    assert str(read_verdict().issues[0]) in capsys.readouterr().err
    Node.objects.filter(pk=node.pk).update(broker_unreachable_since=node.heartbeat_at)
    call("list")
    broker, lock = read_verdict().issues
    assert [broker.problem, lock.problem] == [Problem.BROKER_UNREACHABLE, Problem.NODE_DEGRADED]
    assert str(broker) in capsys.readouterr().err


def test_list_says_if_no_node_is_running(capsys: pytest.CaptureFixture[str]) -> None:
    def warned() -> bool:
        call("list")
        return "No node is running" in capsys.readouterr().err

    assert not warned()
    make_idle_job()
    assert warned()
    make_node()
    assert not warned()


def test_list_names_a_read_only_database_instead_of_missing_nodes(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    make_idle_job()
    make_node(age=timedelta(minutes=5))
    for module in (system_health, list_command):
        monkeypatch.setattr(module, "refuses_writes", lambda using: True)
    call("list")
    shown = capsys.readouterr().err
    assert "read-only" in shown
    assert "No node is running" not in shown
