"""RabbitMQ as the broker: it has no batches, but durable queues and publisher confirms."""

import pytest

from django_dcron.models import Run
from tests import services
from tests.cluster.cluster import TIMEOUT, Cluster, frozen, lowered
from tests.waiting import wait_until

pytestmark = [pytest.mark.chaos, pytest.mark.postgresql, pytest.mark.mariadb]


@pytest.mark.nightly
@pytest.mark.timeout(240)
def test_no_run_is_lost_when_rabbitmq_is_killed_and_restarted(
    cluster: Cluster, rabbitmq_server: services.RabbitmqServer
) -> None:
    env = lowered(REDELIVER_AFTER=10) | {"DCRON_TEST_BROKER": rabbitmq_server.url}
    cluster.start(jobs=6, node_env=env, worker_env=env)
    cluster.run_for(5)
    quiet = Run.objects.filter(scheduled_at__gt=cluster.after, state="succeeded", deliveries__lte=1)
    wait_until(lambda: quiet.count() >= 6 * 3, TIMEOUT, what="runs")
    with frozen(cluster.workers):
        dispatched = Run.objects.queued()
        wait_until(lambda: dispatched.count() >= 12, TIMEOUT, what="messages in the queue")
        rabbitmq_server.kill()
    claimers = cluster.nodes_with_claims()
    for node in claimers:
        node.process.wait_for_log("broker unreachable: ", TIMEOUT)
    rabbitmq_server.start()
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
