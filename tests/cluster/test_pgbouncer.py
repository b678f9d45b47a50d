"""All processes reach PostgreSQL through PgBouncer, which pools transactions and is killed.

Session settings then apply to transactions of other clients. No guarantee depends on them.
"""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import services, settings
from tests.cluster.cluster import Cluster, now, shorter_durations
from tests.services import free_ports, system_program

pytestmark = [pytest.mark.chaos, pytest.mark.postgresql, pytest.mark.nightly]


class PgBouncer(services.Server):
    def __init__(self, postgresql: services.Server) -> None:
        directory = settings.DIRECTORY / "pgbouncer"
        directory.mkdir()
        (self.port,) = free_ports(1)
        config, users = directory / "pgbouncer.ini", directory / "users.txt"
        users.write_text('"postgres" ""\n')
        config.write_text(
            "[databases]\n"
            f"* = host={postgresql.answers_at.parent}\n"
            "[pgbouncer]\n"
            f"listen_addr = 127.0.0.1\nlisten_port = {self.port}\nunix_socket_dir = {directory}\n"
            f"auth_type = trust\nauth_file = {users}\n"
            "pool_mode = transaction\ndefault_pool_size = 5\n"
        )
        command = [system_program("pgbouncer", "pgbouncer"), config]
        socket = directory / f".s.PGSQL.{self.port}"
        if owner := postgresql.popen.get("user"):  # PgBouncer refuses to run as root
            shutil.chown(directory, owner)
        super().__init__("pgbouncer", command, socket, **postgresql.popen)

    def start(self) -> None:
        Path(self.answers_at).unlink(missing_ok=True)  # of a process that was killed
        super().start()


@pytest.fixture
def pgbouncer(database_server: services.Server | None) -> Iterator[PgBouncer]:
    assert database_server is not None
    server = PgBouncer(database_server)
    server.start()
    yield server
    server.stop()
    shutil.rmtree(server.answers_at.parent)


@pytest.mark.timeout(240)
def test_no_run_is_lost_behind_a_transaction_pool(cluster: Cluster, pgbouncer: PgBouncer) -> None:
    env = shorter_durations(REDELIVER_AFTER=5) | {"DCRON_TEST_DATABASE_PORT": str(pgbouncer.port)}
    cluster.start(jobs=6, nodes=3, node_env=env, worker_env=env)
    cluster.run_for(5)
    for _ in range(3):
        pgbouncer.kill()
        killed_at = now()
        pgbouncer.start()
        cluster.wait_for_recovery("PgBouncer killed and restarted", since=killed_at)
    cluster.account()
