"""Nodes that are killed, stopped, frozen and replaced: whatever befalls them, no occurrence is lost or doubled, and the work
goes on elsewhere."""

import re
import signal
from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest
from django.db.models import Q

from django_dcron import control
from django_dcron.models import Node, Run
from tests.app import faults
from tests.cluster.cluster import IN_ALL_SHARDS, PATIENCE, SECOND, Cluster, Member, fault, now, stopped
from tests.cluster.lateness import handed_over, latenesses, percentile
from tests.waiting import wait_until

pytestmark = [pytest.mark.chaos, pytest.mark.postgresql, pytest.mark.mariadb, pytest.mark.timeout(300)]

CLAIM = ["claim.locked", "claim.written", "claim.committed"]
PUBLISH = ["publish.begun", "publish.done"]
MARK = ["mark.begun", "mark.done"]
LONG_AGO = datetime(2025, 1, 15, tzinfo=UTC)

LEEWAY = 2 * SECOND
"""What a busy machine may add."""


def test_nodes_killed_at_random_in_claim_publish_and_mark(cluster: Cluster) -> None:
    cluster.start(**IN_ALL_SHARDS, node_env=fault([*CLAIM, *PUBLISH, *MARK, "rescue.begun"], chance=0.03))
    cluster.run_for(16)
    cluster.calm()
    cluster.account()
    for node in cluster.nodes:
        assert -signal.SIGKILL in node.exits


@pytest.mark.nightly
def test_a_node_killed_once_at_each_point(cluster: Cluster) -> None:
    """One after the other, while another node lives; they share the points."""
    # A tick a second finds something to claim each time; what is not claimed far ahead is soon due for whoever takes over.
    short = {"DCRON_TEST_SETTINGS": '{"LEASE": 2, "TICK": 1, "LOOK_AHEAD": 2}'}
    shares = [
        ["claim.locked", "claim.committed", "publish.done", "mark.done"],
        ["claim.written", "publish.begun", "mark.begun"],
    ]
    assert {point for share in shares for point in share} == {*CLAIM, *PUBLISH, *MARK}
    cluster.start(**IN_ALL_SHARDS, nodes=0)
    nodes = [cluster.add_node(env=short | fault(share[0], times=3)) for share in shares]
    for deaths in range(1, len(shares[0]) + 1):
        for node, share in zip(nodes, shares, strict=True):
            _next_life(node, share[deaths:])
        for node, share in zip(nodes, shares, strict=True):
            _wait_for_death(node, min(deaths, len(share)))
    cluster.account()
    for node, share in zip(nodes, shares, strict=True):
        # Once more if its supervisor was quicker than the test: then it dies at the same point again.
        assert set(node.exits) == {-signal.SIGKILL}, share
        assert len(node.exits) >= len(share), share


def _next_life(node: Member, points: list[str]) -> None:
    """When its supervisor has started it again, let it be killed at the first of ``points``; or live, if there is none."""
    node.process.env.pop(faults.VARIABLE, None)
    if points:
        node.process.env |= fault(points[0], times=3)


def _wait_for_death(node: Member, number: int) -> None:
    """And until it has been started again."""
    wait_until(lambda: len(node.exits) >= number and node.process.running, PATIENCE, what=f"death {number}")


@pytest.mark.nightly
def test_a_node_killed_for_good_and_another_stopped(cluster: Cluster) -> None:
    cluster.start(**IN_ALL_SHARDS, nodes=3)
    cluster.run_for(5)
    ids = dict(Node.objects.values_list("name", "pk"))
    # --- killed: its jobs run elsewhere within eight seconds
    killed_at = now()
    of_the_killed = _jobs_on(ids["node-0"])
    cluster.nodes[0].kill_for_good()
    others = Node.objects.exclude(pk=ids["node-0"])
    wait_until(
        lambda: sum(others.values_list("shards", flat=True)) == 64, PATIENCE, what="its shards", interval=0.1
    )
    moved_at = now()
    cluster.wait_for(killed_at + 11 * SECOND)
    # --- stopped: its jobs run elsewhere within a tick
    stopped_at = now()
    of_the_stopped = _jobs_on(ids["node-1"])
    assert cluster.nodes[1].leave() == 0
    cluster.wait_for(stopped_at + 5 * SECOND)
    cluster.account(accepted={"node_dead"})
    assert of_the_killed
    assert of_the_stopped

    within = timedelta(seconds=8)
    assert moved_at < killed_at + within + LEEWAY
    last = max(at for _, at in handed_over(Q(job__in=of_the_killed), after=killed_at, until=moved_at))
    assert last < moved_at + LEEWAY
    # What was due later was handed over like the others'.
    after = {"after": killed_at + within, "until": stopped_at}
    assert _worst(Q(job__in=of_the_killed), **after) < _worst(~Q(job__in=of_the_killed), **after) + LEEWAY

    after = {"after": stopped_at, "until": cluster.until}
    assert (
        _worst(Q(job__in=of_the_stopped), **after)
        < SECOND + _worst(~Q(job__in=of_the_stopped), **after) + LEEWAY
    )


def _jobs_on(node: str) -> list[int]:
    """The jobs whose pending runs are on its agenda."""
    return list(Run.objects.pending().filter(node=node).values_list("job", flat=True).distinct())


def _worst(*conditions: Q, after: datetime, until: datetime) -> timedelta:
    return percentile(latenesses(*conditions, after=after, until=until), 100)


def test_nodes_frozen_past_their_lease(cluster: Cluster) -> None:
    """Each within another step, some with locks in hand, and one wherever it just is. Others lead meanwhile, and are not kept
    from any job; awake, they go on with what is stale."""
    points = [*CLAIM, "publish.begun", "mark.begun", "rescue.begun"]
    short = {"DCRON_TEST_SETTINGS": '{"LEASE": 3, "LOOK_AHEAD": 2}'}
    jobs = cluster.start(**IN_ALL_SHARDS, nodes=1, node_env=short)
    sleepers = [cluster.add_node(env=short | fault("release.locked", signal="SIGSTOP", times=1))]
    wait_until(lambda: cluster.leading() == 2, PATIENCE, what="it to lead", interval=0.1)
    for job in jobs:
        assert control.backfill(job, LONG_AGO, LONG_AGO + 8 * SECOND).occurrences
    sleepers += [cluster.add_node(env=short | fault(point, signal="SIGSTOP", times=3)) for point in points]
    sleepers.append(cluster.add_node(env=short))
    wait_until(lambda: all(map(stopped, sleepers[:-1])), PATIENCE, what="nodes to freeze")
    sleepers[-1].process.freeze()
    wait_until(lambda: _shards_of("node-0") == 64, PATIENCE, what="node-0 to lead alone", interval=0.1)
    alone_at = now()
    cluster.wait_for(alone_at + 12 * SECOND)
    thawed_at, before = now(), _deliveries(cluster)
    for node in sleepers:
        node.process.thaw()
    cluster.wait_for(thawed_at + 2 * SECOND)
    cluster.account()
    assert not any(node.exits for node in cluster.nodes)
    # They kept nothing back, not even those within a claim: of each job one run or more was due in these seconds.
    due = Run.objects.filter(scheduled_at__gt=alone_at + 3 * SECOND, scheduled_at__lte=alone_at + 8 * SECOND)
    assert due.values("job").distinct().count() == 64
    assert not due.filter(started_at__gte=thawed_at).exists()
    # And what they published when awake had been handed over by another.
    assert any(delivery in before for delivery in (_deliveries(cluster) - before))


def _deliveries(cluster: Cluster) -> Counter[str]:
    """How often each attempt of a run has come to a worker."""
    logs = [worker.process.log for worker in cluster.workers]
    return Counter(delivery for log in logs for delivery in re.findall(r"Task \S+\[(\S+)\] received", log))


def _shards_of(name: str) -> int:
    return Node.objects.get(name=name).shards


@pytest.mark.nightly
def test_all_nodes_replaced_one_after_the_other(cluster: Cluster) -> None:
    """A rolling restart under load."""
    cluster.start(**IN_ALL_SHARDS, nodes=3)
    cluster.run_for(6)
    began = now()
    for old in list(cluster.nodes):
        assert old.leave() == 0
        cluster.add_node()
        wait_until(lambda: cluster.leading() == 3, PATIENCE, what="the new node to lead", interval=0.1)
    ended = now()
    cluster.wait_for(ended + 3 * SECOND)
    cluster.account()
    quiet = percentile(latenesses(after=began - 4 * SECOND, until=began), 99)
    replaced = percentile(latenesses(after=began, until=ended), 99)
    assert replaced < quiet + 2 * SECOND, "a handover is clean: nobody waits for a lease, which is 6 seconds"
