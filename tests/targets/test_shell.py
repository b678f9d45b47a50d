"""Shell commands as targets: real processes."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from pytest_django import Settings

from django_dcron import targets
from django_dcron.exceptions import InvalidArguments, RunCancelled, UnknownTarget
from django_dcron.targets import Invocation, ShellFailed, TargetKind, process_guard, shell
from django_dcron.targets.process_guard import ProcessGuard
from tests.docs.test_documents import ROOT
from tests.refusals import refusal
from tests.waiting import TIMEOUT


def python(code: str, *more: str) -> list[str]:
    return [sys.executable, "-c", code, *more]


def run(settings: Settings, argv: list[str], *args: Any) -> Any:
    settings.DCRON_SHELL = {"job": argv}
    return targets.get("shell:job").call(Invocation(list(args)))


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return Path(f"/proc/{pid}/stat").exists() and " Z " in Path(f"/proc/{pid}/stat").read_text()


def wait_for(condition: Any, seconds: float = 10) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_command_named_in_settings_is_a_target(settings: Settings) -> None:
    settings.DCRON_SHELL = {"backup": ["/usr/bin/pg_dump", "--password=secret"]}

    target = targets.get("shell:backup")
    assert (target.key, target.kind, target.route_name) == ("shell:backup", TargetKind.SHELL, None)
    assert target.description == "Runs pg_dump"  # the arguments may be confidential
    assert "shell:backup" in targets.available()
    names = {"target": "'shell:bakcup'", "near": "'shell:backup'"}
    with refusal(UnknownTarget, "unknown_target", **names) as caught:
        targets.get("shell:bakcup")
    assert "DCRON_SHELL" in str(caught.value.params["why"])


def test_output_and_errors_go_to_stdout_in_order(
    settings: Settings, capsys: pytest.CaptureFixture[str]
) -> None:
    code = (
        "import sys; print('one', flush=True); print('zwei ü', file=sys.stderr, flush=True); "
        "print('end', end='')"
    )
    assert run(settings, python(code)) is None
    assert capsys.readouterr() == ("one\nzwei ü\nend", "")


def test_undecodable_bytes_are_replaced_across_chunks(
    settings: Settings, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shell, "CHUNK_SIZE", 7)
    run(
        settings,
        python(r"import sys; sys.stdout.buffer.write(b'\xff' + 30 * b'a\xc3\xbc' + b'\r\nx\xc3')"),
    )
    assert capsys.readouterr().out == "�" + 30 * "aü" + "\r\nx�"


def test_arguments_are_not_interpreted_by_a_shell(
    settings: Settings, capsys: pytest.CaptureFixture[str]
) -> None:
    run(settings, ["echo", "{}", "; exit 3", "$HOME"], "a b", 7, "`id`")
    assert capsys.readouterr().out == "a b 7 `id` ; exit 3 $HOME\n"


def test_arguments_are_accepted_only_with_a_placeholder(settings: Settings) -> None:
    settings.DCRON_SHELL = {"fixed": ["echo"], "open": ["echo", "--", "{}"]}
    fixed, opened = targets.get("shell:fixed"), targets.get("shell:open")

    fixed.check_arguments([], {})
    opened.check_arguments(["a", 1, 2.5], {})
    for target, args, kwargs, code, params, field in [
        (fixed, ["a"], {}, "no_arguments", {"target": "shell:fixed", "place": "{}"}, "args"),
        (opened, [True], {}, "not_text", {"value": "True"}, "args"),
        (opened, [["a"]], {}, "not_text", {"value": "['a']"}, "args"),
        (opened, ["a\0b"], {}, "not_text", {"value": r"'a\x00b'"}, "args"),
        (opened, [], {"a": 1}, "by_name", {"name": "'a'"}, "kwargs"),
    ]:
        with pytest.raises(InvalidArguments) as caught:
            target.check_arguments(args, kwargs)
        assert (caught.value.code, caught.value.params) == (code, params)
        assert caught.value.field == field


OPTIONS = ["-x", "--checkpoint-action=exec=sh", "-", "--", -1, -0.5]


@pytest.mark.parametrize("argument", OPTIONS)
@pytest.mark.parametrize("argv", [["echo", "{}"], ["echo", "{}", "--"], ["echo", "--", "{}"]])
def test_option_like_argument_is_accepted_only_after_double_dash(
    settings: Settings, capsys: pytest.CaptureFixture[str], argv: list[str], argument: Any
) -> None:
    settings.DCRON_SHELL = {"job": argv}
    target = targets.get("shell:job")
    if argv[1] == "--":
        target.check_arguments([argument], {})
        target.call(Invocation([argument]))
        assert capsys.readouterr().out == f"-- {argument}\n"
        return
    for given in ([argument], ["a", argument]):
        with refusal(InvalidArguments, "option", field="args", value=repr(argument)):
            target.check_arguments(given, {})
        with pytest.raises(InvalidArguments):  # arguments stored earlier or without validation
            target.call(Invocation(given))
    assert capsys.readouterr().out == ""


def test_call_with_unaccepted_arguments_is_refused(settings: Settings) -> None:
    settings.DCRON_SHELL = {"fixed": ["echo"]}
    with pytest.raises(InvalidArguments):
        targets.get("shell:fixed").call(Invocation(["a"]))


def test_nonzero_exit_code_raises_shell_failed(settings: Settings) -> None:
    with pytest.raises(ShellFailed) as caught:
        run(settings, python("print('disk full'); print(); raise SystemExit(3)"))
    assert (caught.value.exit_code, caught.value.last_line) == (3, "disk full")
    with pytest.raises(ShellFailed) as caught:
        run(settings, ["false"])
    assert (caught.value.exit_code, caught.value.last_line) == (1, "")


@pytest.mark.parametrize(
    ("number", "name"),
    [(signal.SIGTERM, "SIGTERM"), (signal.SIGRTMIN + 1, f"signal {signal.SIGRTMIN + 1}")],
)
def test_error_names_the_signal_that_killed_the_command(
    settings: Settings, number: int, name: str
) -> None:
    with pytest.raises(ShellFailed, match=rf"^job .*{name}$"):
        run(settings, python(f"import os; os.kill(os.getpid(), {number:d})"))


def test_missing_program_raises_file_not_found(settings: Settings) -> None:
    with pytest.raises(FileNotFoundError):
        run(settings, ["/no/such/program"])


def test_call_waits_for_a_command_that_closes_its_output(settings: Settings) -> None:
    with pytest.raises(ShellFailed, match="4"):
        run(
            settings,
            python("import os, time; os.close(1); os.close(2); time.sleep(.5); os._exit(4)"),
        )


def test_call_does_not_wait_for_background_processes(
    settings: Settings, capsys: pytest.CaptureFixture[str]
) -> None:
    start = time.monotonic()
    run(settings, ["sh", "-c", "sleep 30 & echo $!"])
    assert time.monotonic() - start < 10
    os.kill(int(capsys.readouterr().out), signal.SIGKILL)


@pytest.mark.parametrize("ignores_sigterm", [False, True])
def test_interruption_kills_the_whole_process_group(
    settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    ignores_sigterm: bool,
) -> None:
    """The exception is sent to the thread while the command is silent, as in a thread pool.

    The command prints a line first. Otherwise the exception might arrive while Python still starts
    it.
    """
    import ctypes

    monkeypatch.setattr(shell, "TERMINATION_SECONDS", 0.3)
    pids, ended = tmp_path / "pids", []
    trap = "trap '' TERM;" if ignores_sigterm else ""
    settings.DCRON_SHELL = {
        "job": ["sh", "-c", f"{trap} sleep 60 & echo $$ $! > {pids}; echo up; wait; wait"]
    }
    target = targets.get("shell:job")

    def work() -> None:
        try:
            target.call(Invocation())
        except RunCancelled as error:
            ended.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    wait_for(lambda: "up" in capsys.readouterr().out, 30)
    assert thread.ident
    ctypes.pythonapi.PyThreadState_SetAsyncExc(
        ctypes.c_ulong(thread.ident), ctypes.py_object(RunCancelled)
    )
    thread.join(TIMEOUT)

    assert not thread.is_alive()
    assert len(ended) == 1
    for pid in map(int, pids.read_text().split()):
        wait_for(lambda pid=pid: gone(pid), 30)


@pytest.mark.parametrize(
    ("trap", "seconds"), [("trap 'echo ended > ended; exit' TERM;", 60), ("trap '' TERM;", 0)]
)
def test_death_of_the_process_ends_the_whole_process_group(
    tmp_path: Path, trap: str, seconds: int
) -> None:
    """A command that handles SIGTERM can end by itself. Otherwise, it is killed."""
    command = f"{trap} sleep 600 & echo $$ $! > pids; echo up; wait"
    code = (
        "from django_dcron.targets import Invocation, shell\n"
        f"shell.TERMINATION_SECONDS = {seconds}\n"
        f"shell.ShellTarget('job', ['sh', '-c', {command!r}]).call(Invocation())"
    )
    with subprocess.Popen(
        [sys.executable, "-u", "-c", code],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    ) as process:
        assert process.stdout
        assert process.stdout.readline() == b"up\n"
        process.kill()
    for pid in map(int, (tmp_path / "pids").read_text().split()):
        wait_for(lambda pid=pid: gone(pid), TIMEOUT)
    assert (tmp_path / "ended").exists() == bool(seconds)


FORKS = """
import os, sys, threading, time
from django_dcron.targets import Invocation, process_guard, shell
target = shell.ShellTarget("job", ["sh", "-c", "echo $$ > pid.new; mv pid.new pid; exec sleep 600"])
threading.Thread(target=lambda: target.call(Invocation())).start()
end = time.monotonic() + float(sys.argv[1])
while not (process_guard._guards and os.path.exists("pid")):
    if time.monotonic() > end:
        if os.path.exists("pid"):
            os.killpg(int(open("pid").read()), 9)
        os._exit(1)
    time.sleep(0.01)
child = os.fork()
if not child:
    time.sleep(600)
print(child, flush=True)
"""


def test_command_ends_although_a_forked_child_of_the_process_lives(tmp_path: Path) -> None:
    """The child inherits the process's end of the guard's pipe."""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        python(FORKS, str(TIMEOUT)), cwd=tmp_path, stdout=subprocess.PIPE, env=environment
    ) as process:
        assert process.stdout
        line = process.stdout.readline()
        assert line, "no command with a guard"
        child = int(line)
        process.kill()
        try:
            wait_for(lambda: gone(int((tmp_path / "pid").read_text())), TIMEOUT)
            assert not gone(child)
        finally:
            os.kill(child, signal.SIGKILL)


def test_fork_waits_until_the_pipe_of_a_new_guard_can_be_closed_in_the_child() -> None:
    code = """
import os, threading
from django_dcron.targets import process_guard
open_pipe, pipes = os.pipe, []
def fork():
    if child := os.fork():
        statuses.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    else:
        os._exit(os.path.exists(f"/proc/self/fd/{pipes[0][1]}"))
forking, statuses = threading.Thread(target=fork), []
def pipe_during_fork():
    if not pipes:
        pipes.append(open_pipe())
        forking.start()
        forking.join(1)  # times out, because the fork waits for the guard
        return pipes[0]
    return open_pipe()
os.pipe = pipe_during_fork
guard = process_guard.ProcessGuard(os.getpgrp(), 0)
forking.join()
guard.dismiss()
raise SystemExit(statuses != [0])
"""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    subprocess.run(
        python(code), env=environment, timeout=TIMEOUT, check=True, start_new_session=True
    )


def test_forked_child_dismisses_a_guard_that_belongs_to_its_parent() -> None:
    code = """
import os
from django_dcron.targets.process_guard import ProcessGuard
guard = ProcessGuard(os.getpgrp(), 0)
child = os.fork()
guard.dismiss()
if child:
    raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    subprocess.run(
        python(code), env=environment, timeout=TIMEOUT, check=True, start_new_session=True
    )


def test_guard_exits_with_the_command(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    guards: list[ProcessGuard] = []

    class RecordedGuard(ProcessGuard):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            guards.append(self)

    monkeypatch.setattr(shell, "ProcessGuard", RecordedGuard)
    run(settings, ["sh", "-c", "sleep 600 > /dev/null 2>&1 & echo $!"])
    pid = int(capsys.readouterr().out)
    assert not gone(pid), "the guard ended a process that the command left in the background"
    os.kill(pid, signal.SIGKILL)
    (guard,) = guards
    assert guard._process
    assert guard._process.returncode == 0


def test_command_runs_without_a_guard_where_there_is_no_sh(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(process_guard, "SHELL", "/nonexistent/sh")
    run(settings, ["true"])
    assert "shell command has no guard" in caplog.text
    assert "/nonexistent/sh" in caplog.text
