"""All processes reach PostgreSQL through PgBouncer, which pools transactions and is killed."""

import json

import pytest

from django_dcron.models import Run
from tests.cluster.cluster import Cluster, now, shorter_durations
from tests.conftest import StartProcess
from tests.factories import make_job
from tests.pgbouncer import LIMITS, PgBouncer
from tests.waiting import TIMEOUT, wait_until

pytestmark = [pytest.mark.chaos, pytest.mark.postgresql]


def test_node_and_worker_leave_no_limits_on_the_server_connections(
    start_worker: StartProcess, start_runcron: StartProcess, pgbouncer: PgBouncer
) -> None:
    """Other clients of the pool use these connections, for example for migrations."""
    # Each run lasts longer than the second after which the worker writes its heartbeat.
    job = make_job(target="tests.app.tasks.nap", args=[2], overlap_policy="allow")
    env = pgbouncer.client_env | {"DCRON_TEST_SETTINGS": json.dumps({"RUN_LEASE": 3})}
    worker = start_worker(env=env, concurrency=3)
    node = start_runcron("--name", "a", env=env)
    wait_until(
        lambda: Run.objects.filter(job=job, state="succeeded").count() >= 3,
        TIMEOUT,
        what="three succeeded runs",
    )
    # The node and the worker are still running.
    assert {*pgbouncer.limits_of_servers().values()} == {("0",) * len(LIMITS)}
    worker.terminate()
    node.terminate()
    assert (worker.wait(TIMEOUT), node.wait(TIMEOUT)) == (0, 0)
    assert {*pgbouncer.limits_of_servers().values()} == {("0",) * len(LIMITS)}


@pytest.mark.nightly
def test_no_run_is_lost_behind_a_transaction_pool(cluster: Cluster, pgbouncer: PgBouncer) -> None:
    env = shorter_durations(REDELIVER_AFTER=5) | pgbouncer.client_env
    cluster.start(jobs=6, nodes=3, node_env=env, worker_env=env)
    cluster.run_for(5)
    for _ in range(3):
        pgbouncer.kill()
        killed_at = now()
        pgbouncer.start()
        cluster.wait_for_recovery("PgBouncer killed and restarted", since=killed_at)
    cluster.account()
    assert {*pgbouncer.limits_of_servers().values()} == {("0",) * len(LIMITS)}
