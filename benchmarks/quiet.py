"""Measure the lateness of runs on a quiet system: every-second jobs on one node.

    python -m benchmarks.quiet [--jobs 100] [--seconds 30]

Lateness is the time from a run's ``due_at`` until its message reaches the broker (``arrivals``). No
worker runs.
"""

from __future__ import annotations

from typing import Any

from benchmarks.arrivals import Queue
from benchmarks.command import run
from benchmarks.testbed import Testbed, in_seconds, make_jobs, nodes, percentile

QUIET = 15.0
"""Seconds between the start of the node and the first occurrence."""


def measure(testbed: Testbed, jobs: int, seconds: int) -> dict[str, Any]:
    queue = Queue()
    queue.empty()
    first_at = in_seconds(QUIET)
    make_jobs(jobs, first_at, schedule="* * * * * *")
    with nodes() as (node,):
        queue.watch(jobs * seconds, first_at.timestamp() + seconds + 5, node)
        latenesses = _latenesses(queue)
    return {
        "jobs": jobs,
        "seconds": seconds,
        "runs": len(latenesses),
        "p50": percentile(latenesses, 0.5),
        "p99": percentile(latenesses, 0.99),
        "max": latenesses[-1],
    }


def _latenesses(queue: Queue) -> list[float]:
    from django_dcron.models import Run

    due = {
        str(run_id): due_at.timestamp()
        for run_id, due_at in Run.objects.values_list("pk", "due_at")
    }
    first: dict[str, float] = {}
    for message, at in queue.arrivals():
        run_id = message["headers"]["id"].partition(".")[0]
        first.setdefault(run_id, at - due[run_id])
    return sorted(first.values())


if __name__ == "__main__":
    run(__doc__, measure, jobs=100, seconds=30)
