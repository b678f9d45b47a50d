"""RabbitMQ as the broker: it has no batches, but durable queues and publisher confirms."""

import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, suppress

import pytest

from django_dcron.models import Run
from tests import services
from tests.cluster.cluster import SECOND, TIMEOUT, Cluster, now, shorter_durations, suspended
from tests.cluster.link_faults import LASTING_FAULTS, MOMENTARY_FAULTS, break_link
from tests.fault_proxy import BOTH_WAYS, FaultProxy
from tests.waiting import wait_until

pytestmark = [pytest.mark.chaos, pytest.mark.postgresql, pytest.mark.mariadb]

HEARTBEAT = 4
"""Seconds between two heartbeats of a worker and RabbitMQ."""
MISSED = "missed heartbeats from client"
FAULT = 3 * HEARTBEAT * SECOND
"""Duration of a partition: longer than both ends wait for a heartbeat."""


@pytest.fixture(params=["classic", "quorum"])
def queue_type(
    request: pytest.FixtureRequest, cluster: Cluster, rabbitmq_server: services.RabbitmqServer
) -> Iterator[str]:
    """Yield the type of the queue. Deletes the queue before and after, because its type is fixed.

    RabbitMQ replicates a quorum queue if it has several nodes.
    """

    def delete_queue() -> None:
        with suppress(subprocess.CalledProcessError):  # the queue doesn't exist
            rabbitmq_server.control("delete_queue", "celery")

    delete_queue()
    yield request.param
    delete_queue()


@pytest.mark.nightly
def test_no_run_is_lost_when_rabbitmq_is_killed_and_restarted(
    cluster: Cluster, rabbitmq_server: services.RabbitmqServer, queue_type: str
) -> None:
    env = shorter_durations(REDELIVER_AFTER=10) | {
        "DCRON_TEST_BROKER": rabbitmq_server.url,
        "DCRON_TEST_QUEUE_TYPE": queue_type,
    }
    cluster.start(jobs=6, node_env=env, worker_env=env)
    cluster.run_for(5)
    delivered_once = Run.objects.filter(
        scheduled_at__gt=cluster.after, state="succeeded", deliveries__lte=1
    )
    wait_until(lambda: delivered_once.count() >= 6 * 3, TIMEOUT, what="runs")
    with suspended(cluster.workers):
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


@pytest.fixture
def proxies(rabbitmq_server: services.RabbitmqServer) -> Iterator[dict[str, FaultProxy]]:
    """All nodes reach RabbitMQ through one proxy, all workers through the other one."""
    with ExitStack() as stack:
        address = ("127.0.0.1", rabbitmq_server.port)
        made = {who: FaultProxy(address) for who in ("nodes", "workers")}
        for proxy in made.values():
            stack.callback(proxy.close)
        yield made


def start_behind_proxies(cluster: Cluster, proxies: dict[str, FaultProxy], queue_type: str) -> None:
    envs = {
        who: shorter_durations(REDELIVER_AFTER=10)
        | {
            "DCRON_TEST_BROKER": f"amqp://guest:guest@127.0.0.1:{proxy.port}//",
            "DCRON_TEST_QUEUE_TYPE": queue_type,
            "DCRON_TEST_HEARTBEAT": str(HEARTBEAT),
        }
        for who, proxy in proxies.items()
    }
    cluster.start(jobs=6, node_env=envs["nodes"], worker_env=envs["workers"])
    cluster.run_for(5)


@pytest.mark.nightly
@pytest.mark.parametrize("who", ["nodes", "workers"])
def test_no_run_is_lost_on_a_broken_link_to_rabbitmq(
    proxies: dict[str, FaultProxy], cluster: Cluster, queue_type: str, who: str
) -> None:
    start_behind_proxies(cluster, proxies, queue_type)
    for fault in [*LASTING_FAULTS, *MOMENTARY_FAULTS]:
        break_link(cluster, proxies[who], fault, FAULT)
        cluster.wait_for_recovery(f"{who} - RabbitMQ: {fault}")
    cluster.account()


@pytest.mark.nightly
def test_no_run_is_lost_when_one_side_is_partitioned_from_rabbitmq(
    rabbitmq_server: services.RabbitmqServer,
    proxies: dict[str, FaultProxy],
    cluster: Cluster,
    queue_type: str,
) -> None:
    """Connections stay open, but nothing passes until heartbeats and confirms are overdue."""
    start_behind_proxies(cluster, proxies, queue_type)

    claimers = cluster.nodes_with_claims()
    proxies["nodes"].hold(*BOTH_WAYS)
    cluster.wait_for(now() + FAULT)
    for node in claimers:
        node.process.wait_for_log("broker unreachable: ", TIMEOUT)
    proxies["nodes"].restore()
    cluster.wait_for_recovery(f"nodes - RabbitMQ: partition, {queue_type} queue")

    missed = rabbitmq_server.log.count(MISSED)
    proxies["workers"].hold(*BOTH_WAYS)
    cluster.wait_for(now() + FAULT)
    wait_until(
        lambda: rabbitmq_server.log.count(MISSED) >= missed + len(cluster.workers),
        TIMEOUT,
        what="RabbitMQ to close the connections of the workers",
    )
    for worker in cluster.workers:
        worker.process.wait_for_log("Connection to broker lost", TIMEOUT)
    proxies["workers"].restore()
    cluster.wait_for_recovery(f"workers - RabbitMQ: partition, {queue_type} queue")
    cluster.account()
