"""Redis as the lock server and the broker: no failure of Redis loses or doubles an occurrence.

Celery's workers may exit when their broker does (kombu fails to restore unacknowledged messages). A
supervisor restarts them, in this test as in production.
"""

import re
import time

import pytest
from django_redis import get_redis_connection
from redis import Redis

from django_dcron.conf import settings
from django_dcron.dispatch.worker_reconnect import LONGEST_PAUSE
from django_dcron.models import Run
from tests import services
from tests.cluster.cluster import SECOND, TIMEOUT, Cluster, now, shorter_durations, suspended
from tests.waiting import wait_until

pytestmark = [pytest.mark.chaos, pytest.mark.postgresql, pytest.mark.mariadb]


def wait_until_degraded(cluster: Cluster) -> None:
    for node in cluster.nodes_with_claims():
        node.process.wait_for_log("broker unreachable: ", TIMEOUT)
    for node in cluster.nodes:
        node.process.wait_for_log("lock server unreachable", TIMEOUT)


def wait_until_recovered(cluster: Cluster) -> None:
    for node in cluster.nodes_with_claims():
        node.process.wait_for_log("broker reachable again: ", TIMEOUT)
    for node in cluster.nodes:
        node.process.wait_for_log("lock server reachable again", TIMEOUT)
    wait_until(all_shards_are_locked, TIMEOUT, what="all leases to be taken again")


def all_shards_are_locked() -> bool:
    return len(get_redis_connection("default").keys("*:shard:*")) == settings.SHARDS


def assert_outage_logged_once(cluster: Cluster) -> None:
    for node in cluster.nodes:
        log = node.process.log
        assert log.count("lock server unreachable") == log.count("lock server reachable again") == 1
        assert (
            log.count("broker unreachable: broker=") == log.count("broker reachable again: ") <= 1
        )
        assert not node.exits


@pytest.mark.nightly
def test_no_run_is_lost_while_redis_is_stopped_for_a_minute(
    cluster: Cluster, redis_server: services.Server
) -> None:
    """The locks, the broker and all queued messages are lost."""
    impatient = shorter_durations(REDELIVER_AFTER=10)
    policy = {"misfire_policy": "skip", "misfire_grace": 40 * SECOND, "overlap_policy": "allow"}
    jobs = cluster.start(jobs=4, node_env=impatient, worker_env=impatient, **policy)
    cluster.run_for(3)
    redis_server.kill()
    killed_at = time.monotonic()
    wait_until_degraded(cluster)
    wait_until(lambda: time.monotonic() - killed_at >= 60, TIMEOUT, what="a minute", interval=0.2)
    claimed = Run.objects.count()
    assert claimed >= 20 * len(jobs)
    wait_until(lambda: Run.objects.count() > claimed, TIMEOUT, what="claims to continue")
    back_at = now()
    redis_server.start()
    wait_until_recovered(cluster)
    cluster.account()
    assert_outage_logged_once(cluster)
    log = "".join(worker.process.log for worker in cluster.workers)
    pauses = [float(seconds) for seconds in re.findall(r"Trying again in ([\d.]+) seconds", log)]
    assert pauses
    assert max(pauses) <= LONGEST_PAUSE, "workers reconnect soon"
    # Runs that were late by less than their grace were executed. The others were recorded as
    # missed.
    due_meanwhile = Run.objects.filter(
        scheduled_at__gt=back_at - 55 * SECOND, scheduled_at__lt=back_at
    )
    assert set(due_meanwhile.values_list("state", flat=True)) == {"missed", "succeeded"}


def test_no_run_is_lost_when_redis_is_flushed_and_suspended(
    cluster: Cluster, redis_server: services.Server
) -> None:
    """Locks and queued messages are lost several times. Then Redis stops answering."""
    impatient = shorter_durations(REDELIVER_AFTER=3)
    cluster.start(jobs=6, node_env=impatient, worker_env=impatient)
    broker = Redis(unix_socket_path=str(redis_server.answers_at), db=1)
    for _ in range(3):
        with suspended(cluster.workers):
            wait_until(lambda: broker.llen("celery") > 3, TIMEOUT, what="messages in the queue")
            broker.flushall()
        wait_until(all_shards_are_locked, TIMEOUT, what="all leases to be taken again")
    for node in cluster.nodes:
        assert "lock server unreachable" not in node.process.log
    lost_messages = Run.objects.filter(state="succeeded", attempt=1, deliveries__gt=1)
    wait_until(lost_messages.exists, TIMEOUT, what="a run to be dispatched again")
    redis_server.suspend()
    wait_until_degraded(cluster)
    claimed = Run.objects.count()
    wait_until(lambda: Run.objects.count() > claimed, TIMEOUT, what="claims to continue")
    redis_server.resume()
    wait_until_recovered(cluster)
    cluster.account()
    assert_outage_logged_once(cluster)
    broker.close()
