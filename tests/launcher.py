"""Start the Python processes of the tests by forking one that has already imported the packages.

Importing Django, Celery and the database driver takes most of the time that a node or a worker
needs to start. The launcher imports them once per session. It imports nothing of this project and
no settings, so a forked process behaves as if it had been started alone.

`Launched` starts a process through the launcher and has the methods of `subprocess.Popen` that the
tests use. It connects to the launcher's Unix socket, sends what to run as JSON, and receives the
process's pid, later its exit code.
"""

import contextlib
import gc
import importlib
import json
import math
import os
import runpy
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

PRELOADED = (
    "celery.apps.worker",
    "celery.bin.celery",
    "celery.concurrency.prefork",
    "celery.concurrency.thread",
    "croniter",
    "django.contrib.admin.apps",
    "django.contrib.auth.hashers",
    "django.contrib.staticfiles.apps",
    "django.core.management",
    "django.db.models",
    "django.forms",
    "django.test.client",
    "django.utils.autoreload",
    "django_redis.cache",
    "kombu.transport.redis",
)
SLICE = 0.1
"""Seconds that one thread waits for the exit code, while others can't."""
DRIVERS = {
    "sqlite": "django.db.backends.sqlite3.base",
    "postgresql": "django.db.backends.postgresql.base",
    "mariadb": "django.db.backends.mysql.base",
}


class Launched:
    """A process that the launcher at ``address`` runs: `python -m <module> <arguments>`.

    Its output goes to the end of the file ``log``.
    """

    def __init__(
        self, address: Path, arguments: Sequence[str], env: Mapping[str, str], log: Path
    ) -> None:
        self.args = list(arguments)
        self.returncode: int | None = None
        self._reading = threading.Lock()
        self._connection = socket.socket(socket.AF_UNIX)
        self._connection.connect(str(address))
        request = {"arguments": self.args, "env": dict(env), "log": str(log)}
        self._replies = self._connection.makefile("r", encoding="utf-8")
        self._connection.sendall(json.dumps(request).encode() + b"\n")
        self.pid = int(self._replies.readline())

    def poll(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code. Raise `subprocess.TimeoutExpired` after ``timeout`` seconds."""
        deadline = time.monotonic() + (math.inf if timeout is None else timeout)
        while not self._has_ended(min(SLICE, max(deadline - time.monotonic(), 0))):
            if time.monotonic() >= deadline:
                raise subprocess.TimeoutExpired(self.args, timeout or 0)
        assert self.returncode is not None
        return self.returncode

    def _has_ended(self, timeout: float) -> bool:
        """Read the exit code if it arrives in time. Another thread may have read it already."""
        with self._reading:
            if self.returncode is None:
                with selectors.DefaultSelector() as selector:
                    selector.register(self._connection, selectors.EVENT_READ)
                    if not selector.select(timeout):
                        return False
                self.returncode = int(self._replies.readline())
                self._replies.close()
                self._connection.close()
            return True


def main(address: str, driver: str) -> list[str]:
    """Serve requests until the launcher is terminated.

    Return only in a new process, with the module to run and its arguments.
    """
    for name in (*PRELOADED, DRIVERS[driver]):
        importlib.import_module(name)
    gc.freeze()  # so that collections in the processes don't copy these objects
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address)
    listener.listen()
    wakeup, ended = socket.socketpair()
    ended.setblocking(False)
    signal.set_wakeup_fd(ended.fileno())
    signal.signal(signal.SIGCHLD, lambda *_: None)
    connections: dict[int, socket.socket] = {}
    with selectors.DefaultSelector() as selector:
        selector.register(listener, selectors.EVENT_READ)
        selector.register(wakeup, selectors.EVENT_READ)
        while True:
            ready = {key.fileobj for key, _ in selector.select()}
            if wakeup in ready:
                wakeup.recv(4096)
                _report_ended(connections)
            if listener in ready:
                connection, _ = listener.accept()
                with connection.makefile("r", encoding="utf-8") as lines:
                    line = lines.readline()
                if not line:  # a check that the launcher is running
                    connection.close()
                    continue
                request = json.loads(line)
                if pid := os.fork():
                    connections[pid] = connection
                    connection.sendall(f"{pid}\n".encode())
                    continue
                for each in (listener, wakeup, ended, connection, *connections.values()):
                    each.close()
                break
    _become(request)
    return list(request["arguments"])


def _report_ended(connections: dict[int, socket.socket]) -> None:
    while connections:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        with connections.pop(pid) as connection, contextlib.suppress(OSError):
            connection.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())


def _become(request: dict[str, object]) -> None:
    """Give this process the environment and output of the request, as if it had been executed."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()  # Ctrl-C reaches only pytest, which stops its processes
    log = os.open(str(request["log"]), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    os.environ.clear()
    os.environ.update(request["env"])  # type: ignore[call-overload]


if __name__ == "__main__":
    # The module runs outside `main`, so that it ends like the main module of any process.
    _module, *_options = main(*sys.argv[1:])
    sys.argv[1:] = _options
    runpy.run_module(_module, run_name="__main__", alter_sys=True)
