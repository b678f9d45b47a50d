"""Who leads what: on a job's page, a node's page and the dashboard."""

from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils.html import strip_tags

from django_dcron import control
from django_dcron.models import Cursor, Job, Node
from django_dcron.models.database import database_now
from django_dcron.observability import cluster
from tests.admin.conftest import StaffWith, job_url, make_job

pytestmark = pytest.mark.django_db

LIVE = timedelta(minutes=10)
"""Ahead of now, so that a node lives while the test lasts."""


def make_node(name: str, lives: timedelta = LIVE, **values: Any) -> Node:
    at = database_now("default") + lives
    seen = {"started_at": at, "heartbeat_at": at, "ticked_at": at}
    known = {"host": "web-1", "pid": 7, "release": "1", "shards": 64, "shard_count": 64}
    return Node.objects.create(**{"id": f"{name}-1", "name": name, **known, **seen, **values})


def node_url(name: str) -> str:
    return reverse("admin:django_dcron_node_change", args=[f"{name}-1"])


def told(client: Client, url: str) -> str:
    return " ".join(strip_tags(client.get(url).content.decode().replace("<", " <")).split())


def standing(client: Client, job: Job) -> str:
    return told(client, reverse("admin:django_dcron_job_standing", args=[job.pk]))


@pytest.fixture
def job() -> Job:
    return make_job()


# --- a job's page -----------------------------------------------------------------------------------------------------


def test_a_job_names_the_node_that_leads_its_shard(admin_client: Client, job: Job) -> None:
    for name in "abc":
        make_node(name)
    make_node("dead", -LIVE)
    make_node("other", namespace="elsewhere")
    named = cluster.named_shards(cluster.nodes())
    (leader,) = (node for node in "abc" if job.pk % 64 in named[f"{node}-1"])

    page = admin_client.get(job_url(job)).content.decode()

    assert f'<a href="{node_url(leader)}">{leader}</a>' in page
    assert [name for name in ("a", "b", "c", "dead", "other") if node_url(name) in page] == [leader]
    assert f"Claimed by {leader} shard {job.pk % 64} of 64, by the hashing" in standing(admin_client, job)


def test_a_job_that_no_live_node_serves_says_so(admin_client: Client, job: Job) -> None:
    make_node("dead", -LIVE)
    make_node("other", namespace="elsewhere")

    assert "Claimed by nobody no live node serves it" in standing(admin_client, job)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"shards": 63}, "it holds 63 of its 64 shards so far"),
        (
            {"degraded": True, "shards": 63},
            "degraded shard {shard} of 64, by the hashing alone, without a lock",
        ),
        ({"ticked_at": None, "started_at": None}, "its ticks do not go through"),
    ],
)
def test_what_keeps_the_leader_from_it_is_said(
    admin_client: Client, job: Job, values: dict[str, Any], said: str
) -> None:
    notes = ("shards so far", "degraded", "do not go through")
    node = make_node("a")
    assert not any(note in standing(admin_client, job) for note in notes)
    if "started_at" in values:
        values = {"ticked_at": None, "started_at": node.started_at - timedelta(days=1)}
    Node.objects.update(**values)

    shown = standing(admin_client, job)

    assert said.format(shard=job.pk % 64) in shown
    assert sum(note in shown for note in notes) == 1


def test_who_serves_it_in_several_rings_is_named_for_each(admin_client: Client, job: Job) -> None:
    make_node("a")
    make_node("b", namespace="default", shards=8, shard_count=8)

    shown = standing(admin_client, job)

    assert f"a shard {job.pk % 64} of 64, by the hashing b shard {job.pk % 8} of 8, by the hashing" in shown


def test_what_is_not_scheduled_is_not_claimed(admin_client: Client, job: Job) -> None:
    make_node("a")
    assert " Claimed by a " in standing(admin_client, job)
    Cursor.objects.update(problem="no such zone")
    assert "Would be claimed by a " in standing(admin_client, job)
    Cursor.objects.update(problem="")
    control.pause(job)
    assert "Would be claimed by a " in standing(admin_client, job)


def test_who_may_not_view_nodes_sees_none(staff_with: StaffWith, job: Job) -> None:
    make_node("node-of-mine")

    client = staff_with("view_job", "view_run", "change_job", "view_dashboard")
    shown = client.get(job_url(job)).content.decode()

    assert "node-of-mine" not in shown
    assert "laimed by" not in shown
    assert "Claimed by node-of-mine" in standing(staff_with("view_job", "view_node"), job)
    assert client.get(node_url("node-of-mine")).status_code == 403


# --- a node's page ----------------------------------------------------------------------------------------------------


def test_a_node_tells_its_shards(admin_client: Client) -> None:
    make_node("a")
    make_node("dead", -LIVE)

    assert "0\N{EN DASH}63 64 of 64, by the hashing of the live nodes. It leads each of them while" in told(
        admin_client, node_url("a")
    )
    assert "Its own shards: - " in told(admin_client, node_url("dead"))
    Node.objects.update(degraded=True)
    assert "It is degraded, and leads them without locks." in told(admin_client, node_url("a"))


def test_many_shards_are_unfolded(admin_client: Client) -> None:
    for name in "abc":
        make_node(name, shard_count=1024)
    ranges = cluster.in_ranges(cluster.named_shards(cluster.nodes())["b-1"])

    page = admin_client.get(node_url("b")).content.decode()

    folded, unfolded = page.split("<details><summary>")[1].split("</details>")[0].split("</summary>")
    assert unfolded == ", ".join(ranges)
    assert folded == ", ".join([*ranges[:40], "\N{HORIZONTAL ELLIPSIS}"])


def test_a_nodes_page_asks_once_for_all_nodes(admin_client: Client) -> None:
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


# --- the dashboard ----------------------------------------------------------------------------------------------------


def test_the_dashboard_tells_the_shards_of_each_node(admin_client: Client, job: Job) -> None:
    for name in "abc":
        make_node(name)
    make_node("dead", -LIVE)
    named = cluster.named_shards(cluster.nodes())
    Node.objects.filter(name="a").update(shards=len(named["a-1"]))
    Node.objects.filter(name="b").update(shards=1)

    response = admin_client.get(reverse("admin:django_dcron_dashboard_part", args=["cluster"]))

    rows = {row.node.name: row for row in response.context["rows"]}
    for name in "abc":
        ranges = cluster.in_ranges(named[f"{name}-1"])
        assert len(ranges) > 6
        assert rows[name].ranges == ", ".join([*ranges[:6], "\N{HORIZONTAL ELLIPSIS}"])
        assert f'title="{", ".join(ranges)}"' in response.content.decode()
    shown = " ".join(strip_tags(response.content.decode()).split())
    assert f"{len(named['a-1'])} of 64 {rows['a'].ranges}" in shown
    assert f"1 of 64 its own {len(named['b-1'])}: {rows['b'].ranges}" in shown
    assert rows["dead"].ranges == ""
