"""Run a node in the background: a separate process without a terminal (python-daemon).

The starting process waits until the node is up. It detects the node's exit through a pipe that only
the new process keeps open. It detects that the node is up from the database, where the node
registers.
"""

from __future__ import annotations

import os
import platform
import select
import shlex
import signal
import sys
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from types import FrameType
from typing import Any, BinaryIO, NoReturn, TextIO

from django.db import DatabaseError, InterfaceError, connections

from django_dcron.db.now import database_now
from django_dcron.db.routing import alias_for
from django_dcron.management.dcron.exits import negative_result, usage_error
from django_dcron.management.dcron.output import duration_text
from django_dcron.management.dcron.pid_file import PidFile
from django_dcron.models import Node
from django_dcron.utils.control_characters import escape_control_characters

CHECK_EVERY = 0.1
SHOWN_LINES = 20


def start_node(
    node: Callable[[], None], pid_file: PidFile, log_file: Path, directory: str, timeout: timedelta
) -> Node:
    """Run ``node`` in a new process that locks ``pid_file``, and wait until the node is up.

    Returns in the calling process. Raises ``CommandError`` if the node exits, or isn't up within
    ``timeout``.
    """
    make_context = _python_daemon()
    # Fail here rather than in the log if the file is locked or unusable.
    pid_file.clear()
    log = _open_log_file(log_file)
    before = log.tell()
    since = database_now(alias_for(Node))
    connections.close_all()  # Two processes must not share open connections.
    reading, writing = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child == 0:
        os.close(reading)
        _be_daemon(make_context, node, pid_file, log, directory, writing)
    os.close(writing)
    os.waitpid(child, 0)  # The child has forked again and exited.
    with log, open(reading, "rb", buffering=0) as pipe:
        return _wait(
            pipe, pid_file, since, timeout, read_log=lambda: _new_log_lines(log_file, before)
        )


def check_can_detach(log_file: Path, directory: Path) -> None:
    """Raise ``CommandError`` if ``start_node`` would fail to prepare the process."""
    _python_daemon()
    if not directory.is_dir():
        raise usage_error(
            f"The node's working directory {directory} no longer exists. Stop the node and start "
            "it again."
        )
    _open_log_file(log_file).close()


def _python_daemon() -> Callable[..., Any]:
    try:
        from daemon import DaemonContext  # type: ignore[import-untyped]
    except ImportError:
        raise usage_error(
            "--daemon needs python-daemon: pip install django-dcron[daemon]"
        ) from None
    make_context: Callable[..., Any] = DaemonContext
    return make_context


def _open_log_file(log_file: Path) -> TextIO:
    try:
        return log_file.open("a", encoding="utf-8")
    except OSError as error:
        raise usage_error(f"--log-file {log_file} isn't writable: {error.strerror}.") from error


def _be_daemon(
    make_context: Callable[..., Any],
    node: Callable[[], None],
    pid_file: PidFile,
    log: TextIO,
    directory: str,
    report_to: int,
) -> NoReturn:
    """Become the daemon process and run the node; never returns to the caller."""
    umask = os.umask(0o022)
    context = make_context(
        working_directory=directory,
        umask=umask,
        detach_process=True,
        files_preserve=own_files(),
        stdout=log,
        stderr=log,
        signal_map={
            signal.SIGTERM: "terminate",  # until the node handles it
            signal.SIGHUP: _reopening(Path(log.name)),
            signal.SIGTSTP: None,
            signal.SIGTTIN: None,
            signal.SIGTTOU: None,
        },
    )
    context.open()
    with pid_file:
        os.write(report_to, f"{os.getpid()}\n".encode())
        node()
    sys.exit(0)


def own_files() -> list[int]:
    """Return the descriptors that this process opened, such as log files, which stay open.

    Descriptors inherited from the caller, such as a shell script's lock, are closed.
    """
    return [fd for fd in map(int, os.listdir("/dev/fd")) if _is_own(fd)]


def _is_own(fd: int) -> bool:
    try:
        return not os.get_inheritable(fd)  # Python opens nothing inheritable
    except OSError:  # the descriptor used to read the directory
        return False


def _reopening(log_file: Path) -> Callable[[int, FrameType | None], None]:
    """Return the handler of SIGHUP, which redirects the log to the file now at the path."""

    def reopen(number: int, frame: FrameType | None) -> None:
        try:
            fd = os.open(log_file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        except OSError as error:
            os.write(2, f"{log_file} can't be reopened, using the old file: {error}\n".encode())
            return
        os.dup2(fd, 1)
        os.dup2(fd, 2)
        os.close(fd)

    return reopen


def _wait(
    pipe: BinaryIO,
    pid_file: PidFile,
    since: datetime,
    timeout: timedelta,
    read_log: Callable[[], str],
) -> Node:
    pid = b""
    deadline = time.monotonic() + timeout.total_seconds()
    while time.monotonic() < deadline:
        if select.select([pipe], [], [], CHECK_EVERY)[0]:
            chunk = pipe.read(64)
            if not chunk:  # The other end is closed.
                raise negative_result(f"The node didn't start. {read_log()}")
            pid += chunk
        if pid.endswith(b"\n") and (node := _find_node(int(pid), since)):
            return node
    stop = shlex.join(["manage.py", "dcron", "stop", "--pid-file", str(pid_file.path)])
    raise negative_result(
        f"The node isn't running after {duration_text(timeout)} and keeps trying. {read_log()}\n"
        f"To stop it: {stop}"
    )


def _find_node(pid: int, since: datetime) -> Node | None:
    try:
        nodes = Node.objects.using(alias_for(Node))
        return nodes.filter(host=platform.node(), pid=pid, started_at__gte=since).first()
    except (DatabaseError, InterfaceError):  # The node has the same problem and will report it.
        connections.close_all()
        return None


def _new_log_lines(log_file: Path, before: int) -> str:
    """Return what the node has logged since its start."""
    with log_file.open("rb") as log:
        log.seek(before)
        lines = escape_control_characters(log.read().decode(errors="replace")).splitlines()[
            -SHOWN_LINES:
        ]
    indented = "".join(f"\n  {line}" for line in lines)
    return f"Log ({log_file}):{indented}" if lines else f"The log {log_file} is empty."
