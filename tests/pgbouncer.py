"""A PgBouncer that pools transactions, in front of the session's PostgreSQL."""

import shutil
from contextlib import ExitStack
from pathlib import Path

import psycopg
from django.db import connections

from tests import services, settings
from tests.services import free_ports, system_program

POOL_SIZE = 5
LIMITS = ("lock_timeout", "idle_in_transaction_session_timeout", "statement_timeout")


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
            f"pool_mode = transaction\ndefault_pool_size = {POOL_SIZE}\n"
        )
        command = [system_program("pgbouncer", "pgbouncer"), config]
        socket = directory / f".s.PGSQL.{self.port}"
        if owner := postgresql.popen.get("user"):  # PgBouncer refuses to run as root
            shutil.chown(directory, owner)
        super().__init__("pgbouncer", command, socket, **postgresql.popen)

    def start(self) -> None:
        Path(self.answers_at).unlink(missing_ok=True)  # of a process that was killed
        super().start()

    @property
    def client_env(self) -> dict[str, str]:
        """The environment of a process that reaches the test database through this pool."""
        return {"DCRON_TEST_DATABASE_PORT": str(self.port)}

    def connect(self) -> "psycopg.Connection[tuple[object, ...]]":
        """Return a connection of an unrelated client."""
        name = connections["default"].settings_dict["NAME"]
        return psycopg.connect(host="127.0.0.1", port=self.port, user="postgres", dbname=name)

    def limits_of_servers(self) -> dict[object, tuple[object, ...]]:
        """Return what an unrelated client finds on each server connection, by process id.

        The client has a transaction on all server connections at the same time.
        """
        names = ", ".join(f"current_setting('{name}')" for name in LIMITS)
        found = {}
        with ExitStack() as stack:
            for _ in range(POOL_SIZE):
                client = stack.enter_context(self.connect())
                row = client.execute(f"SELECT pg_backend_pid(), {names}").fetchone()
                assert row is not None
                found[row[0]] = row[1:]
        assert len(found) == POOL_SIZE
        return found
