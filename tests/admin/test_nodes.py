"""Test the pages of nodes: their live parts, the runs of each node and the runs of each worker."""

import re
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from django_dcron.admin.node import node_state_badge
from django_dcron.db.now import database_now
from django_dcron.diagnosis import workload
from django_dcron.diagnosis.cluster import with_read_time
from django_dcron.models import Node, Run
from tests.admin.conftest import StaffWith, list_url, make_attempt, make_job, make_run, run_url
from tests.factories import make_node

QUERIES_OF_A_PAGE = 15
SEES_ALL = ("view_node", "view_job", "view_run", "view_attempt")


def list_part_url(query: str = "") -> str:
    return f"{reverse('admin:django_dcron_node_list_part')}?{query}"


def page_urls(node: Node) -> tuple[str, str]:
    """Return the URL of the page and the URL of its live part."""
    names = ("node_change", "node_part")
    page, part = (reverse(f"admin:django_dcron_{name}", args=[node.pk]) for name in names)
    return page, part


@pytest.fixture
def node(db: None) -> Node:
    reply = {"name": "celery@web-1", "queues": ["mail"], "executes": True, "unknown_runs": []}
    at = database_now("default").isoformat()
    return make_node(workers={"at": at, "replies": [reply]})


@pytest.fixture
def running(node: Node) -> Run:
    sent = {"node": node.pk, "queued_at": node.started_at, "started_at": node.started_at}
    run = make_run(make_job("grind"), state="running", **sent)
    make_attempt(run, worker="celery@web-2/4242")
    return run


def test_state_names_the_problems_of_a_live_node(admin_client: Client, db: None) -> None:
    now = database_now("default")
    calm = make_node("calm")
    stalled = make_node("stalled", ticked_at=None)
    cut_off = make_node("cut off", degraded=True, broker_unreachable_since=now)

    def shown(node: Node) -> tuple[str, str]:
        found = node_state_badge(with_read_time(Node.objects.all()).get(pk=node.pk))
        kind, label = re.findall(r"dcron-badge dcron-(\w+)\">(.*)<", found)[0]
        return kind, label

    assert shown(calm) == ("live", "Live")
    assert shown(stalled) == ("failed", "Live, ticks fail")
    assert shown(cut_off) == ("degraded", "Live, degraded, no broker")
    page = admin_client.get(list_url("node")).content.decode()
    assert all(str(node_state_badge(node)) in page for node in with_read_time(Node.objects.all()))


def test_node_page_lists_runs_that_it_sent(admin_client: Client, running: Run) -> None:
    make_run(make_job("of another"), state="queued", node="b", queued_at=running.queued_at)
    make_run(make_job("not sent"), node=running.node)

    for url in page_urls(Node.objects.get()):
        html = admin_client.get(url).content.decode()
        assert f'href="{run_url(running)}"' in html
        assert "of another" not in html
        assert "not sent" not in html


def test_node_page_searches_latest_runs_only(
    admin_client: Client, running: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workload, "RUNS_SEARCHED", 1)
    make_run(make_job("later"), database_now("default"), node="b")

    html = admin_client.get(page_urls(Node.objects.get())[1]).content.decode()
    assert run_url(running) not in html


def test_node_list_names_workers_with_queues_and_runs(admin_client: Client, running: Run) -> None:
    for url in (list_url("node"), list_part_url()):
        html = admin_client.get(url).content.decode()
        assert "celery@web-1" in html
        assert "mail" in html
        assert f"{list_url('attempt')}?worker=celery%40web-2%2F4242" in html
        assert f'href="{run_url(running)}"' in html


NO_REPLY = "No Celery worker is responding to the nodes."


def test_node_list_keeps_the_workers_section_if_none_replies(
    admin_client: Client, staff_with: StaffWith, node: Node
) -> None:
    def shown(client: Client) -> tuple[bool, bool]:
        html = client.get(list_part_url()).content.decode()
        return "dcron-workers" in html, NO_REPLY in html

    assert shown(admin_client) == (True, False)
    now = database_now("default")
    Node.objects.update(workers={"at": now.isoformat(), "replies": []})
    assert shown(admin_client) == (True, True)
    assert shown(staff_with("view_node")) == (False, False)
    make_attempt(make_run(make_job("grind"), state="running"), worker="celery@web-2/4242")
    html = admin_client.get(list_part_url()).content.decode()
    assert NO_REPLY in html
    assert "celery@web-2" in html, "its run isn't lost yet"


@pytest.mark.parametrize("workers", [None, "outdated"])
def test_node_list_claims_nothing_about_workers_that_no_node_asked(
    admin_client: Client, node: Node, workers: str | None
) -> None:
    asked_at = database_now("default") - timedelta(minutes=10)
    replies = node.workers["replies"]
    outdated = {"at": asked_at.isoformat(), "replies": replies}
    Node.objects.update(workers=outdated if workers else None)
    assert "dcron-workers" not in admin_client.get(list_part_url()).content.decode()


def test_state_of_an_expired_node_says_what_it_means(admin_client: Client, settings: Any) -> None:
    settings.DCRON_LEASE = timedelta(seconds=90)
    node = make_node(age=timedelta(minutes=10))
    for url in (list_url("node"), *page_urls(node)):
        assert "no heartbeat for longer than 1m 30s" in admin_client.get(url).content.decode()
    Node.objects.update(heartbeat_at=database_now("default"))
    for url in (list_url("node"), *page_urls(node)):
        assert "no heartbeat" not in admin_client.get(url).content.decode()


def test_list_part_keeps_filters_and_is_sent_only_if_it_changed(
    admin_client: Client, node: Node
) -> None:
    query = "state=live&q=node&o=-1"
    page = admin_client.get(f"{list_url('node')}?{query}").content.decode()
    source = page.partition('id="dcron-nodes"')[2].partition('hx-get="')[2].partition('"')[0]
    source = source.replace("&amp;", "&")

    assert source.startswith(list_part_url(query))
    assert admin_client.get(source).status_code == 204
    Node.objects.update(shards=5)
    changed = admin_client.get(source)
    assert changed.status_code == 200
    Node.objects.update(name="renamed")
    assert "renamed" not in admin_client.get(source).content.decode()
    assert admin_client.get(list_part_url("nonsense__x=1")).headers["HX-Refresh"] == "true"


@pytest.mark.parametrize("missing", SEES_ALL)
def test_runs_and_workers_need_permissions(
    staff_with: StaffWith, running: Run, missing: str
) -> None:
    client = staff_with(*(each for each in SEES_ALL if each != missing))
    page, part = page_urls(Node.objects.get())
    answers = [client.get(url) for url in (list_part_url(), page, part)]

    if missing == "view_node":
        assert [reply.status_code for reply in answers] == [403, 403, 403]
        return
    htmls = [reply.content.decode() for reply in answers]
    assert "celery@web-2" not in htmls[0]
    shows_runs = missing == "view_attempt"
    assert [run_url(running) in html for html in htmls] == [False, shows_runs, shows_runs]


def test_number_of_queries_is_constant(admin_client: Client, running: Run) -> None:
    def count() -> list[int]:
        counts = []
        for url in (list_url("node"), list_part_url(), *page_urls(Node.objects.get(pk="node-a-1"))):
            admin_client.get(url)
            with CaptureQueriesContext(connection) as queries:
                assert admin_client.get(url).status_code == 200
            counts.append(len(queries))
        return counts

    few = count()
    for number in range(5):
        make_node(f"node {number}")
        run = make_run(
            make_job(f"job {number}"),
            state="running",
            node=running.node,
            queued_at=running.queued_at,
            started_at=running.started_at,
        )
        make_attempt(run, worker=f"w{number}")

    assert count() == few
    assert max(few) <= QUERIES_OF_A_PAGE
