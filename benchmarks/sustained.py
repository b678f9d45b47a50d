"""Measure the same burst every minute while workers execute the runs of the previous ones.

    python -m benchmarks.sustained [--jobs 10000] [--minutes 10] [--processes 2]

One node dispatches all jobs at the same second of each minute. One prefork worker with this many
processes and persistent connections executes an empty job for each run. All share the machine.

Lateness is the time from the due second until a message has reached the broker. Every millisecond,
a sampler adds up the messages in the queue, those that the worker has received, and those that it
has acknowledged. A message between two of these places isn't counted, so a time can be too late but
never too early. The CPU time of the node is that of its process in all the minutes, per run.

After each burst, PostgreSQL vacuums and analyzes the tables, as autovacuum does once a minute.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from bisect import bisect_left
from datetime import UTC, datetime
from typing import Any, NamedTuple

from benchmarks.arrivals import BROKER, QUEUE
from benchmarks.command import run
from benchmarks.testbed import (
    Testbed,
    analyze,
    cpu_seconds,
    empty_tables,
    in_seconds,
    make_jobs,
    nodes,
)

QUIET = 15.0
"""Seconds between the start of the processes and the first burst."""
WATCHED = 30.0
"""Seconds after each burst in which its messages must reach the broker."""
PATIENCE = 120.0
UNACKNOWLEDGED = "unacked"
"""The hash in which kombu stores received messages until they are acknowledged."""


class Burst(NamedTuple):
    p50: float
    p99: float
    waiting: int
    """The number of earlier messages that were still in the queue."""


def measure(testbed: Testbed, jobs: int, minutes: int, processes: int) -> dict[str, Any]:
    from django_dcron.models import Attempt, Cursor, Run, Statistics
    from tests.services import Process

    os.environ["BENCH_DB_REUSE_MAX"] = str(10**9)
    empty_tables()
    broker = _Broker()
    first_at = in_seconds(QUIET + jobs / 1000)
    make_jobs(jobs, first_at)
    pool = ("--pool", "prefork", "--concurrency", str(processes), "--loglevel", "WARNING")
    program = [sys.executable, "-m", "celery", "-A", "tests.celery_app", "worker", *pool]
    worker = Process("worker", program, env={"DJANGO_SETTINGS_MODULE": "benchmarks.settings"})
    with nodes() as (node,):
        worker.start()
        try:
            _sleep_until(first_at.timestamp() - 5)
            before = cpu_seconds(node.pid)
            bursts = []
            for minute in range(minutes):
                bursts.append(_watch(broker, jobs, first_at.timestamp() + 60 * minute))
                analyze(Run, Attempt, Cursor, Statistics)
            completed = _wait_for_runs(jobs * minutes, before=first_at.timestamp() + 60 * minutes)
            cpu = cpu_seconds(node.pid) - before
        finally:
            worker.stop()
    return {
        "jobs": jobs,
        "minutes": minutes,
        "worker_processes": processes,
        "completed": completed,
        "worst_p99": max(burst.p99 for burst in bursts),
        "median_p99": statistics.median(burst.p99 for burst in bursts),
        "node_cpu_ms": cpu / (jobs * minutes) * 1000,
        "bursts": [burst._asdict() for burst in bursts],
    }


class _Broker:
    def __init__(self) -> None:
        import redis
        from django.conf import settings

        self._redis = redis.Redis(unix_socket_path=str(settings.REDIS_SOCKET), db=BROKER)
        self._redis.flushall()

    def waiting(self) -> int:
        return int(self._redis.llen(QUEUE))

    def arrived(self) -> int:
        """Return how many messages have arrived since Redis started, up to a constant."""
        with self._redis.pipeline(transaction=True) as pipeline:
            pipeline.llen(QUEUE).hlen(UNACKNOWLEDGED).info("commandstats")
            waiting, received, commands = pipeline.execute()
        # kombu deletes each message from the hash when it is acknowledged.
        acknowledged = commands.get("cmdstat_hdel", {}).get("calls", 0)
        return int(waiting + received + acknowledged)


def _watch(broker: _Broker, jobs: int, due_at: float) -> Burst:
    _sleep_until(due_at - 0.5)
    waiting, earlier = broker.waiting(), broker.arrived()
    times, counts = [], []
    arrived = 0
    while arrived < jobs and time.time() < due_at + WATCHED:
        current = broker.arrived() - earlier
        if current > arrived:
            arrived = current
            times.append(time.time() - due_at)
            counts.append(arrived)
        time.sleep(0.001)
    assert arrived >= jobs, f"{arrived} of {jobs} messages within {WATCHED:.0f} s"
    assert times[0] >= 0, f"a message arrived {-times[0]:.3f} s early"

    def reached(share: float) -> float:
        return times[bisect_left(counts, jobs * share)]

    burst = Burst(reached(0.5), reached(0.99), waiting)
    print(
        f"lateness p50 {burst.p50:.3f} s, p99 {burst.p99:.3f} s, {burst.waiting:,} waiting before",
        file=sys.stderr,
    )
    return burst


def _sleep_until(timestamp: float) -> None:
    time.sleep(max(timestamp - time.time(), 0))


def _wait_for_runs(expected: int, before: float) -> int:
    """Wait until all runs due before ``before`` have succeeded, and return their number."""
    from django_dcron.models import Run
    from django_dcron.policies.lifecycle import State

    end = datetime.fromtimestamp(before - 1, UTC)
    deadline = time.monotonic() + PATIENCE
    completed = 0
    while completed < expected and time.monotonic() < deadline:
        completed = Run.objects.filter(state=State.SUCCEEDED, scheduled_at__lt=end).count()
        time.sleep(0.5)
    assert completed == expected, f"{completed} of {expected} runs succeeded"
    return completed


if __name__ == "__main__":
    run(__doc__, measure, jobs=10_000, minutes=10, processes=2)
