"""Test which node leads which shards on a job's page, a node's page and the dashboard."""

import re
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils.html import strip_tags
from pytest_django import Settings

from django_dcron import control
from django_dcron.diagnosis import cluster
from django_dcron.models import Cursor, Job, Node
from tests.admin.conftest import StaffWith, job_url, make_job, section_url
from tests.factories import make_node

pytestmark = pytest.mark.django_db

HOUR = timedelta(hours=1)


@pytest.fixture(autouse=True)
def long_lease(settings: Settings) -> None:
    """Keep the nodes of a test alive on a slow machine."""
    settings.DCRON_LEASE = timedelta(minutes=10)


def node_url(name: str) -> str:
    return reverse("admin:django_dcron_node_change", args=[f"{name}-1"])


def field_text(html: str, field: str) -> str:
    """Return the text of one fact, with its label."""
    row = html.partition(f'data-dcron-fact="{field}"')[2].partition("</dl>")[0]
    return " ".join(strip_tags(f"<p {row}".partition("</dd>")[0].replace("<", " <")).split())


def status_url(job: Job) -> str:
    return reverse("admin:django_dcron_job_status", args=[job.pk])


@pytest.fixture
def job() -> Job:
    return make_job()


# --- job page -------------------------------------------------------------------------------------


def test_job_page_links_node_that_leads_its_shard(admin_client: Client, job: Job) -> None:
    for name in "abc":
        make_node(name)
    make_node("dead", age=HOUR)
    make_node("other", namespace="elsewhere")
    assigned = cluster.assigned_shards(cluster.nodes())
    (leader,) = (node for node in "abc" if job.pk % 64 in assigned[f"{node}-1"])

    page = admin_client.get(job_url(job)).content.decode()

    assert f'<a href="{node_url(leader)}">{leader}</a>' in page
    assert [name for name in ("a", "b", "c", "dead", "other") if node_url(name) in page] == [leader]
    assert re.search(rf'<span title="\D*{job.pk % 64}\D+64"><a href="{node_url(leader)}">', page)


def test_job_page_shows_notice_if_no_live_node_serves_it(admin_client: Client, job: Job) -> None:
    make_node("dead", age=HOUR)
    make_node("other", namespace="elsewhere")

    response = admin_client.get(status_url(job))
    assert response.context["status"].leaders == []
    assert "data-dcron-no-scheduler" in response.content.decode()


@pytest.mark.parametrize(
    ("values", "note", "numbers"),
    [
        ({"shards": 63}, "shards", ["63", "64"]),
        ({"degraded": True, "shards": 63}, "degraded", []),
        ({"ticked_at": None}, "stalled", []),
    ],
)
def test_job_page_shows_problem_of_leading_node(
    admin_client: Client, job: Job, values: dict[str, Any], note: str, numbers: list[str]
) -> None:
    def notes() -> dict[str, str]:
        page = admin_client.get(status_url(job)).content.decode()
        return dict(re.findall('data-dcron-scheduler-note="([a-z]+)">([^<]+)<', page))

    make_node("a")
    assert notes() == {}
    Node.objects.update(**values)

    assert list(notes()) == [note]
    assert re.findall(r"\d+", notes()[note]) == numbers


def test_job_page_names_leader_for_each_shard_count(admin_client: Client, job: Job) -> None:
    make_node("a")
    make_node("b", namespace="default", shards=8, shard_count=8)

    page = admin_client.get(status_url(job)).content.decode()

    found = re.findall(r'<span title="\D*(\d+)\D+(\d+)"><a href="([^"]+)">', page)
    assert found == [
        (str(job.pk % 64), "64", node_url("a")),
        (str(job.pk % 8), "8", node_url("b")),
    ]


def test_quarantined_or_paused_job_is_not_shown_as_claimed(admin_client: Client, job: Job) -> None:
    def is_claimed() -> bool:
        response = admin_client.get(status_url(job))
        shown: bool = response.context["status"].is_claimed
        assert ("data-dcron-not-scheduled" in response.content.decode()) == (not shown)
        return shown

    make_node("a")
    assert is_claimed()
    Cursor.objects.update(problem="no such zone")
    assert not is_claimed()
    Cursor.objects.update(problem="")
    control.pause(job)
    assert not is_claimed()


def test_job_page_hides_nodes_without_view_node_permission(staff_with: StaffWith, job: Job) -> None:
    make_node("node-of-mine")

    client = staff_with("view_job", "view_run", "change_job", "view_dashboard")
    shown = client.get(job_url(job)).content.decode()

    assert "node-of-mine" not in shown
    assert "data-dcron-scheduler" not in shown
    permitted = staff_with("view_job", "view_node").get(status_url(job)).content.decode()
    assert "data-dcron-scheduler" in permitted
    assert "node-of-mine" in permitted
    assert client.get(node_url("node-of-mine")).status_code == 403


# --- node page ------------------------------------------------------------------------------------


def test_node_page_lists_its_shards(admin_client: Client) -> None:
    make_node("a")
    make_node("dead", age=HOUR)

    def shards_of(name: str) -> str:
        page = field_text(
            admin_client.get(node_url(name)).content.decode(), "assigned_shards_column"
        )
        return page.partition(" shards ")[2].strip()

    led = shards_of("a")
    assert led.startswith("0\N{EN DASH}63 64 of 64 ")
    assert shards_of("dead") == ""
    Node.objects.update(degraded=True)
    degraded = shards_of("a")
    assert degraded.startswith("0\N{EN DASH}63 64 of 64 ")
    assert degraded != led


def test_node_page_folds_long_shard_list(admin_client: Client) -> None:
    for name in "abc":
        make_node(name, shard_count=1024)
    ranges = cluster.shard_ranges(cluster.assigned_shards(cluster.nodes())["b-1"])

    page = admin_client.get(node_url("b")).content.decode()

    folded, unfolded = (
        page.split("<details><summary>")[1].split("</details>")[0].split("</summary>")
    )
    assert unfolded == ", ".join(ranges)
    assert folded == ", ".join([*ranges[:40], "\N{HORIZONTAL ELLIPSIS}"])


def test_node_page_needs_constant_number_of_queries(admin_client: Client) -> None:
    def queries() -> int:
        with CaptureQueriesContext(connection) as captured:
            admin_client.get(node_url("a"))
        return len(captured)

    make_node("a")
    queries()
    few = queries()
    for number in range(30):
        make_node(f"node-{number}")

    assert queries() == few


# --- dashboard ------------------------------------------------------------------------------------


def test_dashboard_shows_shards_of_each_node(admin_client: Client, job: Job) -> None:
    for name in "abc":
        make_node(name)
    make_node("dead", age=HOUR)
    assigned = cluster.assigned_shards(cluster.nodes())
    Node.objects.filter(name="a").update(shards=len(assigned["a-1"]))
    Node.objects.filter(name="b").update(shards=1)

    response = admin_client.get(section_url("cluster"))

    rows = {row.node.name: row for row in response.context["rows"]}
    for name in "abc":
        ranges = cluster.shard_ranges(assigned[f"{name}-1"])
        assert len(ranges) > 6
        assert rows[name].ranges == ", ".join([*ranges[:6], "\N{HORIZONTAL ELLIPSIS}"])
        assert f'title="{", ".join(ranges)}"' in response.content.decode()
    shown = " ".join(strip_tags(response.content.decode()).split())
    assert f"{len(assigned['a-1'])} of 64 {rows['a'].ranges}" in shown
    ranges = re.escape(rows["b"].ranges)
    assert re.search(rf" 1 of 64 {len(assigned['b-1'])}\D+: {ranges}", shown)
    assert rows["dead"].ranges == ""
