"""Each link between processes and servers fails: packets are lost, late, or answered by a reset.

All nodes reach a server through one proxy, all workers through another one.
"""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from django_dcron.models import Attempt
from tests import services, settings
from tests.cluster.cluster import SECOND, TIMEOUT, Cluster, now, shorter_durations
from tests.cluster.link_faults import LASTING_FAULTS, MOMENTARY_FAULTS, break_link
from tests.fault_proxy import FaultProxy
from tests.silent_proxy import SOCKETS
from tests.waiting import wait_until

pytestmark = [pytest.mark.chaos, pytest.mark.postgresql, pytest.mark.mariadb]

FAULT = 8 * SECOND
"""Duration of a fault: longer than the lease (6 s) and than the shortened run lease."""
SHORTER = {"REDELIVER_AFTER": 5, "RUN_LEASE": 5}


class Links:
    """The proxies, by who uses them and the server."""

    def __init__(self, redis: services.Server, stack: ExitStack) -> None:
        self.proxies: dict[tuple[str, str], FaultProxy] = {}
        for who in ("nodes", "workers"):
            for name, socket in (
                ("database", SOCKETS[settings.DATABASE]),
                ("Redis", redis.answers_at),
            ):
                proxy = self.proxies[who, name] = FaultProxy(socket)
                stack.callback(proxy.close)

    def env(self, who: str) -> dict[str, str]:
        return shorter_durations(**SHORTER) | {
            "DCRON_TEST_DATABASE_PORT": str(self.proxies[who, "database"].port),
            "DCRON_TEST_REDIS": f"127.0.0.1:{self.proxies[who, 'Redis'].port}",
        }

    def start(self, cluster: Cluster, **worker_env: str) -> None:
        envs = {"node_env": self.env("nodes"), "worker_env": self.env("workers") | worker_env}
        cluster.start(jobs=4, **envs)


@pytest.fixture
def links(redis_server: services.Server) -> Iterator[Links]:
    with ExitStack() as stack:
        yield Links(redis_server, stack)


def test_connections_are_reset_in_the_middle_of_an_answer(cluster: Cluster, links: Links) -> None:
    links.start(cluster)
    for (who, server), proxy in links.proxies.items():
        break_link(cluster, proxy, "reset within an answer", FAULT)
        cluster.wait_for_recovery(f"{who} - {server}: reset within an answer")
    cluster.account()


def test_workers_give_up_half_open_connections_to_redis(cluster: Cluster, links: Links) -> None:
    """This includes the connections of Celery's pool, on which workers answer the nodes' pings.

    kombu checks its connections every 25 s by default. Here it checks them every 5 s.
    """
    links.start(cluster, DCRON_TEST_HEARTBEAT="5")
    for _ in range(2):  # the second time, all connections have been used
        break_link(cluster, links.proxies["workers", "Redis"], "half-open", FAULT)
        cluster.wait_for_recovery("workers - Redis: half-open, checked every 5 s")
        wait_for_both_workers()
    cluster.account()


def wait_for_both_workers() -> None:
    """Wait until each worker starts an attempt. One of them suffices for all jobs to be on time.

    The other one may have lost a message, which only a node sends again.
    """
    since = now()

    def both_work() -> bool:
        names = Attempt.objects.filter(started_at__gt=since).values_list("worker", flat=True)
        return len({name.partition("/")[0] for name in names}) == 2

    wait_until(both_work, TIMEOUT, what="both workers to start an attempt", interval=0.2)


@pytest.mark.nightly
@pytest.mark.parametrize("server", ["database", "Redis"])
@pytest.mark.parametrize("who", ["nodes", "workers"])
def test_no_run_is_lost_on_a_broken_link(
    cluster: Cluster, links: Links, who: str, server: str
) -> None:
    links.start(cluster)
    for fault in [*LASTING_FAULTS, *MOMENTARY_FAULTS]:
        break_link(cluster, links.proxies[who, server], fault, FAULT)
        cluster.wait_for_recovery(f"{who} - {server}: {fault}")
    cluster.account()
