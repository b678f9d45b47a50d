"""The parent process: starts the child process on first use, sends it texts, and kills it."""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

from django_dcron.utils.untrusted import child
from django_dcron.utils.untrusted.value_json import decode

MEGABYTE = 1024 * 1024
BOOT = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from "
    "django_dcron.utils.untrusted.child import main; main()"
)
LONGEST_REASON = 300

Kind = Literal["pickle", "yaml"]


class Unreadable(Exception):
    """The text can't be read. The message is the reason, and ``status`` that of ``child``."""

    def __init__(self, reason: str, status: str = child.BROKEN):
        super().__init__(reason)
        self.status = status


@dataclass(frozen=True, slots=True)
class Limits:
    cpu_seconds: int
    memory: int
    """Bytes of address space."""
    values: int
    """The maximum number of values in a text. A value that occurs twice counts twice."""
    answer: int
    """Bytes of JSON."""

    @classmethod
    def of(cls, length: int) -> Limits:
        """Return limits for a text of ``length`` bytes: many times what legitimate texts need."""
        return cls(
            cpu_seconds=3 + length * 200 // MEGABYTE,
            memory=512 * MEGABYTE + 300 * length,
            values=10_000 + 10 * length,
            answer=MEGABYTE + 50 * length,
        )

    @property
    def wall_seconds(self) -> float:
        """The limit on elapsed time, in seconds.

        It is far above the CPU time, so that it also suffices on a busy machine.
        """
        return 60 + 20 * self.cpu_seconds


class Reader:
    """Reads texts, one after the other. Use it in a ``with`` block or call ``close``."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Reader:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Kill the child and the processes it has forked."""
        process, self._process = self._process, None
        if process is None:
            return
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()
        process.wait()

    def read(self, kind: Kind, text: bytes, limits: Limits | None = None) -> Any:
        """Return the value that ``text`` describes. Raises ``Unreadable``."""
        limits = limits or Limits.of(len(text))
        try:
            status, answer = self._ask(kind, text, limits)
        except (OSError, TimeoutError, EOFError):
            self.close()  # the next text starts a new child
            raise Unreadable("reading it took too long or crashed the reader", child.DIED) from None
        if status == child.READ:
            try:
                return decode(json.loads(answer))
            except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
                raise Unreadable(f"{type(error).__name__}: {error}") from None
        raise Unreadable(_refusal_text(status, answer, limits), status)

    def _ask(self, kind: Kind, text: bytes, limits: Limits) -> tuple[str, bytes]:
        if self._process is None:
            self._process = _start()
        process = self._process
        assert process.stdin is not None and process.stdout is not None  # noqa: S101, PT018 (for the type checker)
        request = child.REQUEST.pack(
            kind.encode(),
            len(text),
            limits.cpu_seconds,
            limits.memory,
            limits.values,
            limits.answer,
        )
        process.stdin.write(request + text)
        process.stdin.flush()
        until = time.monotonic() + limits.wall_seconds
        status, length = child.ANSWER.unpack(
            _read_exactly(child.ANSWER.size, process.stdout.fileno(), until)
        )
        return status.rstrip(b"\0").decode(), _read_exactly(length, process.stdout.fileno(), until)


def _start() -> subprocess.Popen[bytes]:
    """Start an isolated child.

    The child has the import path of this process. It has no environment variables, and doesn't read
    the user's site packages or ``.pth`` files.
    """
    here = str(Path(__file__).resolve().parents[3])
    path = [here, *(os.path.abspath(place) for place in sys.path)]
    return subprocess.Popen(  # noqa: S603 (our own)
        [sys.executable, "-I", "-S", "-c", BOOT, json.dumps(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={},
        bufsize=0,
        start_new_session=True,
    )


def _read_exactly(length: int, descriptor: int, until: float) -> bytes:
    """Read exactly ``length`` bytes. Raises ``EOFError`` or ``TimeoutError``."""
    read = bytearray()
    with selectors.DefaultSelector() as selector:
        selector.register(descriptor, selectors.EVENT_READ)
        while len(read) < length:
            if not selector.select(max(until - time.monotonic(), 0)):
                raise TimeoutError
            chunk = os.read(descriptor, min(length - len(read), child.CHUNK))
            if not chunk:
                raise EOFError
            read += chunk
    return bytes(read)


def _refusal_text(status: str, answer: bytes, limits: Limits) -> str:
    match status:
        case child.REFUSED | child.OBJECT | child.BROKEN:
            return answer.decode(errors="replace")[:LONGEST_REASON]
        case child.TIME:
            return (
                f"reading it takes more than {limits.cpu_seconds} s of CPU time, the "
                "limit for its length"
            )
        case child.MEMORY:
            return (
                f"reading it takes more than {limits.memory // MEGABYTE} MB of memory, "
                "the limit for its length"
            )
        case child.SIZE:
            return "it has too many values, or is nested too deeply, for its length"
        case _:
            return "reading it crashed the reader"
