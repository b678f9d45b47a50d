"""PostgreSQL fails over: its primary is killed, and its standby is promoted.

All processes reach the database through a proxy, which the test redirects to the standby, as a
virtual IP address would be. Synchronous replication must lose nothing. Asynchronous replication
loses the transactions that the standby hasn't received: occurrences in them run again.
"""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from django.db import connection, connections

from django_dcron.models import Attempt
from tests import services, settings
from tests.cluster.cluster import TIMEOUT, Cluster, now, shorter_durations
from tests.cluster.database_copy import DatabaseCopy, use
from tests.fault_proxy import FaultProxy, Way
from tests.verdict.judgement import judge
from tests.waiting import wait_until

pytestmark = [pytest.mark.chaos, pytest.mark.postgresql, pytest.mark.nightly]

NAME = "standby"
QUICK = shorter_durations(REDELIVER_AFTER=5, RUN_LEASE=10)


class Standby(DatabaseCopy):
    """A copy of the primary that follows it."""

    def __init__(self, primary: services.Server) -> None:
        self.stream = FaultProxy(primary.answers_at)
        """The proxy between primary and standby, for the replication stream."""
        source = f"host=127.0.0.1 port={self.stream.port} application_name={NAME}"
        super().__init__(NAME, primary, settings.DIRECTORY / NAME, "-R", source=source)

    def promote(self) -> None:
        self.run_program("pg_ctl", "promote", "-D", self.directory, "-w")


@pytest.fixture
def standby(
    cluster: Cluster, database_server: services.Server | None
) -> Iterator[Callable[[str], Standby]]:
    """Start a standby. The tests' own server is the primary again after the test."""
    assert database_server is not None
    made: list[Standby] = []

    def start(synchronous: str) -> Standby:
        made.append(Standby(database_server))
        made[0].start()
        with connection.cursor() as cursor:
            cursor.execute(f"ALTER SYSTEM SET synchronous_standby_names = '{synchronous}'")
            cursor.execute("SELECT pg_reload_conf()")
            wait_until(lambda: is_followed(synchronous), TIMEOUT, what="the standby to follow")
        return made[0]

    yield start
    use(database_server)
    for each in made:
        each.stop()
        each.stream.close()
        shutil.rmtree(each.directory)
    if not database_server.running:
        # Without the standby, each commit would wait.
        with Path(database_server.answers_at.parent, "postgresql.auto.conf").open("a") as file:
            file.write("synchronous_standby_names = ''\n")
        database_server.start()
    with connection.cursor() as cursor:
        cursor.execute("SET synchronous_commit = local")
        cursor.execute("ALTER SYSTEM RESET synchronous_standby_names")
        cursor.execute("SELECT pg_reload_conf()")
    connections.close_all()


def is_followed(synchronous: str) -> bool:
    state = "sync" if synchronous else "async"
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_stat_replication WHERE sync_state = %s", [state])
        return bool(cursor.fetchone()[0])


def fail_over(proxy: FaultProxy, primary: services.Server, standby: Standby) -> None:
    proxy.cut()
    standby.stream.cut()
    primary.kill()
    standby.promote()
    use(standby)
    proxy.server = standby.answers_at
    proxy.restore()


@pytest.fixture
def proxy(database_server: services.Server | None) -> Iterator[FaultProxy]:
    assert database_server is not None
    proxy = FaultProxy(database_server.answers_at)
    yield proxy
    proxy.close()


def start(cluster: Cluster, proxy: FaultProxy) -> None:
    cluster.doctor_env = {"DCRON_TEST_DATABASE_PORT": str(proxy.port)}
    env = QUICK | cluster.doctor_env
    cluster.start(jobs=4, node_env=env, worker_env=env)
    cluster.run_for(5)


def test_synchronous_failover_loses_nothing(
    cluster: Cluster,
    proxy: FaultProxy,
    database_server: services.Server,
    standby: Callable[[str], Standby],
) -> None:
    replica = standby(NAME)
    start(cluster, proxy)
    failed_at = now()
    fail_over(proxy, database_server, replica)
    cluster.wait_for_recovery("PostgreSQL failover, synchronous", since=failed_at)
    cluster.account()


def test_asynchronous_failover_repeats_lost_runs(
    cluster: Cluster,
    proxy: FaultProxy,
    database_server: services.Server,
    standby: Callable[[str], Standby],
) -> None:
    """The standby misses the last runs before the failure."""
    replica = standby("")
    start(cluster, proxy)
    replica.stream.hold(Way.TO_CLIENT)
    replicated = Attempt.objects.count()
    wait_until(lambda: Attempt.objects.count() >= replicated + 6, TIMEOUT, what="runs to be lost")
    failed_at = now()
    fail_over(proxy, database_server, replica)
    cluster.wait_for_recovery("PostgreSQL failover, asynchronous", since=failed_at)
    with pytest.raises(AssertionError, match="started"):
        cluster.account()
    assert cluster.history is not None
    verdict = judge(cluster.history)
    assert verdict.totals.lost == 0
    repeated = [finding for finding in verdict.findings if finding.rule == "starts"]
    assert repeated, "no run of the lost transactions was repeated"
    assert {finding.rule for finding in verdict.findings} <= {"starts", "order", "overlaps"}
