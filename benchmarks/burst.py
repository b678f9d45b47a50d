"""Measure how late jobs reach the broker when many are due in the same second.

    python -m benchmarks.burst RUN ... [--json FILE]      RUN: contestant:jobs or dcron:jobs:nodes

All bursts use the same PostgreSQL and Redis, one after another. In each burst, every job is due at
the same instant, the scheduler has been running for at least ``QUIET`` seconds, and no worker
consumes. Lateness is the time from that instant until the job's first message reaches the broker
(``arrivals``). Each burst is the first one of a fresh scheduler. A scheduler that hasn't published
all messages after 60 seconds, when the next burst would be due, hasn't caught up.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.arrivals import Queue, job_of
from benchmarks.command import write
from benchmarks.contestant_setup import CONTESTANTS, Contestant
from benchmarks.testbed import empty_tables, in_seconds, make_jobs, new_testbed, nodes, percentile

if TYPE_CHECKING:
    from tests.services import Process

QUIET = 15.0
"""Seconds between the scheduler's start and the burst, in which it starts and may claim ahead."""
GIVE_UP_AFTER = 60.0
DCRON = "dcron"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", nargs="+", metavar="RUN")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    figures: list[dict[str, Any]] = []
    with new_testbed():
        for run in options.runs:
            figures.append(_measure(*run.split(":")))
            print(describe(figures[-1]), file=sys.stderr)
            if options.json:
                write(figures, options.json)
    if not options.json:
        write(figures, None)


def _measure(contestant: str, jobs: str, processes: str = "1") -> dict[str, Any]:
    queue = Queue()
    queue.empty()
    figures = {"contestant": contestant, "nodes": int(processes), "jobs": int(jobs)}
    try:
        if contestant == DCRON:
            latenesses = _dcron(queue, int(jobs), int(processes))
        else:
            latenesses = _contestant_latenesses(queue, CONTESTANTS[contestant], int(jobs))
    except Exception as error:  # keep the figures of the other contestants
        return figures | {"error": f"{type(error).__name__}: {error}"}
    return figures | _figures(latenesses, int(jobs))


def _dcron(queue: Queue, jobs: int, number: int) -> list[float]:
    empty_tables()
    burst_at = in_seconds(QUIET + jobs / 2000)  # half of the extra time is for creating the jobs
    make_jobs(jobs, burst_at)
    with nodes(number) as processes:
        return _watch(queue, jobs, burst_at, processes[0])


def _contestant_latenesses(queue: Queue, contestant: Contestant, jobs: int) -> list[float]:
    if not contestant.python.exists():
        raise RuntimeError(f"no virtual environment for {contestant.name}")
    burst_at = _full_minute(QUIET + 5 + jobs * max(contestant.job_takes, 0.001))
    contestant.store_jobs(jobs, burst_at)
    process = contestant.process(burst_at)
    if (left := burst_at.timestamp() - time.time()) < QUIET / 2:
        raise RuntimeError(f"its jobs were stored only {left:.0f} s before the burst")
    process.start()
    try:
        return _watch(queue, jobs, burst_at, process)
    finally:
        process.stop()


def _full_minute(seconds: float) -> datetime:
    """Return a full minute after ``seconds``: beat's and RedBeat's crontabs lack seconds."""
    earliest = datetime.now(UTC) + timedelta(seconds=seconds)
    return earliest.replace(second=0, microsecond=0) + timedelta(minutes=1)


def _watch(queue: Queue, jobs: int, burst_at: datetime, publisher: Process) -> list[float]:
    """Return the seconds from the burst to each job's first message, ascending."""
    queue.watch(jobs, burst_at.timestamp() + GIVE_UP_AFTER, publisher)
    if not publisher.running:
        raise RuntimeError(f"{publisher.name} ended: {publisher.log[-500:]}")
    first: dict[str, float] = {}
    for message, at in queue.arrivals():
        first.setdefault(job_of(message), at - burst_at.timestamp())
    return sorted(first.values())


def _figures(latenesses: Sequence[float], jobs: int) -> dict[str, Any]:
    ordered = list(latenesses)
    figures: dict[str, Any] = {"arrived": len(ordered), "caught_up": len(ordered) == jobs}
    with suppress(IndexError):
        figures |= {
            "earliest": ordered[0],
            "p50": percentile(ordered, 0.5),
            "p99": percentile(ordered, 0.99),
            "max": ordered[-1],
        }
    return figures


def describe(figures: dict[str, Any]) -> str:
    prefix = "{contestant}, {jobs:,} jobs, {nodes} process(es): ".format(**figures)
    if "error" in figures:
        return prefix + str(figures["error"])
    if not figures["caught_up"]:
        return prefix + not_caught_up(figures)
    return prefix + "lateness p50 {p50:.3f} s, p99 {p99:.3f} s, max {max:.3f} s".format(**figures)


def not_caught_up(figures: dict[str, Any]) -> str:
    return "not caught up after {:.0f} s: {:,} had arrived".format(
        GIVE_UP_AFTER, figures["arrived"]
    )


if __name__ == "__main__":
    main()
