"""Nodes that are killed, stopped, suspended and replaced.

Invariant: no occurrence is lost or duplicated, and other nodes continue the work.
"""

import re
import signal
from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest
from django.db.models import Q

from django_dcron import control
from django_dcron.models import Node, Run
from django_dcron.policies.lifecycle import FINAL, Trigger
from tests.app import faults
from tests.cluster.cluster import (
    IN_ALL_SHARDS,
    SECOND,
    TIMEOUT,
    Cluster,
    Member,
    fault,
    now,
    stopped,
)
from tests.cluster.dispatch_lag import dispatch_lags, dispatched, percentile
from tests.waiting import wait_until, wait_until_none

pytestmark = [
    pytest.mark.chaos,
    pytest.mark.postgresql,
    pytest.mark.mariadb,
]

CLAIM = ["claim.locked", "claim.written", "claim.committed"]
PUBLISH = ["publish.begun", "publish.done"]
MARK = ["mark.begun", "mark.done"]
LONG_AGO = datetime(2025, 1, 15, tzinfo=UTC)

LEEWAY = 2 * SECOND
"""Tolerance for a busy machine."""


def test_no_run_is_lost_when_nodes_are_killed_at_random_points(cluster: Cluster) -> None:
    cluster.start(
        **IN_ALL_SHARDS, node_env=fault([*CLAIM, *PUBLISH, *MARK, "rescue.begun"], chance=0.03)
    )
    cluster.run_for(16)
    wait_until(
        lambda: all(-signal.SIGKILL in node.exits for node in cluster.nodes),
        TIMEOUT,
        what="each node to be killed",
    )
    cluster.remove_faults()
    cluster.account()


@pytest.mark.nightly
def test_no_run_is_lost_when_nodes_are_killed_at_each_point(cluster: Cluster) -> None:
    """Two nodes share the points. Each dies at its points while the other one lives."""
    # With one tick a second, each tick has something to claim. With a short look-ahead,
    # unclaimed runs are soon due for the other node.
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
        # If the supervisor was faster than the test, the node dies once more at the same point.
        assert set(node.exits) == {-signal.SIGKILL}, share
        assert len(node.exits) >= len(share), share


def _next_life(node: Member, points: list[str]) -> None:
    """Set the node's next fault: at the first of ``points``, or none if there is none left."""
    node.process.env.pop(faults.VARIABLE, None)
    if points:
        node.process.env |= fault(points[0], times=3)


def _wait_for_death(node: Member, number: int) -> None:
    """Wait until the node has died this often and was started again."""
    wait_until(
        lambda: len(node.exits) >= number and node.process.running, TIMEOUT, what=f"death {number}"
    )


@pytest.mark.nightly
def test_jobs_of_killed_and_stopped_nodes_run_elsewhere_in_time(cluster: Cluster) -> None:
    cluster.start(**IN_ALL_SHARDS, nodes=3)
    cluster.run_for(5)
    ids = dict(Node.objects.values_list("name", "pk"))
    # --- killed: its jobs run elsewhere within eight seconds
    killed_at = now()
    jobs_of_killed = _jobs_on(ids["node-0"])
    cluster.nodes[0].kill_for_good()
    others = Node.objects.exclude(pk=ids["node-0"])
    wait_until(
        lambda: sum(others.values_list("shards", flat=True)) == 64,
        TIMEOUT,
        what="the other nodes to lead its shards",
        interval=0.1,
    )
    moved_at = now()
    cluster.wait_for(killed_at + 11 * SECOND)
    # --- stopped: its jobs run elsewhere within a tick
    stopped_at = now()
    jobs_of_stopped = _jobs_on(ids["node-1"])
    assert cluster.nodes[1].leave() == 0
    cluster.wait_for(stopped_at + 5 * SECOND)
    cluster.account()
    assert jobs_of_killed
    assert jobs_of_stopped

    within = timedelta(seconds=8)
    assert moved_at < killed_at + within + LEEWAY
    last = max(
        at for _, at in dispatched(Q(job__in=jobs_of_killed), after=killed_at, until=moved_at)
    )
    assert last < moved_at + LEEWAY
    # Later runs of these jobs were dispatched as promptly as all others.
    after = {"after": killed_at + within, "until": stopped_at}
    assert (
        _worst(Q(job__in=jobs_of_killed), **after)
        < _worst(~Q(job__in=jobs_of_killed), **after) + LEEWAY
    )

    after = {"after": stopped_at, "until": cluster.until}
    assert (
        _worst(Q(job__in=jobs_of_stopped), **after)
        < SECOND + _worst(~Q(job__in=jobs_of_stopped), **after) + LEEWAY
    )


def _jobs_on(node: str) -> list[int]:
    """The jobs whose pending runs are on the node's agenda."""
    return list(Run.objects.pending().filter(node=node).values_list("job", flat=True).distinct())


def _worst(*conditions: Q, after: datetime, until: datetime) -> timedelta:
    return percentile(dispatch_lags(*conditions, after=after, until=until), 100)


def test_suspended_nodes_cause_no_blocked_or_duplicate_runs(cluster: Cluster) -> None:
    """Each node is suspended within a different step. Some hold locks.

    One node is suspended at a random moment.

    The other nodes lead meanwhile and can claim every job. When the suspended nodes resume, they
    continue with outdated data.
    """
    points = [*CLAIM, "publish.begun", "mark.begun", "rescue.begun"]
    short = {"DCRON_TEST_SETTINGS": '{"LEASE": 3, "LOOK_AHEAD": 2}'}
    jobs = cluster.start(**IN_ALL_SHARDS, nodes=1, node_env=short)
    sleepers = [cluster.add_node(env=short | fault("release.locked", signal="SIGSTOP", times=1))]
    wait_until(lambda: cluster.leading() == 2, TIMEOUT, what="the node to lead", interval=0.1)
    for job in jobs:
        assert control.backfill(job, LONG_AGO, LONG_AGO + 8 * SECOND).occurrences
    sleepers += [
        cluster.add_node(env=short | fault(point, signal="SIGSTOP", times=3)) for point in points
    ]
    sleepers.append(cluster.add_node(env=short))
    wait_until(lambda: all(map(stopped, sleepers[:-1])), TIMEOUT, what="nodes to be suspended")
    sleepers[-1].process.suspend()
    wait_until(
        lambda: _shards_of("node-0") == 64, TIMEOUT, what="node-0 to lead alone", interval=0.1
    )
    alone_at = now()
    # The suspended nodes block nothing, not even those within a claim: each job has a run that
    # starts.
    due = Run.objects.filter(scheduled_at__gt=alone_at + 3 * SECOND, started_at__isnull=False)
    wait_until_none(
        lambda: 64 - due.values("job").distinct().count(),
        TIMEOUT,
        what="jobs without a run while nodes are suspended",
    )
    overdue = Run.objects.exclude(state__in=FINAL).exclude(trigger=Trigger.BACKFILL)
    wait_until(
        lambda: not overdue.filter(scheduled_at__lte=alone_at).exists(),
        TIMEOUT,
        what="the runs of the suspended nodes to end",
        interval=0.2,
    )
    before = _deliveries(cluster)
    for node in sleepers:
        node.process.resume()
    # Other nodes have already dispatched what the suspended nodes publish once they resume.
    wait_until(
        lambda: any(delivery in before for delivery in _deliveries(cluster) - before),
        TIMEOUT,
        what="a second delivery",
        interval=0.2,
    )
    cluster.account()
    assert not any(node.exits for node in cluster.nodes)


def _deliveries(cluster: Cluster) -> Counter[str]:
    """How often each attempt of a run was delivered to a worker."""
    logs = [worker.process.log for worker in cluster.workers]
    return Counter(
        delivery for log in logs for delivery in re.findall(r"Task \S+\[(\S+)\] received", log)
    )


def _shards_of(name: str) -> int:
    return Node.objects.get(name=name).shards


@pytest.mark.nightly
def test_rolling_restart_of_all_nodes_delays_no_run(cluster: Cluster) -> None:
    """The nodes are replaced one after the other, under load."""
    cluster.start(**IN_ALL_SHARDS, nodes=3)
    cluster.run_for(6)
    began = now()
    for old in list(cluster.nodes):
        assert old.leave() == 0
        cluster.add_node()
        wait_until(
            lambda: cluster.leading() == 3, TIMEOUT, what="the new node to lead", interval=0.1
        )
    ended = now()
    cluster.wait_for(ended + 3 * SECOND)
    cluster.account()
    quiet = percentile(dispatch_lags(after=began - 4 * SECOND, until=began), 99)
    replaced = percentile(dispatch_lags(after=began, until=ended), 99)
    assert replaced < quiet + 2 * SECOND, "no node waits for a lease, which is 6 seconds"
