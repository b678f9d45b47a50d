"""Call a function in a forked process with limits."""

from __future__ import annotations

import ctypes
import json
import os
import resource
import select
import shutil
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn

MEMORY = 4 << 30
TIMEOUT = 6
"""A process may wait without using processor time for this many times its limit, for example for a
lock.
"""


PR_SET_PDEATHSIG = 1
"""Linux: the signal that a process gets when its parent exits."""


class TimedOut(Exception):
    """The process exceeded its time limit."""


class Died(Exception):
    """The process exited without an answer."""


def forked(function: Callable[[], Any], seconds: float | None = None) -> Any:
    """Call the function in a silent fork of this process and return its result, which must be JSON.

    ``seconds`` is the limit of processor time.
    """
    reader, writer = os.pipe()
    sys.stdout.flush()
    pid = os.fork()
    if not pid:
        os.close(reader)
        _answer(function, writer, seconds)
    os.close(writer)
    answer, idle, used = b"", 0, -1.0
    try:
        with os.fdopen(reader, "rb", buffering=0) as pipe:
            while idle < TIMEOUT:
                if select.select([pipe], [], [], seconds)[0]:
                    if not (more := pipe.read(65536)):
                        break
                    answer += more
                else:
                    before, used = used, _processor_time(pid)
                    idle = idle + 1 if used == before else 0
    finally:
        os.kill(pid, signal.SIGKILL)  # it has finished, or this process has to exit
        _, status = os.waitpid(pid, 0)
    if idle == TIMEOUT or (os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGXCPU):
        raise TimedOut
    if not answer:
        raise Died
    return json.loads(answer)


def _processor_time(pid: int) -> float:
    """Return the ticks that the process has used, or always 0 where ``/proc`` doesn't exist."""
    try:
        user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    except FileNotFoundError:
        return 0.0
    return float(user) + float(system)


def _answer(function: Callable[[], Any], writer: int, seconds: float | None) -> NoReturn:
    try:
        with suppress(AttributeError):  # only Linux has it
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        silence = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silence, 1)
        if seconds is not None:
            os.dup2(silence, 2)
            used = resource.getrusage(resource.RUSAGE_SELF)
            limit = int(used.ru_utime + used.ru_stime + seconds) + 1
            resource.setrlimit(resource.RLIMIT_CPU, (limit, limit + 5))
            resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        answer = json.dumps(function()).encode()
        with os.fdopen(writer, "wb") as pipe:
            pipe.write(answer)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(0)


@contextmanager
def directory_for_servers() -> Iterator[None]:
    """Provide a directory for the files of a session.

    Processes whose pid files remain there are killed, even if the session was killed.
    """
    directory = Path(tempfile.mkdtemp(prefix="dcron-mutation-"))
    os.environ["DCRON_TEST_DIR"] = str(directory / "session")
    try:
        yield
    finally:
        for pid_file in directory.rglob("*.pid"):
            with suppress(ProcessLookupError, ValueError):
                os.kill(int(pid_file.read_text().split()[0]), signal.SIGKILL)
        shutil.rmtree(directory, ignore_errors=True)
