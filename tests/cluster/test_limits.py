"""Test that a limit is never exceeded while workers and nodes are killed."""

import pytest

from django_dcron import control
from django_dcron.models import Limit, LimitPlace, Run
from tests.cluster.cluster import SECOND, TIMEOUT, Cluster, fault, shorter_durations
from tests.waiting import wait_until

pytestmark = [pytest.mark.chaos, pytest.mark.postgresql]

QUICK = shorter_durations(REDELIVER_AFTER=3, RUN_LEASE=3)
ALLOWED = 3


def test_limit_holds_while_workers_and_nodes_are_killed(cluster: Cluster) -> None:
    """Processes are also killed within transactions that assign, free or hand over a place.

    The database records all state changes in order. The test counts the running runs after each
    change.
    """
    limit = control.save_limit(Limit(name="api", max_running=ALLOWED))
    worker_faults = fault(
        ["limit.joined", "limit.freed", "start.done", "finish.ended"], chance=0.03
    )
    node_faults = fault(["limit.freed", "retry.written"], chance=0.1)
    cluster.add_worker(pool="threads", env=QUICK | worker_faults, wait=False)
    cluster.start(
        jobs=6,
        workers=2,
        node_env=QUICK | node_faults,
        worker_env=QUICK | worker_faults,
        kwargs={"seconds": 0.15},
        limit=limit,
        misfire_grace=120 * SECOND,
        schedule="*/2 * * * * *",
    )
    cluster.run_for(12)
    waited = Run.objects.filter(reason__startswith="waits for limit")
    wait_until(waited.exists, TIMEOUT, what="a run to wait for the limit")
    threads = cluster.workers[0]
    wait_until(lambda: threads.exits, TIMEOUT, what="a worker to be killed")
    cluster.remove_faults()
    cluster.account()
    assert cluster.history is not None
    running, highest = set(), 0
    for change in cluster.history.changes:
        (running.add if change.new == "running" else running.discard)(change.run)
        highest = max(highest, len(running))
    assert highest == ALLOWED
    assert [each.max_running for each in cluster.history.limits] == [ALLOWED]
    assert {each.limit for each in cluster.history.changes} == {"api"}
    assert not LimitPlace.objects.exclude(run__state__in=("pending", "queued", "waiting")).exists()
