"""RabbitMQ as the broker: no batches there, but queues that outlive it and an answer for what it has taken."""

import pytest

from django_dcron.models import Run
from tests import services
from tests.cluster.cluster import PATIENCE, Cluster, frozen, lowered
from tests.waiting import wait_until

pytestmark = [pytest.mark.chaos, pytest.mark.postgresql, pytest.mark.mariadb]


@pytest.mark.nightly
@pytest.mark.timeout(240)
def test_rabbitmq_killed_and_started_again(
    cluster: Cluster, rabbitmq_server: services.RabbitmqServer
) -> None:
    env = lowered(REDELIVER_AFTER=10) | {"DCRON_TEST_BROKER": rabbitmq_server.url}
    cluster.start(jobs=6, node_env=env, worker_env=env)
    cluster.run_for(5)
    quiet = Run.objects.filter(scheduled_at__gt=cluster.after, state="succeeded", deliveries__lte=1)
    wait_until(lambda: quiet.count() >= 6 * 3, PATIENCE, what="runs")
    with frozen(cluster.workers):
        handed_over = Run.objects.queued()
        wait_until(lambda: handed_over.count() >= 12, PATIENCE, what="messages in the queue")
        rabbitmq_server.kill()
    at_work = cluster.at_work()
    for node in at_work:
        node.process.wait_for_log("does not take runs", PATIENCE)
    rabbitmq_server.start()
    for node in at_work:
        node.process.wait_for_log(f"127.0.0.1:{rabbitmq_server.port}// is back", PATIENCE)
    cluster.account()
    for node in cluster.nodes:
        log = node.process.log
        assert log.count("does not take runs") == log.count(" is back") == (node in at_work)
        assert "degraded" not in log, "the locks are elsewhere"
        assert not node.exits
