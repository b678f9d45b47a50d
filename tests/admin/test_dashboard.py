"""Test the dashboard's contents, permissions and query counts."""

import os
import re
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils.html import escape, strip_tags
from pytest_django import DjangoAssertNumQueries, Settings

from django_dcron import control
from django_dcron.admin.dashboard import failures, health, page
from django_dcron.db import session_limits
from django_dcron.db.error_remedies import END_LOCK
from django_dcron.db.now import database_now
from django_dcron.diagnosis import figures
from django_dcron.diagnosis.overdue import takeover_time
from django_dcron.jobs.pausing import AUTO_PAUSED
from django_dcron.models import Attempt, Cursor, Job, Statistics
from django_dcron.policies.health.facts import FAILURES_UNTIL_WARNING
from django_dcron.schedules.timetable import BEGIN
from django_dcron.targets.shadow import NOT_EXECUTED
from django_dcron.testing import set_clock
from tests.admin.conftest import (
    StaffWith,
    job_url,
    list_url,
    make_attempt,
    make_job,
    section_url,
)
from tests.factories import make_idle_job, make_node, make_run
from tests.lock_holder import has_usual_lock_limit, keeping_open, lock_runs

EVIL = "<script>alert(1)</script>"
ALL_PERMISSIONS = ("view_dashboard", "view_job", "view_run", "view_attempt", "view_node")
URL = "/admin/django_dcron/dashboard/"

HOUR = timedelta(hours=1)
QUERIES = {"health": 4, "tiles": 3, "timeline": 4, "failures": 4, "cluster": 1, "load": 1}
TIME = 1
"""The database's time, which all sections share."""
SESSION_AND_USER = 2

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def long_lease(settings: Settings) -> None:
    """Keep the nodes of a test alive on a slow machine."""
    settings.DCRON_LEASE = timedelta(minutes=10)


def text(response: Any) -> str:
    return " ".join(strip_tags(response.content.decode()).split())


@pytest.fixture
def job() -> Job:
    return make_job()


@pytest.mark.parametrize("name", QUERIES)
def test_section_needs_fixed_number_of_queries(
    admin_client: Client, job: Job, name: str, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    _make_one_of_each(job)
    admin_client.get(section_url("load"))  # fills the cache
    time = 0 if name == "cluster" else TIME

    with django_assert_num_queries(SESSION_AND_USER + time + QUERIES[name]):
        assert admin_client.get(section_url(name)).status_code == 200


def test_page_needs_no_more_queries_than_its_sections(
    admin_client: Client, job: Job, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    _make_one_of_each(job)
    admin_client.get(URL)
    job_exists = namespaces = freezes = 1

    with django_assert_num_queries(
        SESSION_AND_USER + TIME + job_exists + namespaces + freezes + sum(QUERIES.values())
    ):
        page = admin_client.get(URL)

    for output in ("50.0%", "Broken", "node-a"):
        assert output in text(page)
    tiles = tiles_of(admin_client)
    assert re.findall(r"\d+", tiles["jobs"].note) == ["1"]
    assert tiles["success_rate"].value == "50.0%"


def _make_one_of_each(job: Job) -> None:
    for state in ("succeeded", "failed", "missed", "skipped", "queued", "waiting"):
        make_run(job, state)
    failed = make_run(job, "failed")
    make_attempt(failed, exception_class="app.Broken", message="m", outcome="failed")
    make_run(job, "succeeded")
    make_run(job, "running")
    make_node()
    make_node("node-b", age=HOUR)


def tiles_of(client: Client) -> dict[str, Any]:
    return {tile.name: tile for tile in client.get(section_url("tiles")).context["tiles"]}


def test_tile_of_due_jobs_shows_no_time_in_the_past(admin_client: Client, job: Job) -> None:
    now = database_now("default")
    Cursor.objects.update(next_at=now + timedelta(minutes=5))
    assert "<time" in tiles_of(admin_client)["due_soon"].note
    make_run(job, "pending", due_at=now - timedelta(seconds=2))
    tile = tiles_of(admin_client)["due_soon"]
    assert (tile.value, "<time" in tile.note) == ("1", False)


def test_tile_of_due_jobs_says_that_a_job_is_overdue(admin_client: Client, job: Job) -> None:
    Cursor.objects.update(next_at=database_now("default") - timedelta(hours=1))
    tile = tiles_of(admin_client)["due_soon"]
    assert tile.value == "1"
    assert tile.note.startswith("overdue since <time")
    # As in the health line, a job isn't overdue while another node may take it over.
    Cursor.objects.update(next_at=database_now("default") - takeover_time() + timedelta(minutes=2))
    assert "overdue" not in tiles_of(admin_client)["due_soon"].note


@pytest.mark.parametrize(
    ("sample", "note"),
    [
        (9, "2 shadow runs, which execute nothing"),
        (2, "2 or more shadow runs, which execute nothing"),
    ],
)
def test_tile_of_success_rate_counts_shadow_runs_if_there_are_no_others(
    admin_client: Client, job: Job, monkeypatch: pytest.MonkeyPatch, sample: int, note: str
) -> None:
    now = database_now("default")
    tile = tiles_of(admin_client)["success_rate"]
    assert (tile.value, tile.note) == ("-", "no finished runs")
    monkeypatch.setattr(figures, "SAMPLE", sample)
    for _ in range(2):
        shadow = make_run(job, "succeeded", attempt=1, started_at=now, reason=NOT_EXECUTED)
        make_attempt(shadow, started_at=now)
    tile = tiles_of(admin_client)["success_rate"]
    assert (tile.value, tile.note) == ("-", note)
    make_run(job, "succeeded")
    tile = tiles_of(admin_client)["success_rate"]
    assert (tile.value, tile.note) == ("100.0%", "of 1 run")


def test_success_rate_does_not_look_perfect_beside_missed_occurrences(
    admin_client: Client, job: Job
) -> None:
    make_run(job, "succeeded")
    assert tiles_of(admin_client)["success_rate"].kind == "succeeded"
    make_run(job, "missed")
    tile = tiles_of(admin_client)["success_rate"]
    assert (tile.value, tile.kind) == ("100.0%", "")


def test_tile_of_missed_occurrences_says_why_there_may_be_more(
    admin_client: Client, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_run(job, "missed", missed_before=3)
    assert tiles_of(admin_client)["missed"].note == "3 counted by later runs"
    monkeypatch.setattr(figures, "SAMPLE", 1)
    make_run(job, "missed", missed_before=3)
    tile = tiles_of(admin_client)["missed"]
    assert "or more" in tile.value
    assert tile.note == "3 counted by later runs. Older runs weren't read."


def test_tile_of_due_jobs_names_the_freeze(admin_client: Client, job: Job) -> None:
    """Nothing that a freeze holds back is due "now"."""
    make_job("other", namespace="shop")
    Cursor.objects.update(next_at=database_now("default"))
    control.freeze("deploy", "shop")
    tile = tiles_of(admin_client)["due_soon"]
    assert (tile.value, tile.note) == ("2", "1 held back by a freeze")
    control.freeze("deploy")
    tile = tiles_of(admin_client)["due_soon"]
    assert (tile.value, tile.note) == ("2", "held back by a freeze")


def test_tile_links_to_list_with_same_count(admin_client: Client, job: Job) -> None:
    for state, number in {
        "running": 1,
        "failed": 2,
        "missed": 3,
        "skipped": 4,
        "succeeded": 5,
    }.items():
        for _ in range(number):
            make_run(job, state)
            make_run(job, state, due_at=database_now("default") - timedelta(days=3))
    control.pause(make_job("paused"), "")
    found = {
        name: (tile.value, admin_client.get(tile.url).context["cl"].result_count)
        for name, tile in tiles_of(admin_client).items()
        if tile.url
    }

    assert found["jobs"] == ("2", 2)
    assert found["running"] == ("2", 2)
    assert found["failed"] == ("2", 2)
    assert found["missed"] == ("3", 3)
    assert found["skipped"] == ("4", 4)
    assert found["success_rate"][0] == "71.4%"
    assert "due_soon" not in found  # no list shows exactly those jobs


def test_tiles_of_all_states_link_to_list_filtered_by_indexed_column(
    admin_client: Client, job: Job
) -> None:
    now = database_now("default")
    make_run(job, "succeeded", scheduled_at=now - timedelta(hours=1), due_at=now)
    make_run(job, "failed", scheduled_at=now - timedelta(hours=25), due_at=now)
    tiles = tiles_of(admin_client)

    for name in ("success_rate", "start_delay"):
        assert "due_at" not in tiles[name].url
        with CaptureQueriesContext(connection) as captured:
            listed = admin_client.get(tiles[name].url).context["cl"]
        assert [run.state for run in listed.result_list] == ["succeeded"]
        assert not any('"due_at" >=' in query["sql"] for query in captured)
        assert listed.filter_params == {"when": ["24h"]}  # the value that the sidebar shows


def test_capped_count_is_marked(
    admin_client: Client, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("django_dcron.diagnosis.figures.MAX_COUNTED", 2)
    for _ in range(3):
        make_run(job, "failed")

    assert re.fullmatch(r"\D+ 2", tiles_of(admin_client)["failed"].value)


def test_missed_tile_counts_occurrences_without_row(
    admin_client: Client, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_run(job, "missed", missed_before=1)
    missed = tiles_of(admin_client)["missed"]
    assert (missed.value, re.findall(r"\d+", missed.note)) == ("2", ["1"])

    monkeypatch.setattr("django_dcron.diagnosis.figures.SAMPLE", 1)
    make_run(job, "missed", missed_before=6)
    missed = tiles_of(admin_client)["missed"]
    assert re.fullmatch(r"8 \D+", missed.value)
    assert re.findall(r"\d+", missed.note) == ["6"]


def test_missed_tile_shows_sample_size(
    admin_client: Client, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("django_dcron.diagnosis.figures.SAMPLE", 2)
    now = database_now("default")
    for _ in range(3):
        make_attempt(make_run(job, "succeeded", attempt=1, started_at=now), started_at=now)

    missed = tiles_of(admin_client)["missed"]
    assert (missed.value, re.findall(r"\d+", missed.note)) == ("0", ["2"])


def test_missed_tile_counts_occurrences_merged_into_unfinished_runs(
    admin_client: Client, job: Job
) -> None:
    """Missed occurrences count even before a worker starts the run that replaces them."""
    for state, missed in {"pending": 1, "queued": 1000, "waiting": 70, "running": 8}.items():
        make_run(job, state, missed_before=missed)

    missed = tiles_of(admin_client)["missed"]
    assert (missed.value, re.findall(r"[\d,]+", missed.note)) == ("1,079", ["1,079"])


def lines(response: Any) -> list[Any]:
    found: list[Any] = response.context["health"]
    return found


def test_health_reports_quarantined_jobs(admin_client: Client, job: Job) -> None:
    make_node()
    assert [line.kind for line in lines(admin_client.get(section_url("health")))] == ["ok"]

    Cursor.objects.filter(pk=job.pk).update(problem="no such zone")
    (line,) = lines(admin_client.get(section_url("health")))

    assert line.kind == "error"
    assert job.name in line.summary
    listed = admin_client.get(line.rows.url)
    assert [row.pk for row in listed.context["cl"].result_list] == [job.pk]


def test_health_links_to_jobs_with_unknown_targets(admin_client: Client, job: Job) -> None:
    make_node()
    make_idle_job()
    Job.objects.filter(pk=job.pk).update(target="old.task")
    (line,) = lines(admin_client.get(section_url("health")))

    assert (line.kind, "old.task" in line.summary) == ("warning", True)
    assert f"web process with PID {os.getpid()}" in line.summary
    listed = admin_client.get(line.rows.url)
    assert [row.pk for row in listed.context["cl"].result_list] == [job.pk]


def test_health_links_to_failing_jobs(admin_client: Client, job: Job) -> None:
    make_node()
    make_idle_job()
    make_run(job, "failed")
    now = database_now("default")
    Cursor.objects.filter(pk=job.pk).update(next_at=now + timedelta(minutes=1))
    failures = Statistics.objects.filter(pk=job.pk)
    failures.update(failed=1, consecutive_failures=1, last_finished_at=now)

    def listed_jobs(kind: str) -> list[int]:
        (line,) = lines(admin_client.get(section_url("health")))
        assert (line.kind, job.name in line.summary) == (kind, True)
        return [row.pk for row in admin_client.get(line.rows.url).context["cl"].result_list]

    assert listed_jobs("ok") == [job.pk]
    failures.update(consecutive_failures=FAILURES_UNTIL_WARNING, last_finished_at=None)
    assert listed_jobs("warning") == [job.pk]


def linked_rows(client: Client) -> tuple[str, list[object]]:
    """Return the kind of the only health line, and the keys of the rows that it links to."""
    (line,) = lines(client.get(section_url("health")))
    listed = client.get(line.rows.url).context["cl"].result_list
    return line.kind, [row.pk for row in listed]


@pytest.mark.parametrize("second", range(0, 60, 7))
def test_health_links_to_due_runs_only(
    admin_client: Client, job: Job, settings: Settings, second: int
) -> None:
    settings.DCRON_LEASE = timedelta(seconds=6)
    now = datetime(2026, 11, 25, 12, 0, second, tzinfo=UTC)
    with set_clock(now):
        since = now - takeover_time() - timedelta(seconds=1)
        overdue = make_run(job, due_at=since, node=make_node().pk)
        make_run(job, due_at=now)
        make_run(job, due_at=now + timedelta(seconds=10), attempt=2)
        assert linked_rows(admin_client) == ("error", [overdue.pk])


def test_health_with_overdue_runs_stays_the_same_for_a_while(
    admin_client: Client, job: Job
) -> None:
    begin = BEGIN + 1_000_000 * takeover_time()

    def section(now: datetime) -> str:
        with set_clock(now):
            return admin_client.get(section_url("health")).content.decode()

    with set_clock(begin):
        node = make_node()
        make_run(job, due_at=begin - timedelta(hours=1), node=node.pk)
    assert "due_at__lt" in section(begin)
    assert section(begin) == section(begin + timedelta(seconds=20, microseconds=5))


def test_health_links_to_overdue_jobs_only(admin_client: Client, job: Job) -> None:
    make_node()
    make_job("never", schedule="@never")
    overdue, frozen = make_job("zz"), make_job("frozen", namespace="shop")
    now = database_now("default")
    Cursor.objects.filter(pk=job.pk).update(next_at=now)
    Cursor.objects.filter(pk__in=[overdue.pk, frozen.pk]).update(next_at=now - timedelta(hours=1))
    control.freeze("deploy", "shop")
    assert linked_rows(admin_client) == ("error", [overdue.pk])


def test_health_links_to_automatically_paused_jobs_only(admin_client: Client, job: Job) -> None:
    make_node()
    control.pause(make_idle_job(), "deploy")
    Job.objects.filter(pk=job.pk).update(enabled=False, pause_reason=f"{AUTO_PAUSED}3 failures")
    kind, listed = linked_rows(admin_client)
    assert listed == [job.pk]
    assert kind == "warning"


@pytest.mark.parametrize(
    ("nodes", "output", "kind"),
    [
        ([], "manage.py runcron.", "error"),
        ([{"age": HOUR}], "manage.py runcron.", "error"),
        ([{"degraded": True}], "lock server: node-a.", "warning"),
        ([{"clock_doubt": timedelta(seconds=6)}], "old time: node-a.", "warning"),
        (
            [{"broker_unreachable_since": datetime(2026, 1, 1, tzinfo=UTC)}],
            "use the broker: node-a",
            "warning",
        ),
        ([{"skew": timedelta(seconds=-90)}], "off by a second or more: node-a.", "warning"),
        ([{"ticked_at": None}], "ticks fail: node-a.", "error"),
        (
            [{}, {"name": "b", "version": "2"}],
            "different versions of django-dcron: 1, 2.",
            "warning",
        ),
        ([{"namespace": "shop"}], "no running node: default.", "error"),
        ([{}, {"name": "b", "namespace": "shop"}], "Some nodes serve all namespaces", "warning"),
        ([{"shard_count": 8}], "DCRON_SHARDS differs", "warning"),
    ],
)
def test_health_reports_node_problems_at_top(
    admin_client: Client, job: Job, nodes: list[dict[str, Any]], output: str, kind: str
) -> None:
    for values in nodes:
        make_node(**values)

    response = admin_client.get(section_url("health"))

    assert output in text(response).replace("&#x27;", "'")
    assert [(line.rows.url, line.kind) for line in lines(response)] == [(list_url("node"), kind)]
    assert text(admin_client.get(URL)).index(text(response)) < text(admin_client.get(URL)).index(
        "Jobs due in"
    )


def test_health_is_ok_if_crashed_node_is_replaced(admin_client: Client, job: Job) -> None:
    make_node()
    make_node("crashed", age=HOUR)  # other nodes lead its shards by now

    (line,) = lines(admin_client.get(section_url("health")))
    assert (line.kind, line.rows) == ("ok", None)


def test_health_reports_missing_worker_with_remedy(admin_client: Client, job: Job) -> None:
    make_node()
    past = database_now("default") - timedelta(minutes=24, seconds=30)
    make_run(job, "queued", due_at=past, queued_at=past, missed_before=1078)

    response = admin_client.get(section_url("health"))

    output = (
        "No worker has picked up a run for 24 min: 1 queued, 1,078 missed in the last 24 h. "
        "Start a Celery worker for queue celery."
    )
    assert output in text(response)
    (line,) = lines(response)
    assert admin_client.get(line.rows.url).context["cl"].result_count == 1


@pytest.mark.parametrize(
    ("of_lost", "of_other", "is_replaced"),
    [("", "", True), ("shop", "shop", True), ("shop", "", True), ("", "shop", False)],
)
def test_cluster_says_that_a_node_was_lost(
    admin_client: Client, job: Job, of_lost: str, of_other: str, is_replaced: bool
) -> None:
    make_node("lost", age=HOUR, namespace=of_lost)

    def losses() -> list[str]:
        return [row.loss for row in admin_client.get(section_url("cluster")).context["rows"]]

    (loss,) = losses()
    assert "didn't stop cleanly" in loss
    assert "<time" in loss
    assert "Other nodes" not in loss
    make_node("other", namespace=of_other)
    other, loss = losses()
    assert other == ""
    assert ("Other nodes do its work" in loss) is is_replaced


def test_cluster_shows_share_of_each_node(admin_client: Client, job: Job) -> None:
    make_node("a", shards=48, agenda=1234)
    make_node("b", shards=16, skew=timedelta(seconds=2), version="2")
    make_node("dead", age=HOUR, shards=63)

    response = admin_client.get(section_url("cluster"))

    assert [response.context[name] for name in ("live", "led", "shards")] == [2, 64, 64]
    assert [(row.node.name, row.share, row.is_live) for row in response.context["rows"]] == [
        ("a", 75, True),
        ("b", 25, True),
        ("dead", 0, False),
    ]
    assert [row.has_other_version for row in response.context["rows"]] == [False, True, False]
    states = [row.state for row in response.context["rows"]]
    assert ["dcron-cancelled" in state for state in states] == [False, False, True]


def test_shards_are_counted_per_namespace(admin_client: Client, job: Job) -> None:
    make_node("a", namespace="default")
    make_node("b", namespace="shop", shards=60)

    context = admin_client.get(section_url("cluster")).context
    assert (context["led"], context["shards"]) == (124, 128)


def test_cluster_without_nodes_shows_notice_without_remedy(admin_client: Client, job: Job) -> None:
    response = admin_client.get(section_url("cluster"))

    assert (response.context["live"], response.context["rows"]) == (0, [])
    assert "data-dcron-no-nodes" in response.content.decode()
    assert "<a " not in response.content.decode()
    make_node()
    assert "data-dcron-no-nodes" not in admin_client.get(section_url("cluster")).content.decode()


def test_failures_are_truncated_and_escaped(admin_client: Client, job: Job) -> None:
    run = make_run(job, "failed", reason="in short")
    make_attempt(
        run, exception_class="app.errors.Broken", message=f"{EVIL}{'x' * 300}\nsecond line"
    )

    page = admin_client.get(section_url("failures")).content.decode()

    assert EVIL not in page
    assert "&lt;script&gt;" in page
    assert ">Broken<" in page
    assert "second line" not in page
    assert "x" * 200 not in page
    assert reverse("admin:django_dcron_run_change", args=[run.pk]) in page


def test_failures_that_are_alike_share_a_row(admin_client: Client, job: Job) -> None:
    for number in range(3):
        make_attempt(make_run(job, "failed"), exception_class="E", message=f"no order {number}")
    make_attempt(make_run(make_job("other"), "failed"), exception_class="E", message="no order 1")

    response = admin_client.get(section_url("failures"))
    assert sorted(row.group.number for row in response.context["rows"]) == [1, 3]
    assert f"{list_url('run')}?job__id__exact={job.pk}&amp;state__exact=failed" in (
        response.content.decode()
    )


def test_number_that_links_to_failures_is_that_of_the_listed_runs(
    admin_client: Client, job: Job
) -> None:
    for message in ("no beans", "no beans", "no milk"):
        make_attempt(make_run(job, "failed"), exception_class="E", message=message)
    make_attempt(make_run(make_job("other"), "failed"), exception_class="E", message="no tea")

    page = admin_client.get(section_url("failures")).content.decode()
    links = re.findall(r'<a href="([^"]+)">(?:of )?(\d+)', page)
    assert sorted(number for _url, number in links) == ["1", "3", "3"]
    for url, number in links:
        listed = admin_client.get(url.replace("&amp;", "&")).context["cl"]
        assert listed.result_count == int(number)


def test_failures_of_a_job_are_linked_without_a_number_if_not_all_were_read(
    admin_client: Client, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failures, "FAILURES_READ", 2)
    for _ in range(3):
        make_attempt(make_run(job, "failed"), exception_class="E", message="no beans")

    page = admin_client.get(section_url("failures")).content.decode()
    links = re.findall(r'<a href="[^"]*job__id__exact[^"]*">([^<]*)', page)
    assert links == ["View failed runs of the job"]


def test_failures_of_jobs_that_succeeded_since_come_last(admin_client: Client, job: Job) -> None:
    now = database_now("default")
    jobs = {"failing": job} | {name: make_job(name) for name in ("recovered", "failed", "shadow")}
    for number, (name, each) in enumerate(jobs.items()):
        failed_at = now - timedelta(minutes=30 - number)
        run = make_run(each, "failed", due_at=failed_at, finished_at=failed_at)
        make_attempt(run, message="no more beans")
        Statistics.objects.filter(job=each).update(
            last_state="succeeded" if name in ("recovered", "shadow") else "failed",
            last_was_shadow=name == "shadow",
            last_finished_at=now,
        )
    # Its failure is later than its last success, whose count was delayed.
    Statistics.objects.filter(job=jobs["failed"]).update(
        last_state="succeeded", last_finished_at=now - timedelta(hours=1)
    )

    response = admin_client.get(section_url("failures"))
    rows = response.context["rows"]
    assert [row.failure.run.job for row in rows] == [
        jobs["shadow"],
        jobs["failed"],
        jobs["failing"],
        jobs["recovered"],
    ]
    assert [row.succeeded_at for row in rows] == [None, None, None, now]
    assert text(response).count("recovered, last success") == 1


def test_failures_section_shows_notice_if_empty(admin_client: Client, job: Job) -> None:
    make_run(job, "failed", due_at=database_now("default") - timedelta(days=2))

    response = admin_client.get(section_url("failures"))
    assert response.context["rows"] == []
    assert 'class="dcron-nothing"' in response.content.decode()
    assert "<table" not in response.content.decode()


def test_unchanged_section_returns_204(
    admin_client: Client, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = database_now("default")
    monkeypatch.setattr("django_dcron.admin.dashboard.viewer.database_now", lambda using: now)
    first = admin_client.get(section_url("failures"))
    again = section_url("failures", seen=first.context["shown"].digest)

    assert admin_client.get(again).status_code == 204
    make_run(job, "failed")
    assert admin_client.get(again).status_code == 200


def test_section_urls_carry_only_known_parameters(admin_client: Client, job: Job) -> None:
    html = admin_client.get(f"{URL}?namespace=shop&q=a%26b&other=1").content.decode()

    live = reverse("admin:django_dcron_dashboard_live")
    assert f'hx-get="{live}?namespace=shop&amp;q={quote("a&b")}"' in html
    assert "other=1" not in html


@pytest.mark.parametrize("name", ["", "live/?dcron-timeline", "live/?dcron-load"])
@pytest.mark.parametrize("parameter", ["namespace", "q"])
@pytest.mark.parametrize("value", ["\0", "re\0port\0", "x" * 60_000])
def test_hostile_filter_values_cause_no_error(
    admin_client: Client, job: Job, name: str, parameter: str, value: str
) -> None:
    query = {parameter: value} | ({name.partition("?")[2]: ""} if name else {})
    response = admin_client.get(f"{URL}{name.partition('?')[0]}", query)

    assert response.status_code == 200
    assert b"x" * 121 not in response.content


def test_first_steps_are_shown_until_first_job_exists(admin_client: Client) -> None:
    response = admin_client.get(URL)

    assert "dcron-first-steps" in response.content.decode()
    assert "manage.py runcron" in text(response)
    assert reverse("admin:django_dcron_job_add") in response.content.decode()
    assert "dcron-tile" not in response.content.decode()
    assert "HX-Refresh" not in admin_client.get(section_url("first_steps")).headers

    make_job()
    assert admin_client.get(section_url("first_steps")).headers["HX-Refresh"] == "true"
    assert "dcron-first-steps" not in admin_client.get(URL).content.decode()


def test_first_steps_link_only_permitted_pages(staff_with: StaffWith) -> None:
    make_node()

    shown = staff_with(*ALL_PERMISSIONS, "add_job").get(URL)
    assert f'href="{list_url("node")}">1 ' in shown.content.decode()
    assert reverse("admin:django_dcron_job_add") in shown.content.decode()

    shown = staff_with("view_dashboard", "view_job").get(URL)
    assert list_url("node") not in shown.content.decode()
    assert reverse("admin:django_dcron_job_add") not in shown.content.decode()


def test_dashboard_requires_login_and_view_dashboard_permission(
    client: Client, staff_with: StaffWith, job: Job
) -> None:
    without = staff_with("view_job", "view_run", "view_attempt", "view_node", "change_job")

    for url in (URL, *map(section_url, page.SECTIONS)):
        assert "/login/" in client.get(url)["Location"]
        assert without.get(url).status_code == 403


def test_pages_load_status_line_that_is_empty_without_problems(
    admin_client: Client,
    staff_with: StaffWith,
    job: Job,
    django_assert_num_queries: DjangoAssertNumQueries,
) -> None:
    url = reverse("admin:django_dcron_status_line")
    for each in (
        job_url(job),
        list_url("run"),
        reverse("admin:django_dcron_job_why", args=[job.pk]),
    ):
        attribute = f'data-dcron-status="{url}"'
        assert attribute in admin_client.get(each).content.decode()
        assert attribute not in staff_with("view_job", "view_run").get(each).content.decode()
    assert "data-dcron-status=" not in admin_client.get(URL).content.decode()

    health.clear_cache()
    down = admin_client.get(url).content.decode()
    assert "dcron-health-error" in down
    assert f'href="{URL}"' in down
    make_node()
    with django_assert_num_queries(SESSION_AND_USER):
        assert admin_client.get(url).content.decode() == down  # cached for all users
    health.clear_cache()
    assert admin_client.get(url).content == b""


def test_section_requires_permission_for_its_models(staff_with: StaffWith, job: Job) -> None:
    _make_one_of_each(job)
    client = staff_with("view_dashboard")

    seen = client.get(URL)

    assert "data-dcron-no-permission" in seen.content.decode()
    assert job.name not in text(seen)
    assert "node-a" not in text(seen)
    assert set(page.SECTIONS) == {*QUERIES, page.FIRST_STEPS}
    for name, section in page.SECTIONS.items():
        assert client.get(section_url(name)).status_code == (204 if section.shows else 200)


def test_tiles_and_names_depend_on_permissions(staff_with: StaffWith, job: Job) -> None:
    Cursor.objects.filter(pk=job.pk).update(problem="no such zone")
    make_node("secret-node", degraded=True)

    def shown(*rights: str) -> tuple[int, bool, bool, list[bool]]:
        client = staff_with("view_dashboard", *rights)
        output = text(health := client.get(section_url("health")))
        tiles = client.get(section_url("tiles")).context["tiles"]
        return (
            len(tiles),
            job.name in output,
            "secret-node" in output,
            [bool(line.rows) for line in lines(health)],
        )

    assert shown() == (0, False, False, [False, False])
    assert shown("view_job") == (2, True, False, [True, False])
    assert shown("view_run") == (6, False, False, [False, False])
    assert shown("view_node") == (0, False, True, [False, True])
    assert shown("view_job", "view_run", "view_node") == (8, True, True, [True, True])


def test_failures_hide_messages_without_view_attempt_permission(
    staff_with: StaffWith, job: Job
) -> None:
    run = make_run(job, "failed", reason="in short")
    make_attempt(run, exception_class="Broken", message="secret")

    seen = text(staff_with("view_dashboard", "view_run").get(section_url("failures")))
    assert "in short" in seen
    assert "secret" not in seen
    assert "secret" in text(staff_with(*ALL_PERMISSIONS).get(section_url("failures")))


@pytest.mark.parametrize(
    "path", ["add/", "1/", "1/change/", "1/delete/", "1/history/", "part/nonsense/"]
)
def test_other_admin_urls_of_dashboard_return_404(
    admin_client: Client, job: Job, path: str
) -> None:
    assert admin_client.get(f"{URL}{path}").status_code == 404


def test_app_list_links_dashboard_only_with_permission(staff_with: StaffWith, job: Job) -> None:
    permitted, other = staff_with(*ALL_PERMISSIONS), staff_with("view_job")

    for url in (reverse("admin:index"), reverse("admin:app_list", args=["django_dcron"])):
        assert f'<a href="{URL}">' in permitted.get(url).content.decode()
        assert URL not in other.get(url).content.decode()


def test_failures_section_stays_small_with_long_messages(admin_client: Client, job: Job) -> None:
    run = make_run(job, "failed")
    make_attempt(run, message="m" * 60_000, log="l", traceback="t")

    assert len(admin_client.get(section_url("failures")).content) < 5_000
    assert Attempt.objects.get().message == "m" * 60_000


def test_debug_mode_loads_no_script_that_replaces_the_page(
    admin_client: Client, settings: Settings
) -> None:
    """A failed refresh shows how old the page is, also while DEBUG is on."""
    settings.DEBUG = True
    html = admin_client.get(URL).content.decode()
    assert "django_htmx/htmx-2.min.js" in html
    assert "django-htmx.js" not in html


@pytest.mark.postgresql
@pytest.mark.django_db(transaction=True)
def test_page_says_that_a_table_is_locked_and_how_to_find_the_lock(
    admin_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_limits, "READ_LOCK_TIMEOUT", timedelta(milliseconds=50))
    make_idle_job()
    url = reverse("admin:django_dcron_dashboard_changelist")
    with keeping_open(lock_runs):
        locked = admin_client.get(url)
    assert locked.status_code == 503
    assert escape(END_LOCK) in locked.content.decode()
    assert has_usual_lock_limit()
    assert admin_client.get(url).status_code == 200
