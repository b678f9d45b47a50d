"""Measure what an idle node with many jobs costs.

    python -m benchmarks.idle [--jobs 100000] [--seconds 30]

Start to first tick: from the start of the process to the commit of the first tick, by
``Node.ticked_at`` and this machine's clock, which the database uses, too. CPU: the CPU time of the
node's process and of all of PostgreSQL after a warm-up, as a share of one core. Memory: the node's
resident set at the end.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any

import psutil

from benchmarks.command import run
from benchmarks.testbed import Testbed, cpu_seconds, make_jobs, nodes

WARM_UP = 10.0


def measure(testbed: Testbed, jobs: int, seconds: int) -> dict[str, Any]:
    assert testbed.database
    make_jobs(jobs, datetime(datetime.now(UTC).year + 2, 1, 1, tzinfo=UTC), schedule="0 0 1 1 *")
    began = time.time()
    with nodes() as (process,):
        first_tick = _ticked_at() - began
        time.sleep(WARM_UP)
        node, database = process.pid, testbed.database.pid
        node_before, database_before = cpu_seconds(node), cpu_seconds(database)
        time.sleep(seconds)
        return {
            "jobs": jobs,
            "seconds": seconds,
            "first_tick": first_tick,
            "cpu": (cpu_seconds(node) - node_before) / seconds,
            "database_cpu": (cpu_seconds(database) - database_before) / seconds,
            "rss_mib": psutil.Process(node).memory_info().rss / 2**20,
        }


def _ticked_at() -> float:
    from django_dcron.models import Node

    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        ticked_at = Node.objects.values_list("ticked_at", flat=True).first()
        if ticked_at:
            return float(ticked_at.timestamp())
        time.sleep(0.02)
    raise AssertionError("no tick within a minute")


if __name__ == "__main__":
    run(__doc__, measure, jobs=100_000, seconds=30)
