"""The child process: reads each text in a forked process with limits and answers with JSON.

The child imports no Django and opens no connection. It ends when its standard input is closed. A
request is a header (``REQUEST``) and a text. An answer is a header (``ANSWER``) and a text.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import struct
import sys
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, BinaryIO, NoReturn, cast

if TYPE_CHECKING:
    from collections.abc import Callable

REQUEST = struct.Struct("!10sQIQQQ")
"""The kind and length of the text.

The limits: CPU seconds, bytes of memory, values, bytes of the answer.
"""
ANSWER = struct.Struct("!10sQ")
"""The status, and the length of the text: JSON, or the reason for a refusal."""
READERS = {
    "pickle": ("django_dcron.utils.untrusted.pickles", "read_pickle"),
    "yaml": ("django_dcron.utils.untrusted.yaml_text", "read_yaml"),
}
"""The module and the function that read each kind of text."""
READ, REFUSED, OBJECT, BROKEN = "read", "refused", "object", "broken"
TIME, MEMORY, SIZE, DIED = "time", "memory", "size", "died"
"""The statuses of an answer: the value was read, or why it wasn't. ``REFUSED`` and ``OBJECT`` are
those of ``value_json.TextRefused``.
"""
CHUNK = 1024 * 1024


def serve(requests: BinaryIO, answers: BinaryIO) -> None:
    while header := requests.read(REQUEST.size):
        kind, length, seconds, memory, values, max_bytes = REQUEST.unpack(header)
        text = requests.read(length)
        name = kind.rstrip(b"\0").decode()
        # Import once, before the first fork.
        _reader_of(name)
        status, answer = _read_in_fork(name, text, seconds, memory, values, max_bytes)
        answers.write(ANSWER.pack(status.encode(), len(answer)) + answer)
        answers.flush()


def _read_in_fork(
    kind: str, text: bytes, seconds: int, memory: int, values: int, max_bytes: int
) -> tuple[str, bytes]:
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        _limit(seconds, memory)
        _read_and_exit(kind, text, values, max_bytes, writing)
    os.close(writing)
    answer = b""
    with os.fdopen(reading, "rb") as pipe:
        while len(answer) <= max_bytes and (chunk := pipe.read(CHUNK)):
            answer += chunk
    _pid, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status):
        return (TIME if os.WTERMSIG(status) == signal.SIGXCPU else DIED), b""
    verdict, _, rest = answer.partition(b"\n")
    return (verdict.decode(), rest) if verdict else (DIED, b"")


def _limit(seconds: int, memory: int) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
    with suppress(ValueError, OSError):  # macOS has no such limit
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))


def _reader_of(kind: str) -> Callable[[bytes, int], object]:
    module, function = READERS[kind]
    return cast("Callable[[bytes, int], object]", getattr(import_module(module), function))


def _read_and_exit(kind: str, text: bytes, values: int, max_bytes: int, writing: int) -> NoReturn:
    read = _reader_of(kind)
    try:
        answer = _answer(read, text, values, max_bytes)
    except MemoryError:
        answer = MEMORY.encode() + b"\n"
    try:
        with os.fdopen(writing, "wb") as pipe:
            pipe.write(answer)
    finally:
        os._exit(0)


def _answer(
    read: Callable[[bytes, int], object], text: bytes, values: int, max_bytes: int
) -> bytes:
    from django_dcron.utils.untrusted.value_json import TextRefused, ValueTooLarge

    try:
        encoded = json.dumps(read(text, values), allow_nan=False).encode()
    except MemoryError:
        raise
    except (ValueTooLarge, RecursionError):
        return SIZE.encode() + b"\n"
    except TextRefused as error:
        return f"{error.status}\n{error}".encode(errors="replace")
    except Exception as error:  # malformed bytes may raise anything
        return f"{BROKEN}\n{type(error).__name__}: {error}".encode(errors="replace")
    return READ.encode() + b"\n" + encoded if len(encoded) <= max_bytes else SIZE.encode() + b"\n"


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends the child
    serve(sys.stdin.buffer, sys.stdout.buffer)


if __name__ == "__main__":
    main()
