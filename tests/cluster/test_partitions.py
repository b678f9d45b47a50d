"""One node of three loses the database, the broker or answers to queries: others do its work."""

from collections.abc import Iterator

import pytest

from django_dcron.models import Node, Run
from django_dcron.policies.lifecycle import FINAL
from tests import services, settings
from tests.cluster.cluster import IN_ALL_SHARDS, SECOND, TIMEOUT, Cluster, now, shorter_durations
from tests.silent_proxy import SOCKETS, SilentProxy
from tests.waiting import wait_until

pytestmark = [pytest.mark.chaos, pytest.mark.postgresql, pytest.mark.mariadb, pytest.mark.nightly]


@pytest.fixture
def database_proxy() -> Iterator[SilentProxy]:
    proxy = SilentProxy(SOCKETS[settings.DATABASE])
    yield proxy
    proxy.close()


@pytest.fixture
def broker_proxy(redis_server: services.Server) -> Iterator[SilentProxy]:
    proxy = SilentProxy(redis_server.answers_at)
    yield proxy
    proxy.close()


def leads(name: str) -> bool:
    return Node.objects.live(6 * SECOND).filter(name=name, shards__gt=0).exists()


def wait_for_all_due(what: str) -> None:
    """Wait until each job has a run beyond those claimed so far, and these runs have ended."""
    begin = now() + 11 * SECOND
    end = begin + 9 * SECOND
    wait_until(lambda: now() > end, TIMEOUT, what="nine seconds of the schedule", interval=0.1)
    due = Run.objects.filter(scheduled_at__gt=begin, scheduled_at__lte=end)

    def done() -> bool:
        jobs = due.order_by().values("job").distinct().count()
        return jobs == IN_ALL_SHARDS["jobs"] and not due.exclude(state__in=FINAL).exists()

    wait_until(done, TIMEOUT, what=what, interval=0.2)


def test_other_nodes_work_for_a_node_without_database_or_broker(
    cluster: Cluster, database_proxy: SilentProxy, broker_proxy: SilentProxy
) -> None:
    quick = shorter_durations(REDELIVER_AFTER=10)
    cluster.start(**IN_ALL_SHARDS, nodes=2, node_env=quick, worker_env=quick)
    proxied = {
        "DCRON_TEST_DATABASE_PORT": str(database_proxy.port),
        "DCRON_TEST_BROKER": f"redis://127.0.0.1:{broker_proxy.port}/1",
    }
    third = cluster.add_node(env=quick | proxied)
    wait_until(lambda: leads("node-2"), TIMEOUT, what="a share for the third node", interval=0.1)

    database_proxy.cut()
    wait_for_all_due("the work of a node without database")
    database_proxy.restore()
    wait_until(lambda: leads("node-2"), TIMEOUT, what="its share after the database", interval=0.1)

    broker_proxy.cut()
    third.process.wait_for_log("broker unreachable, shards released", TIMEOUT)
    wait_for_all_due("the work of a node without broker")
    broker_proxy.restore()
    wait_until(lambda: leads("node-2"), TIMEOUT, what="its share after the broker", interval=0.1)

    accepted = database_proxy.accepted
    database_proxy.fall_silent()
    wait_until(lambda: database_proxy.accepted > accepted, TIMEOUT, what="new connections")
    third.process.wait_for_log("silent database connection replaced: ", TIMEOUT)
    wait_until(lambda: leads("node-2"), TIMEOUT, what="its share after the silence", interval=0.1)

    cluster.account()
    assert not third.exits, "the node never exited"
