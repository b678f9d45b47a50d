"""All processes reach PostgreSQL through PgBouncer, which pools transactions and is killed."""

import pytest

from tests.cluster.cluster import Cluster, now, shorter_durations
from tests.pgbouncer import LIMITS, PgBouncer

pytestmark = [pytest.mark.chaos, pytest.mark.postgresql, pytest.mark.nightly]


@pytest.mark.timeout(240)
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
