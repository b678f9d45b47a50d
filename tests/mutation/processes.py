"""A function in a process of its own, within limits."""

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
PATIENCE = 6
"""How many times longer than its processor time a process may take: tests wait, and others use the machine too."""


PR_SET_PDEATHSIG = 1
"""Linux: the signal that a process gets when its parent ends."""


class TimedOut(Exception):
    """The process used up its time."""


class Died(Exception):
    """The process ended without an answer."""


def forked(function: Callable[[], Any], seconds: float | None = None) -> Any:
    """Call the function in a silent fork of this process and return its result, which has to be JSON.

    ``seconds``: how much processor time it may use.
    """
    reader, writer = os.pipe()
    sys.stdout.flush()
    pid = os.fork()
    if not pid:
        os.close(reader)
        _answer(function, writer, seconds)
    os.close(writer)
    answer, in_time = b"", True
    try:
        with os.fdopen(reader, "rb", buffering=0) as pipe:
            while in_time:
                in_time = bool(select.select([pipe], [], [], seconds and seconds * PATIENCE)[0])
                if in_time and not (more := pipe.read(65536)):
                    break
                answer += more if in_time else b""
    finally:
        os.kill(pid, signal.SIGKILL)  # it has nothing left to do, or this process has to end
        _, status = os.waitpid(pid, 0)
    if not in_time or (os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGXCPU):
        raise TimedOut
    if not answer:
        raise Died
    return json.loads(answer)


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
    """A directory for the files of a session. What is left there afterwards ends, even if the session was killed."""
    directory = Path(tempfile.mkdtemp(prefix="dcron-mutation-"))
    os.environ["DCRON_TEST_DIR"] = str(directory / "session")
    try:
        yield
    finally:
        for pid_file in directory.rglob("*.pid"):
            with suppress(ProcessLookupError, ValueError):
                os.kill(int(pid_file.read_text().split()[0]), signal.SIGKILL)
        shutil.rmtree(directory, ignore_errors=True)
