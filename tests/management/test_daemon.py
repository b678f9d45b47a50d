"""Test ``manage.py dcron start, stop, restart, state`` with real nodes in the background.

This is the setup of a machine without a supervisor.
"""

import json
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psutil
import pytest
from django.core.management import call_command
from django.core.management.base import CommandError

from django_dcron.management.dcron import detached, node_arguments, start_options
from django_dcron.management.dcron.pid_file import PidFile
from django_dcron.models import Node, Run
from django_dcron.scheduler.health_file import probe
from tests.conftest import StartProcess
from tests.factories import make_idle_job, make_job, make_run
from tests.management.calling import call
from tests.waiting import TIMEOUT, wait_until

DOCUMENT = (Path(__file__).resolve().parents[2] / "docs" / "how-to" / "deployment.md").read_text()
WITHOUT_A_SUPERVISOR = DOCUMENT[DOCUMENT.index("## Without a supervisor") :]
SETTINGS = os.environ["DJANGO_SETTINGS_MODULE"]
RunSubcommand = Callable[..., tuple[int, str]]


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    """The path of the pid file. A process that still holds it at the end is killed."""
    path = tmp_path / "dcron.pid"
    yield path
    with PidFile(path).open_holder() as holder:
        if holder and holder.signal(signal.SIGKILL):
            assert holder.wait_for_end(TIMEOUT)


@pytest.fixture
def log_path(tmp_path: Path) -> Path:
    return tmp_path / "dcron.log"


@pytest.fixture
def dcron(start_process: StartProcess, path: Path) -> RunSubcommand:
    """Run a subcommand in a separate process, and return its exit code and output."""

    def run_subcommand(
        subcommand: str, *options: str, env: dict[str, str] | None = None
    ) -> tuple[int, str]:
        command = ["-m", "django", "dcron", subcommand, "--pid-file", str(path), *options]
        process = start_process(f"dcron-{subcommand}", *command, env=env)
        return process.wait(TIMEOUT), process.log.strip()

    return run_subcommand


@pytest.fixture
def start_node(dcron: RunSubcommand, path: Path, log_path: Path) -> Callable[..., int]:
    """Start a node in the background and return its process id."""

    def start_node(*options: str) -> int:
        code, message = dcron(
            "start", "--daemon", "--embedded", "--name", "a", "--log-file", str(log_path), *options
        )
        assert code == 0, message
        found = re.fullmatch(rf"a is running: process (\d+), log {log_path}", message)
        assert found, message
        return int(found[1])

    return start_node


def run_here(*arguments: str) -> tuple[int, str]:
    """Run a subcommand in this process, and return its exit code and output."""
    code, out, error = call(*arguments)
    return code, out + error


def is_alive(pid: int) -> bool:
    """Return whether the process is running. A zombie isn't."""
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def test_documented_commands_start_restart_and_stop_node(
    start_process: StartProcess, path: Path, log_path: Path
) -> None:
    """Run the commands of the documentation."""
    commands = re.findall(r"^manage\.py dcron (.*)$", WITHOUT_A_SUPERVISOR, re.MULTILINE)
    start, state, restart, stop = (
        command.replace("/var/lib/shop", str(path.parent))
        .replace("/var/log/shop", str(path.parent))
        .split()
        for command in commands
    )
    code, text = run_here(*state)
    assert (code, f"{path} doesn't exist." in text, "dcron nodes" in text) == (3, True, True)
    code, text = run_here(*stop)
    assert (code, f"{path} doesn't exist." in text, "dcron nodes" in text) == (0, True, True)
    assert "kill -TERM PID" in text

    starting = start_process(
        "dcron-start", "-m", "django", "dcron", *start, "--embedded", "--namespace", "shop"
    )
    assert starting.wait(TIMEOUT) == 0
    pid = PidFile(path).holder()
    assert starting.log == f"berlin-1 is running: process {pid}, log {log_path}\n"
    assert pid is not None
    node = Node.objects.get()
    assert (node.name, node.pid, node.namespace) == ("berlin-1", pid, "shop")
    assert os.getsid(pid) != os.getsid(0)
    code, message = run_here(*state, "--json")
    assert code == 0
    shown = json.loads(message)
    assert shown["version"] == 1
    assert (shown["state"], shown["pid"], shown["fit"], shown["log_file"]) == (
        "running",
        pid,
        True,
        str(log_path),
    )
    code, message = run_here(*start)
    assert code == 1
    assert f"process {pid} has locked {path}" in message

    old = log_path.rename(log_path.with_suffix(".1"))
    os.kill(pid, signal.SIGHUP)
    wait_until(log_path.exists, TIMEOUT, what="the log to be reopened")
    assert "node started: node=berlin-1" in old.read_text()
    restarting = start_process("dcron-restart", "-m", "django", "dcron", *restart)
    assert restarting.wait(TIMEOUT) == 0
    stopped, started = restarting.log.splitlines()
    assert f"process {pid}." in stopped
    assert started.startswith("berlin-1 is running: process ")
    assert "node stopped: node=berlin-1" in log_path.read_text()
    assert "node stopped: node=berlin-1" not in old.read_text()
    another = Node.objects.get()
    assert (another.name, another.namespace) == ("berlin-1", "shop")
    assert another.pid == PidFile(path).holder() != pid

    assert run_here(*stop) == (0, f"The node has stopped: process {another.pid}.\n")
    assert not is_alive(another.pid), "a new node couldn't use its port"
    assert not Node.objects.exists()
    assert not path.exists()
    assert run_here(*state)[0] == 3


def test_stop_cleans_up_after_killed_node(start_node: Callable[..., int], path: Path) -> None:
    at = ("--pid-file", str(path))
    job = make_job()
    start_node()
    wait_until(
        lambda: Run.objects.filter(job=job, state="succeeded").exists(), TIMEOUT, what="a run"
    )
    wait_until(lambda: "health   a is ok" in run_here("state", *at)[1], TIMEOUT, what="its health")
    assert probe(f"{path}.health").fit
    with PidFile(path).open_holder() as holder:
        assert holder is not None
        assert holder.signal(signal.SIGKILL)
        assert holder.wait_for_end(TIMEOUT)
    assert run_here("state", *at) == (
        1,
        f"The node was killed: {path} exists, but its process has ended.",
    )
    path.write_text(f"{os.getpid()}\n")  # as if the process id had been reused
    code, message = run_here("stop", *at)
    assert code == 0
    assert "Removed its pid file" in message
    assert str(path) in message
    assert run_here("state", *at)[0] == 3


def test_stop_times_out_while_draining_and_force_kills(
    start_node: Callable[..., int], path: Path, log_path: Path
) -> None:
    at = ("--pid-file", str(path))
    stuck = make_run(make_idle_job(target="tests.app.tasks.slow", args=[300.0]))
    pid = start_node()
    wait_until(
        lambda: Run.objects.filter(state="running").exists(), TIMEOUT, what="the run to start"
    )
    for _ in range(2):  # a second signal would make the node exit at once
        code, message = run_here("stop", *at, "--timeout", "1s")
        assert code == 1
        assert message.startswith(f"Process {pid} is still draining after 1.0 s")
    wait_until(
        lambda: "node stopping: node=a running=1 " in log_path.read_text(),
        TIMEOUT,
        what="the log line",
    )
    assert PidFile(path).holder() == pid
    assert run_here("stop", *at, "--timeout", "0s", "--force") == (
        0,
        f"The node was killed: process {pid}.\n",
    )
    assert run_here("state", *at)[0] == 3
    stuck.refresh_from_db()
    assert stuck.state == "running", "another node rescues it"


def test_start_reports_failure_with_log_of_this_start(
    dcron: RunSubcommand, path: Path, log_path: Path, tmp_path: Path
) -> None:
    log_path.write_text("of yesterday\n")
    unwritable = tmp_path / "none" / "health.json"
    code, message = dcron(
        "start",
        "--daemon",
        "--embedded",
        "--log-file",
        str(log_path),
        "--health-file",
        str(unwritable),
    )
    assert code == 1
    assert f"({log_path}):\n  CommandError: can't start: the health file" in message
    assert "of yesterday" not in message
    assert not path.exists()
    assert run_here("state", "--pid-file", str(path))[0] == 3


def test_concurrent_starts_run_one_node(
    start_process: StartProcess, path: Path, log_path: Path
) -> None:
    command = ["-m", "django", "dcron", "start", "--daemon", "--embedded", "--pid-file", str(path)]
    both = [start_process("dcron-start", *command, "--log-file", str(log_path)) for _ in range(2)]
    codes = sorted(process.wait(TIMEOUT) for process in both)
    assert codes == [0, 1], [process.log for process in both]
    refused = next(process for process in both if process.exit_code == 1)
    assert "A node is already running: process " in refused.log
    assert Node.objects.count() == 1


CLOSED = """
import os, sys
for fd in (0, 1, 2):
    os.close(fd)
os.execv(sys.executable, [sys.executable, "-m", "django", *sys.argv[1:]])
"""


def test_start_works_without_standard_streams(
    start_process: StartProcess, path: Path, log_path: Path
) -> None:
    """Some programs start their child processes without standard streams."""
    at = ("--pid-file", str(path))
    start = ("dcron", "start", "--daemon", "--embedded", *at, "--log-file", str(log_path))
    assert start_process("closed", "-c", CLOSED, *start).wait(TIMEOUT) == 0
    assert run_here("state", *at)[0] == 0
    assert run_here("stop", *at)[0] == 0


def test_foreground_node_with_pid_file_can_be_stopped(
    start_process: StartProcess, path: Path
) -> None:
    at = ("--pid-file", str(path))
    node = start_process(
        "dcron-start", "-m", "django", "dcron", "start", "--embedded", "--name", "a", *at
    )
    node.wait_for_log("node started: node=a", TIMEOUT)
    assert PidFile(path).holder() == node.pid
    code, message = run_here("state", *at)
    assert code == 0
    assert re.search(
        r"^health +last heartbeat of a: (just now|\d+ (s|min) ago)$", message, re.MULTILINE
    ), message
    code, message = run_here("restart", *at)
    assert code == 2
    assert "foreground" in message
    assert run_here("stop", *at)[0] == 0
    assert node.wait(TIMEOUT) == 0
    assert not path.exists()


# --- without a second process -------------------------------------------------------------------


def test_foreground_start_calls_runcron(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    called: list[list[str]] = []
    monkeypatch.setattr(
        node_arguments, "run_in_foreground", lambda arguments: called.append(list(arguments))
    )
    monkeypatch.chdir(tmp_path)
    assert run_here("start", "--name", "a", "--for", "2.5", "--verbosity", "0") == (0, "")
    assert run_here("start", "--once", "--verbosity", "0") == (0, "")
    call_command("dcron", "start", "--embedded", skip_checks=False)
    assert called == [
        [
            "--name=a",
            "--for=2.5",
            "--skip-checks",
            "--verbosity=0",
        ],  # the options as ``call_command`` gets them
        ["--once", "--skip-checks", "--verbosity=0"],
        ["--embedded", "--verbosity=1"],
    ]
    assert not list(tmp_path.iterdir())


def test_passed_arguments_are_valid_runcron_options() -> None:
    arguments = [
        "--name=a",
        "--namespace=b",
        "--for=3",
        "--embedded",
        "--health-file=/c",
        "--http=127.0.0.1:8001",
    ]
    node_arguments.check_runcron_arguments([*arguments, "--verbosity=2"])
    with pytest.raises(CommandError, match="--nonsense"):
        node_arguments.check_runcron_arguments(["--nonsense"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--log-file", "x"), "--log-file needs --daemon"),
        (("--daemon", "--once"), "--once can't be combined with --daemon"),
        (("--once", "--for", "1h"), "--for can't be combined with --once"),
        (("--timeout", "10s"), "--timeout needs --daemon"),
        (("--daemon", "--timeout", "soon"), "--timeout 'soon'"),
        (
            ("--daemon", "--log-file", "/none/such.log"),
            "--log-file /none/such.log isn't writable: No such file",
        ),
        (
            ("--daemon", "--log-file", "/dev/null", "--pid-file", "/none/such.pid"),
            "/none/such.pid: No such file or directory.",
        ),
    ],
)
def test_invalid_options_are_refused(
    options: tuple[str, ...], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, answer = run_here("start", *options)
    assert code == 2
    assert message in answer
    assert not list(tmp_path.iterdir())


def test_start_that_takes_too_long_names_the_command_that_stops_the_node(path: Path) -> None:
    since, file = datetime.now(UTC), PidFile(path)
    with open(os.devnull, "rb") as pipe, pytest.raises(CommandError) as refused:
        detached._wait(pipe, file, since, timedelta(), read_log=lambda: "Log: empty")
    *_, last = str(refused.value).splitlines()
    assert last == f"To stop it: manage.py dcron stop --pid-file {path}"


def test_daemon_requires_python_daemon(monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
    monkeypatch.setitem(sys.modules, "daemon", None)
    code, message = run_here("start", "--daemon", "--pid-file", str(path))
    assert (code, message) == (2, "--daemon needs python-daemon: pip install django-dcron[daemon]")


def test_restart_with_invalid_options_keeps_node_running(path: Path, log_path: Path) -> None:
    file = PidFile(path)
    code, message = run_here("restart", "--pid-file", str(path))
    assert code == 2
    assert f"{path}.options" in message
    assert message.endswith(f"manage.py dcron start --daemon --pid-file {path}")
    options = start_options.StartOptions(
        True, "/", str(log_path), "", "2026-11-20T12:00:00+00:00", SETTINGS, ["--gone=1"]
    )
    start_options.store_options(file, options)
    assert start_options.load_options(file) == options
    with file:  # the lock makes this process the node, so a stop would end the test
        code, message = run_here("restart", "--pid-file", str(path))
        assert code == 2
        assert "Error: unrecognized arguments: --gone=1" in message
        assert file.holder() == os.getpid()


def test_restart_requires_directory_of_start(path: Path, log_path: Path, tmp_path: Path) -> None:
    """A deploy may have replaced the directory."""
    file, gone = PidFile(path), tmp_path / "gone"
    since = "2026-11-20T12:00:00+00:00"
    start_options.store_options(
        file, start_options.StartOptions(True, str(gone), str(log_path), "", since, SETTINGS, [])
    )
    with file:  # the lock makes this process the node, so a stop would end the test
        code, message = run_here("restart", "--pid-file", str(path))
        assert code == 2
        assert str(gone) in message
        assert file.holder() == os.getpid()


def test_restart_requires_settings_of_start(path: Path, log_path: Path) -> None:
    """A shell or a crontab line may have other settings, and so another database."""
    file = PidFile(path)
    since = "2026-11-20T12:00:00+00:00"
    start_options.store_options(
        file, start_options.StartOptions(True, "/", str(log_path), "", since, "shop.production", [])
    )
    with file:  # the lock makes this process the node, so a stop would end the test
        code, message = run_here("restart", "--pid-file", str(path))
        assert code == 2
        assert "--settings shop.production" in message
        assert file.holder() == os.getpid()


@pytest.mark.django_db
@pytest.mark.parametrize("started_at", ["", "yesterday", "2026-11-20T12:00:00"])
def test_state_without_a_readable_start_time_reports_the_node(path: Path, started_at: str) -> None:
    file = PidFile(path)
    start_options.store_options(
        file, start_options.StartOptions(True, "/", "dcron.log", "", started_at, SETTINGS, [])
    )
    with file:
        code, shown = run_here("state", "--pid-file", str(path))
    assert (code, "running" in shown, "dcron.log" in shown) == (0, True, True)


def test_state_with_unreadable_pid_file_exits_with_4(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    code, message = run_here("state", "--pid-file", str(tmp_path / "file" / "dcron.pid"))
    assert code == 4
    assert message.endswith(": Not a directory.")


def test_detaching_keeps_own_files_but_not_inherited_ones(tmp_path: Path) -> None:
    """The files of the project's log handlers belong to the process."""
    with (tmp_path / "own").open("w") as own, (tmp_path / "inherited").open("w") as inherited:
        os.set_inheritable(inherited.fileno(), True)
        files = detached.own_files()
        assert own.fileno() in files
        assert inherited.fileno() not in files


def test_log_that_cannot_be_reopened_is_kept(tmp_path: Path) -> None:
    """Otherwise a full disk would end the process."""
    log_path = tmp_path / "none" / "dcron.log"
    reading, writing = os.pipe()
    before = os.dup(2)
    os.dup2(writing, 2)
    try:
        detached._reopening(log_path)(signal.SIGHUP, None)
    finally:
        os.dup2(before, 2)
        for fd in (before, writing):
            os.close(fd)
    with open(reading, "rb") as shown:
        assert b"dcron.log can't be reopened, " in shown.read()
