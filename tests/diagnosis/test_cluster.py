"""Test that the shard leaders computed from the nodes' rows match those of real nodes."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pytest_django import DjangoAssertNumQueries, Settings

from django_dcron.db.clock import ClusterClock
from django_dcron.db.now import database_now
from django_dcron.diagnosis import cluster
from django_dcron.locks import get_lock
from django_dcron.models import Job, Node, Run
from django_dcron.scheduler.membership import Membership
from tests.factories import make_idle_job, make_run

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


def register_node(name: str, namespace: str = "") -> Membership:
    node = Membership(name, namespace, get_lock("database"), ClusterClock())
    node.register()
    return node


def beat(*nodes: Membership) -> None:
    for each in (*nodes, *nodes, *nodes):  # release, acquire, record
        each.beat(agenda=0)


def unsaved_node(name: str, age: float = 0, **values: Any) -> Node:
    """Return an unsaved node as the query returns it."""
    seen = NOON - timedelta(seconds=age)
    node = Node(
        name=name,
        **{
            "id": name,
            "shards": 64,
            "shard_count": 64,
            "started_at": seen,
            "heartbeat_at": seen,
            **values,
        },
    )
    node.database_time = NOON  # type: ignore[attr-defined]
    return node


@pytest.mark.django_db(transaction=True)
def test_computed_leaders_match_locks_of_nodes(settings: Settings) -> None:
    """Check each ring. A ring is all nodes with the same namespace and number of shards."""
    settings.DCRON_LEASE = timedelta(minutes=10)  # so that no lease expires on a slow machine
    serving = [register_node(name) for name in "abc"] + [
        register_node(name, "shop") for name in "de"
    ]
    beat(*serving)
    settings.DCRON_SHARDS = 16
    other = [register_node("f"), register_node("g")]
    beat(*other)

    nodes = cluster.nodes()
    named = cluster.assigned_shards(nodes)

    assert {node.id: sorted(node.shards) for node in (*serving, *other)} == named
    assert sum(map(len, named.values())) == 64 + 64 + 16
    for job in (make_idle_job(namespace=name) for name in ("default", "shop", "shop", "default")):
        run = make_run(job)
        leading = {
            node.id
            for node in (*serving, *other)
            for count in [16 if node in other else 64]
            if node.namespace in ("", job.namespace)
            and Run.objects.filter(pk=run.pk).in_shards(node.shards, count).exists()
        }
        leaders = cluster.leaders_of(job, nodes)
        assert {leader.node.pk for leader in leaders} == leading
        assert len(leaders) == len(leading) == (3 if job.namespace == "shop" else 2)
        assert all(leader.leads_all for leader in leaders)


@pytest.mark.django_db
def test_leaders_are_read_in_one_query(django_assert_num_queries: DjangoAssertNumQueries) -> None:
    now = database_now("default")
    for number in range(20):
        unsaved_node(f"node-{number}", pid=1, started_at=now, heartbeat_at=now).save()
    job = make_idle_job()

    with django_assert_num_queries(1):
        nodes = cluster.nodes(job.namespace)
        assert len(cluster.leaders_of(job, nodes)) == 1
        assert len(cluster.assigned_shards(nodes)) == 20


def test_only_live_nodes_lead() -> None:
    job, dead = Job(id=7), unsaved_node("dead", age=3600)

    assert cluster.leaders_of(job, [dead]) == []
    assert cluster.assigned_shards([dead]) == {}
    assert cluster.assigned_shards(
        [dead, unsaved_node("a"), unsaved_node("starting", shard_count=0)]
    ) == {"a": [*range(64)]}
    (leader,) = cluster.leaders_of(job, [dead, unsaved_node("a")])
    assert (leader.node.name, leader.shard, leader.assigned) == ("a", 7, 64)


def test_node_leads_all_only_with_as_many_shards_as_assigned() -> None:
    def leads(**values: Any) -> bool:
        (leader,) = cluster.leaders_of(Job(id=7), [unsaved_node("a", **values)])
        return leader.leads_all

    assert leads(shards=64)
    assert not leads(shards=63)
    assert leads(shards=0, degraded=True), "a degraded node leads by hashing, without locks"


def test_restarted_node_is_not_dead() -> None:
    rows = [
        unsaved_node("a"),
        unsaved_node("b", age=3600, id="b-1"),
        unsaved_node("b", id="b-2"),
        unsaved_node("c", age=7200, id="c-1"),
        unsaved_node("c", age=3600, id="c-2"),
        unsaved_node("d", age=3600, namespace="shop"),
        unsaved_node("d"),
    ]
    dead = [(node.name, node.namespace, node.pk) for node in cluster.dead_nodes(rows)]
    assert sorted(dead) == [("c", "", "c-2"), ("d", "shop", "d")]


@pytest.mark.parametrize(
    ("shards", "ranges"),
    [
        ([], []),
        ([5], ["5"]),
        ([3, 1, 2, 0, 7, 12, 13, 14, 15], ["0-3", "7", "12-15"]),
        (range(64), ["0-63"]),
        ([0, 2, 3, 62, 63], ["0", "2-3", "62-63"]),
    ],
)
def test_shards_are_summarized_as_ranges(shards: Any, ranges: list[str]) -> None:
    assert cluster.shard_ranges(shards) == [each.replace("-", "\N{EN DASH}") for each in ranges]
