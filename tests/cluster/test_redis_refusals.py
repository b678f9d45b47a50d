"""Redis answers, but refuses all writes: it is out of memory or was demoted to a replica."""

from collections.abc import Iterator

import pytest
from redis import Redis
from redis.exceptions import OutOfMemoryError, ReadOnlyError

from tests import services
from tests.cluster.cluster import SECOND, TIMEOUT, Cluster, now, shorter_durations
from tests.waiting import wait_until

pytestmark = [pytest.mark.chaos, pytest.mark.postgresql, pytest.mark.mariadb]


@pytest.fixture
def redis(redis_server: services.Server) -> Iterator[Redis]:
    client = Redis(unix_socket_path=str(redis_server.answers_at), db=1)
    yield client
    client.config_set("maxmemory", 0)
    client.replicaof("NO", "ONE")
    client.close()


def wait_until_refused(redis: Redis, error: type[Exception]) -> None:
    def refused() -> bool:
        try:
            redis.set("filler", "x")
        except error:
            return True
        return False

    wait_until(refused, TIMEOUT, what="Redis to refuse writes")


def test_no_run_is_lost_while_redis_refuses_writes(cluster: Cluster, redis: Redis) -> None:
    """Locks can't be renewed, and messages can't be sent. Later they can."""
    env = shorter_durations(REDELIVER_AFTER=5)
    cluster.start(jobs=4, node_env=env, worker_env=env)
    for kind in ("Redis over its memory limit", "Redis demoted to a read-only replica"):
        if "memory" in kind:
            redis.config_set("maxmemory", 1)
            wait_until_refused(redis, OutOfMemoryError)
        else:
            redis.replicaof("127.0.0.1", 1)  # nobody listens there
            wait_until_refused(redis, ReadOnlyError)
        cluster.wait_for(now() + 8 * SECOND)  # longer than the lease
        redis.config_set("maxmemory", 0)
        redis.replicaof("NO", "ONE")
        cluster.wait_for_recovery(kind)
    cluster.account()
