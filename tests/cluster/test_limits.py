"""Processes die while jobs share a limit: never more runs execute than it allows."""

import pytest

from django_dcron import control
from django_dcron.models import Limit, LimitPlace, Run
from tests.cluster.cluster import SECOND, TIMEOUT, Cluster, fault, lowered
from tests.waiting import wait_until

pytestmark = [pytest.mark.chaos, pytest.mark.postgresql]

QUICK = lowered(REDELIVER_AFTER=3, RUN_LEASE=3)
ALLOWED = 3


def test_limit_holds_while_workers_and_nodes_are_killed(cluster: Cluster) -> None:
    """Also within the transactions that give a place, free it, or pass it on.

    The database numbers the changes of runs in their order. So this counts the running runs after
    each of them.
    """
    limit = control.save_limit(Limit(name="api", max_running=ALLOWED))
    steps = fault(["limit.joined", "limit.freed", "start.done", "finish.ended"], chance=0.03)
    rescuers = fault(["limit.freed", "retry.written"], chance=0.1)
    cluster.add_worker(pool="threads", env=QUICK | steps, wait=False)
    cluster.start(
        jobs=6,
        workers=2,
        node_env=QUICK | rescuers,
        worker_env=QUICK | steps,
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
    running, most = set(), 0
    for change in cluster.history.changes:
        (running.add if change.new == "running" else running.discard)(change.run)
        most = max(most, len(running))
    assert most == ALLOWED
    assert not LimitPlace.objects.exclude(run__state__in=("pending", "queued", "waiting")).exists()
