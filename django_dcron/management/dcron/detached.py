"""A node in the background: a process of its own, without a terminal (python-daemon), and the wait until it is a node.

Whoever starts it learns of its end through a pipe that only the new process holds open, and that it is up from the
database, where a node enters itself.
"""

from __future__ import annotations

import os
import platform
import select
import signal
import sys
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from types import FrameType
from typing import Any, BinaryIO, NoReturn, TextIO

from django.db import DatabaseError, InterfaceError, connections

from django_dcron.management.dcron.exits import cannot, no
from django_dcron.management.dcron.output import span
from django_dcron.management.dcron.pid_file import PidFile
from django_dcron.management.dcron.plain_text import printable
from django_dcron.models import Node
from django_dcron.models.database import alias_for, database_now

LOOK_EVERY = 0.1
SHOWN_LINES = 20


def start_node(
    node: Callable[[], None], pid_file: PidFile, log_file: Path, directory: str, patience: timedelta
) -> Node:
    """Have ``node`` called in a process of its own, which holds ``pid_file`` meanwhile. Returns in the process that asked, once
    the other is a node; raises ``CommandError`` if it will not be one, or not within ``patience``."""
    make_context = _python_daemon()
    pid_file.clear()  # now, and not in the log: it may be held, or of no use
    log = _opened(log_file)
    before = log.tell()
    since = database_now(alias_for(Node))
    connections.close_all()  # what is open is not for two processes
    reading, writing = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child == 0:
        os.close(reading)
        _be_daemon(make_context, node, pid_file, log, directory, writing)
    os.close(writing)
    os.waitpid(child, 0)  # it has forked again, and left
    with log, open(reading, "rb", buffering=0) as told:
        return _wait(told, since, patience, said=lambda: _said(log_file, before))


def check(log_file: Path, directory: Path) -> None:
    """Raises ``CommandError`` if ``start_node`` could not do its part."""
    _python_daemon()
    if not directory.is_dir():
        raise cannot(
            f"Its working directory, {directory}, is not there any more: stop it, and start it anew."
        )
    _opened(log_file).close()


def _python_daemon() -> Callable[..., Any]:
    try:
        from daemon import DaemonContext  # type: ignore[import-untyped]
    except ImportError:
        raise cannot("--daemon needs python-daemon: pip install django-dcron[daemon]") from None
    make_context: Callable[..., Any] = DaemonContext
    return make_context


def _opened(log_file: Path) -> TextIO:
    try:
        return log_file.open("a", encoding="utf-8")
    except OSError as error:
        raise cannot(f"--log-file {log_file} cannot be written: {error.strerror}.") from error


def _be_daemon(
    make_context: Callable[..., Any],
    node: Callable[[], None],
    pid_file: PidFile,
    log: TextIO,
    directory: str,
    tell: int,
) -> NoReturn:
    """The new process's whole life: it never goes back to whoever called."""
    umask = os.umask(0o022)
    context = make_context(
        working_directory=directory,
        umask=umask,
        detach_process=True,
        files_preserve=own_files(),
        stdout=log,
        stderr=log,
        signal_map={
            signal.SIGTERM: "terminate",  # until the node listens itself
            signal.SIGHUP: _reopening(Path(log.name)),
            signal.SIGTSTP: None,
            signal.SIGTTIN: None,
            signal.SIGTTOU: None,
        },
    )
    context.open()
    with pid_file:
        os.write(tell, f"{os.getpid()}\n".encode())
        node()
    sys.exit(0)


def own_files() -> list[int]:
    """What this program has opened, such as the files of its log handlers: they stay open. What was handed down to it by whoever
    called it, a lock of a shell script say, is let go of."""
    return [fd for fd in map(int, os.listdir("/dev/fd")) if _is_own(fd)]


def _is_own(fd: int) -> bool:
    try:
        return not os.get_inheritable(fd)  # Python opens nothing inheritable
    except OSError:  # the one with which the directory was read
        return False


def _reopening(log_file: Path) -> Callable[[int, FrameType | None], None]:
    """What SIGHUP does: the log goes to the file that is at the path now."""

    def reopen(number: int, frame: FrameType | None) -> None:
        try:
            fd = os.open(log_file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        except OSError as error:
            os.write(2, f"{log_file} cannot be opened anew, the old one is kept: {error}\n".encode())
            return
        os.dup2(fd, 1)
        os.dup2(fd, 2)
        os.close(fd)

    return reopen


def _wait(told: BinaryIO, since: datetime, patience: timedelta, said: Callable[[], str]) -> Node:
    pid = b""
    deadline = time.monotonic() + patience.total_seconds()
    while time.monotonic() < deadline:
        if select.select([told], [], [], LOOK_EVERY)[0]:
            heard = told.read(64)
            if not heard:  # the other end is closed
                raise no(f"The node did not come up. {said()}")
            pid += heard
        if pid.endswith(b"\n") and (node := _registered(int(pid), since)):
            return node
    raise no(f"It is not up yet after {span(patience)}, and goes on trying; dcron stop ends it. {said()}")


def _registered(pid: int, since: datetime) -> Node | None:
    try:
        nodes = Node.objects.using(alias_for(Node))
        return nodes.filter(host=platform.node(), pid=pid, started_at__gte=since).first()
    except (DatabaseError, InterfaceError):  # the node has the same trouble, and will tell
        connections.close_all()
        return None


def _said(log_file: Path, before: int) -> str:
    """What it has logged since it was started."""
    with log_file.open("rb") as log:
        log.seek(before)
        lines = printable(log.read().decode(errors="replace")).splitlines()[-SHOWN_LINES:]
    indented = "".join(f"\n  {line}" for line in lines)
    return f"Its log, {log_file}, says:{indented}" if lines else f"Its log, {log_file}, says nothing."
