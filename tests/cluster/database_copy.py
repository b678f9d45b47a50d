"""A second PostgreSQL server: a copy of the tests' server whose faults don't affect the other."""

import shutil
import subprocess
from pathlib import Path

from django.db import connections

from tests import services


class DatabaseCopy(services.PostgresqlServer):
    """A server whose data directory is copied from ``primary``, which keeps working."""

    def __init__(
        self, name: str, primary: services.Server, directory: Path, *options: str, source: str = ""
    ) -> None:
        """``source`` are the parameters of the connection to the primary, by default its socket.

        ``options`` are those of ``pg_basebackup``.
        """
        self.directory = directory
        given = [option for option in primary.command if option.startswith("-c")]
        command = [primary.command[0], "-D", directory, "-k", directory, "-h", "", *given]
        super().__init__(name, command, directory / ".s.PGSQL.5432", **primary.popen)
        directory.mkdir()
        if owner := primary.popen.get("user"):
            shutil.chown(directory, owner)
        directory.chmod(0o700)
        source = f"{source or f'host={primary.answers_at.parent}'} user=postgres"
        self.run_program("pg_basebackup", "-d", source, "-D", directory, "-c", "fast", *options)
        for copied in directory.glob(".s.PGSQL.*"):  # the primary's socket is in its directory
            copied.unlink()

    def run_program(self, program: str, *arguments: str | Path) -> None:
        command = [str(Path(self.command[0]).parent / program), *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, cwd="/", **self.popen)
        assert done.returncode == 0, f"{program} failed:\n{done.stdout}\n{done.stderr}"


def use(server: services.Server) -> None:
    """Let this process use the server."""
    connections.close_all()
    for settings in (connections.settings["default"], connections["default"].settings_dict):
        settings["HOST"] = str(server.answers_at.parent)
