"""The witness log: lines that the jobs' own code appends, synced to the disk.

Each line is a JSON object. A start has the keys ``began``, ``run``, ``attempt``, ``job``,
``scheduled_at`` and ``process``. The end of its code has ``ended``, ``run``, ``attempt`` and
``process``. ``began`` and ``ended`` are seconds of the machine's monotonic clock: all processes
share it, and it can't be set.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from tests.verdict.history import Start


@contextmanager
def witnessed(
    path: Path, *, run: str, attempt: int, job: str, scheduled_at: datetime
) -> Iterator[None]:
    """Append a line when the block starts, and one when it ends, also by an exception."""
    about = {"run": run, "attempt": attempt, "process": str(os.getpid())}
    started = {"job": job, "scheduled_at": scheduled_at.isoformat()}
    _append(path, {"began": time.monotonic(), **about, **started})
    try:
        yield
    finally:
        _append(path, {"ended": time.monotonic(), **about})


def _append(path: Path, line: dict[str, Any]) -> None:
    """Append a line by one system call, so that the lines of other processes don't mix with it."""
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(file, f"{json.dumps(line)}\n".encode())
        os.fsync(file)
    finally:
        os.close(file)


@dataclass(frozen=True)
class Anchor:
    """One instant by two clocks, to compare the witnesses' times with those of the rows."""

    monotonic: float
    at: datetime

    def instant(self, monotonic: float) -> datetime:
        return self.at + timedelta(seconds=monotonic - self.monotonic)


def read_log(path: Path, anchor: Anchor) -> list[Start]:
    """Return the starts in the order of their lines. Without a log, there was no start.

    Raises ``ValueError`` if a line is damaged, or is an end without a start.
    """
    starts: list[Start] = []
    running: dict[tuple[str, int, str], int] = {}
    for line in path.read_text().splitlines() if path.exists() else ():
        read = json.loads(line)
        key = read["run"], read["attempt"], read["process"]
        if "ended" in read:
            if key not in running:
                raise ValueError(f"an end without a start: {line}")
            number = running.pop(key)
            starts[number] = replace(starts[number], ended_at=anchor.instant(read["ended"]))
            continue
        running[key] = len(starts)
        starts.append(
            Start(
                run=read["run"],
                attempt=read["attempt"],
                job=read["job"],
                scheduled_at=datetime.fromisoformat(read["scheduled_at"]),
                began_at=anchor.instant(read["began"]),
                process=read["process"],
            )
        )
    return starts
