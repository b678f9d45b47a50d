"""Test pid files. The lock of the file, not its content, decides which process holds it."""

import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from django.core.management.base import CommandError

from django_dcron.management.dcron import pid_file
from django_dcron.management.dcron.pid_file import Holder, PidFile
from tests.waiting import TIMEOUT, wait_until

IMPORTS = """
import sys
from django_dcron.management.dcron.pid_file import PidFile
"""
HOLD = f"""
{IMPORTS}
try:
    with PidFile(sys.argv[1]):
        print("held", flush=True)
        sys.stdin.read()
except Exception as error:
    print(error, flush=True)
"""
RELEASE = f"""
{IMPORTS}
with PidFile(sys.argv[1]):
    print(flush=True)
    input()
print(flush=True)
input()
"""
Hold = Callable[[], "subprocess.Popen[str]"]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "dcron.pid"


@pytest.fixture
def hold(path: Path) -> Iterator[Hold]:
    """Start another process that locks the file, or tries to, until its input ends."""
    started: list[subprocess.Popen[str]] = []

    def start() -> "subprocess.Popen[str]":
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        started.append(
            subprocess.Popen([sys.executable, "-c", HOLD, str(path)], text=True, **pipes)
        )
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


def signal_holder(path: Path, number: signal.Signals) -> int | None:
    """Signal the holder; return its pid, or None if no process was signaled."""
    with PidFile(path).open_holder() as holder:
        return holder.pid if holder and holder.signal(number) else None


def request_stop(path: Path) -> int | None:
    with PidFile(path).open_holder() as holder:
        if holder is None:
            return None
        holder.request_stop()
        return holder.pid


def message(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_holder_is_known_until_it_ends(path: Path, hold: Hold) -> None:
    file = PidFile(path)
    assert file.holder() is None
    process = hold()
    assert message(process) == "held"
    assert file.holder() == process.pid == int(path.read_text())
    with (
        pytest.raises(CommandError, match=f" {process.pid} "),
        file,
    ):
        pass
    process.communicate()
    assert file.holder() is None
    assert not path.exists()


def test_killed_holder_leaves_file_but_no_lock(path: Path, hold: Hold) -> None:
    process = hold()
    assert message(process) == "held"
    assert signal_holder(path, signal.SIGKILL) == process.pid
    process.wait(TIMEOUT)
    assert path.read_text() == f"{process.pid}\n"
    assert PidFile(path).holder() is None
    with PidFile(path):
        assert path.read_text() == f"{os.getpid()}\n"
    assert not path.exists()


def test_reused_process_id_is_not_signalled(path: Path) -> None:
    command = [sys.executable, "-c", "input()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as innocent:
        path.write_text(f"{innocent.pid}\n")
        file = PidFile(path)
        assert file.holder() is None
        assert signal_holder(path, signal.SIGTERM) is None
        assert request_stop(path) is None
        innocent.communicate(b"\n")
        assert innocent.returncode == 0


def test_process_id_reused_during_signal_is_not_signalled(
    path: Path, hold: Hold, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process id may be reused between the lookup and the signal."""
    process = hold()
    assert message(process) == "held"
    open_process = pid_file._open_process

    def late(pid: int) -> int | None:
        process.communicate()
        return open_process(os.getpid())  # as if the process id had been reused

    monkeypatch.setattr(pid_file, "_open_process", late)
    arrived: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda number, frame: arrived.append(number))
    try:
        assert signal_holder(path, signal.SIGUSR1) is None
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert not arrived


def test_only_one_of_many_processes_gets_lock(path: Path, hold: Hold) -> None:
    processes = [hold() for _ in range(5)]
    answers = [message(process) for process in processes]
    assert answers.count("held") == 1, answers
    winner = processes[answers.index("held")]
    refusals = [answer for answer in answers if answer != "held"]
    assert all(f"process {winner.pid} has" in refusal for refusal in refusals), answers


def test_lock_on_replaced_file_is_ignored(path: Path, hold: Hold) -> None:
    first = hold()
    assert message(first) == "held"
    path.unlink()
    assert PidFile(path).holder() is None
    second = hold()
    assert message(second) == "held"
    first.communicate()
    assert PidFile(path).holder() == second.pid, "the first removed a file that isn't its own"


def test_locking_is_retried_if_file_is_replaced(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The previous holder removes the file when it exits, after this process has opened it."""
    lock, replaced = fcntl.lockf, []

    def late(fd: int, how: int) -> None:
        if not replaced:
            replaced.append(path.unlink())
            path.touch()
        lock(fd, how)

    monkeypatch.setattr("django_dcron.management.dcron.pid_file.fcntl.lockf", late)
    with PidFile(path):
        assert path.read_text() == f"{os.getpid()}\n"
        assert replaced


def test_lookup_in_holder_keeps_lock(path: Path, hold: Hold) -> None:
    """A job that runs inside the node may look up the holder."""
    with PidFile(path):
        assert PidFile(path).holder() == os.getpid()
        other = hold()
        assert f"process {os.getpid()} has locked" in message(other)


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_forked_child_does_not_inherit_lock(path: Path) -> None:
    reading, writing = os.pipe()
    with PidFile(path):
        child = os.fork()
        if child == 0:
            os.write(writing, str(PidFile(path).holder()).encode())
            os._exit(0)
        os.waitpid(child, 0)
        assert int(os.read(reading, 32)) == os.getpid()
    os.close(reading)
    os.close(writing)


def test_signal_works_without_pidfd_open(
    path: Path, hold: Hold, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "pidfd_open", raising=False)
    process = hold()
    assert message(process) == "held"
    assert signal_holder(path, signal.SIGTERM) == process.pid
    wait_until(lambda: PidFile(path).holder() is None, what="the process to end")
    assert process.wait(TIMEOUT) == -signal.SIGTERM


def test_stop_is_requested_only_once(
    path: Path, hold: Hold, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node exits at once on a second signal."""
    process = hold()
    assert message(process) == "held"
    os.kill(process.pid, signal.SIGSTOP)
    # The signal takes effect later. Until then, the process could still end.
    wait_until(lambda: psutil.Process(process.pid).status() == psutil.STATUS_STOPPED)
    file = PidFile(path)
    with file.open_holder() as holder:
        assert holder is not None
        holder.request_stop()
        assert (path.parent / "dcron.pid.stopping").exists()
        signals: list[int] = []
        monkeypatch.setattr(Holder, "signal", lambda self, number: signals.append(number))
        holder.request_stop()
        monkeypatch.undo()
        assert not signals
        assert not holder.wait_for_end(0)
        os.kill(process.pid, signal.SIGCONT)
        assert holder.wait_for_end(30)
    with file:
        assert not (path.parent / "dcron.pid.stopping").exists(), "it belongs to an earlier process"


def test_wait_for_end_also_waits_for_a_process_that_has_released_the_file(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pid_file, "EXIT_TIMEOUT", 0)
    process = subprocess.Popen(
        [sys.executable, "-c", RELEASE, str(path)],
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdin is not None
    message(process)
    with PidFile(path).open_holder() as holder:
        assert holder is not None
        process.stdin.write("release the file\n")
        process.stdin.flush()
        message(process)
        assert PidFile(path).holder() is None
        assert not holder.wait_for_end(0)
        process.communicate("end\n")
        assert holder.wait_for_end(0)


def test_refused_signal_is_not_recorded_as_request(
    path: Path, hold: Hold, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*arguments: object) -> None:
        raise PermissionError

    process = hold()
    assert message(process) == "held"
    monkeypatch.setattr(signal, "pidfd_send_signal", refused, raising=False)
    monkeypatch.setattr(os, "kill", refused)
    with pytest.raises(CommandError, match=f" {process.pid}\\b"):
        request_stop(path)
    monkeypatch.undo()
    assert request_stop(path) == process.pid
    assert process.wait(TIMEOUT) == -signal.SIGTERM


def test_unusable_path_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "no" / "such.pid"):
        with (
            pytest.raises(CommandError, match=f"{path}: ") as refused,
            PidFile(path),
        ):
            pass
        assert refused.value.returncode == 2


def test_symbolic_link_is_not_followed(path: Path, tmp_path: Path) -> None:
    """Otherwise any user with write access to the directory could make a node empty other files."""
    precious = tmp_path / "precious"
    precious.write_text("keep me")
    path.symlink_to(precious)

    for use in (lambda: PidFile(path).__enter__(), lambda: PidFile(path).holder()):
        with pytest.raises(CommandError, match=f"{path}: "):
            use()

    assert precious.read_text() == "keep me"
    assert path.is_symlink()


def test_named_pipe_is_refused_without_waiting_for_a_writer(path: Path) -> None:
    os.mkfifo(path)
    assert PidFile(path).holder() is None
    with pytest.raises(CommandError, match=f"{path}: "):
        PidFile(path).__enter__()


def test_dangling_symbolic_link_creates_no_file(path: Path, tmp_path: Path) -> None:
    path.symlink_to(tmp_path / "new")
    with pytest.raises(CommandError, match=f"{path}: "):
        PidFile(path).__enter__()
    assert not (tmp_path / "new").exists()
