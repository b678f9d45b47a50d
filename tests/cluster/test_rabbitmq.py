"""RabbitMQ as the broker: it has no batches, but durable queues and publisher confirms."""

import subprocess
from collections.abc import Iterator
from contextlib import suppress

import pytest

from django_dcron.models import Run
from tests import services
from tests.cluster.cluster import TIMEOUT, Cluster, frozen, lowered
from tests.waiting import wait_until

pytestmark = [pytest.mark.chaos, pytest.mark.postgresql, pytest.mark.mariadb]


@pytest.fixture(params=["classic", "quorum"])
def queue_type(
    request: pytest.FixtureRequest, cluster: Cluster, rabbitmq_server: services.RabbitmqServer
) -> Iterator[str]:
    """Yield the type of the queue. Deletes the queue before and after, because its type is fixed.

    A quorum queue is replicated, if RabbitMQ has several nodes.
    """

    def delete_queue() -> None:
        with suppress(subprocess.CalledProcessError):  # there is none
            rabbitmq_server.control("delete_queue", "celery")

    delete_queue()
    yield request.param
    delete_queue()


@pytest.mark.nightly
@pytest.mark.timeout(240)
def test_no_run_is_lost_when_rabbitmq_is_killed_and_restarted(
    cluster: Cluster, rabbitmq_server: services.RabbitmqServer, queue_type: str
) -> None:
    env = lowered(REDELIVER_AFTER=10) | {
        "DCRON_TEST_BROKER": rabbitmq_server.url,
        "DCRON_TEST_QUEUE_TYPE": queue_type,
    }
    cluster.start(jobs=6, node_env=env, worker_env=env)
    cluster.run_for(5)
    delivered_once = Run.objects.filter(
        scheduled_at__gt=cluster.after, state="succeeded", deliveries__lte=1
    )
    wait_until(lambda: delivered_once.count() >= 6 * 3, TIMEOUT, what="runs")
    with frozen(cluster.workers):
        dispatched = Run.objects.queued()
        wait_until(lambda: dispatched.count() >= 12, TIMEOUT, what="messages in the queue")
        rabbitmq_server.kill()
    claimers = cluster.nodes_with_claims()
    for node in claimers:
        node.process.wait_for_log("broker unreachable: ", TIMEOUT)
    rabbitmq_server.start()
    assert f"celery\t{queue_type}" in rabbitmq_server.control("list_queues", "name", "type")
    cluster.wait_for_recovery(f"RabbitMQ killed, {queue_type} queue")
    for node in claimers:
        node.process.wait_for_log("broker reachable again: ", TIMEOUT)
    cluster.account()
    for node in cluster.nodes:
        log = node.process.log
        assert (
            log.count("broker unreachable: broker=")
            == log.count("broker reachable again: ")
            == (node in claimers)
        )
        assert "lock server unreachable" not in log, "RabbitMQ doesn't hold the locks"
        assert not node.exits
