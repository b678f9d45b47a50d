"""Compare waiting jobs as coroutine functions with waiting jobs as functions in threads.

    python -m benchmarks.coroutines [--runs 200] [--wait 1000] [--limit 100] [--rounds 3]

A node with ``--embedded`` executes jobs that are all due when it starts. Each waits for ``wait``
milliseconds and does nothing else. The sides take turns, and the result is the median of the
rounds:

- ``threads``: functions, with the default of ``DCRON_THREADS``;
- ``many threads``: functions, with ``limit`` threads;
- ``coroutines``: coroutine functions, with ``limit`` coroutines.

The time counts from the first completion to the last. Memory is the largest of the process.
"""

from __future__ import annotations

import statistics
import sys
import time
from datetime import timedelta
from typing import Any, NamedTuple

from benchmarks.command import run
from benchmarks.testbed import Testbed, cpu_seconds, empty_tables, in_seconds, make_jobs, python

PATIENCE = 300.0
DEFAULT_THREADS = 8


class Round(NamedTuple):
    rate: float
    """Runs per second."""
    cpu_ms: float
    """CPU time of the process per run, with its start."""
    memory_mib: float


def measure(testbed: Testbed, runs: int, wait: int, limit: int, rounds: int) -> dict[str, Any]:
    sides = {
        "threads": ("slow", DEFAULT_THREADS, limit),
        "many threads": ("slow", limit, limit),
        "coroutines": ("wait", DEFAULT_THREADS, limit),
    }
    measured: dict[str, list[Round]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, (task, threads, coroutines) in sides.items():
            measured[name].append(_round(runs, wait / 1000, task, threads, coroutines))
    return {"runs": runs, "wait": wait, "limit": limit} | {
        name: {
            field: statistics.median(getattr(each, field) for each in done)
            for field in Round._fields
        }
        | {"rates": [each.rate for each in done]}
        for name, done in measured.items()
    }


def _round(runs: int, seconds: float, task: str, threads: int, coroutines: int) -> Round:
    from django_dcron.models import Job

    empty_tables()
    make_jobs(runs, in_seconds(-1), schedule="0 0 1 1 *", target=f"tests.app.tasks.{task}")
    Job.objects.update(args=[seconds], timeout=timedelta(hours=1))
    variables = {"BENCH_THREADS": str(threads), "BENCH_COROUTINES": str(coroutines)}
    node = python("node", "-m", "django", "runcron", "--embedded", env=variables)
    node.start()
    try:
        first, last = _wait_for(runs, node)
        cpu, memory = cpu_seconds(node.pid), _peak_memory(node.pid)
    finally:
        node.stop()
    return Round((runs - 1) / (last - first).total_seconds(), cpu / runs * 1000, memory)


def _wait_for(runs: int, node: Any) -> tuple[Any, Any]:
    """Return the times of the first and the last completion."""
    from django.db.models import Count, Max, Min

    from django_dcron.models import Run

    deadline = time.monotonic() + PATIENCE
    while True:
        found = Run.objects.filter(state="succeeded").aggregate(
            number=Count("pk"), first=Min("finished_at"), last=Max("finished_at")
        )
        if found["number"] >= runs:
            return found["first"], found["last"]
        if not node.running or time.monotonic() > deadline:
            raise AssertionError(f"{found['number']} of {runs} done: {node.log[-1000:]}")
        time.sleep(0.25)


def _peak_memory(pid: int) -> float:
    """Return the largest resident memory of the process so far, in MiB."""
    if sys.platform != "linux":
        raise NotImplementedError("the peak of the memory is read from /proc")
    with open(f"/proc/{pid}/status") as status:
        (peak,) = (int(line.split()[1]) for line in status if line.startswith("VmHWM"))
    return peak / 1024


if __name__ == "__main__":
    run(__doc__, measure, runs=200, wait=1000, limit=100, rounds=3)
