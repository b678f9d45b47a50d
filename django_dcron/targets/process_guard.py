"""End a process group if the process that started it is killed.

A worker that is killed with SIGKILL can't end its shell command. The command would continue, while
another worker executes the next attempt.

The guard is a small process that waits for the end of a pipe. This process holds the other end.
If it dies, the operating system closes the pipe, and the guard ends the process group.
"""

from __future__ import annotations

import logging
import os
import subprocess
import threading
from contextlib import suppress
from weakref import WeakSet

logger = logging.getLogger("django_dcron.runs")

SHELL = "/bin/sh"
SCRIPT = """
trap '' HUP INT TERM
read -r _ && exit
kill -s TERM -- "-$1"
left=$2
while [ "$left" -gt 0 ] && kill -s 0 -- "-$1"; do
    sleep 1
    left=$((left - 1))
done
kill -s KILL -- "-$1"
"""
"""Exits if it can read a line. At the end of the pipe, it sends SIGTERM to the process group $1.
After $2 seconds at most, it sends SIGKILL to what is left.

It ignores the signals that a supervisor sends to all processes of a worker.
"""


_guards: WeakSet[ProcessGuard] = WeakSet()
_opening = threading.RLock()
"""Held from the creation of a pipe until its guard is in ``_guards``, so that no fork is between.

It is reentrant, because a signal handler may fork.
"""


def _close_inherited() -> None:
    """Close the pipes in a forked child. Otherwise, they would stay open while the child lives."""
    for guard in _guards:
        guard.close()
    _opening.release()


os.register_at_fork(
    before=_opening.acquire, after_in_parent=_opening.release, after_in_child=_close_inherited
)


class ProcessGuard:
    """The guard of one process group. ``dismiss`` ends it."""

    def __init__(self, group: int, termination_seconds: float):
        """Start the guard. Without ``/bin/sh``, the process group has none, which is logged."""
        self._process = None
        with _opening:
            reader, writer = os.pipe()  # not inherited by programs that this process starts
            self._pipe = os.fdopen(writer, "wb", buffering=0)
            _guards.add(self)
        try:
            self._process = subprocess.Popen(  # noqa: S603 (no text of others)
                [SHELL, "-c", SCRIPT, "guard", str(group), str(round(termination_seconds))],
                stdin=reader,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError as error:
            logger.warning(
                "shell command has no guard, so it continues if this process is killed: %s",
                error,
                extra={"event": "process_guard_missing"},
            )
        finally:
            os.close(reader)

    def close(self) -> None:
        """Close this process's end of the pipe."""
        self._pipe.close()

    def dismiss(self) -> None:
        """End the guard. The process group continues."""
        # The guard was killed, or this process is a forked child, in which the pipe is closed.
        with suppress(OSError, ValueError):
            self._pipe.write(b"\n")
        self.close()
        if self._process is not None:
            self._process.wait()
