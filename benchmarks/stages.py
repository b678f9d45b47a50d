"""Measure how long each stage of a run takes, and how much of it is waiting for the database.

    python -m benchmarks.stages [--jobs 5000] [--runs 500]

Claiming, preparing messages, publishing and marking are timed for ``jobs`` jobs that are due at the
same time. Start and finish are timed for ``runs`` of their runs, executed in this process one after
another over a persistent connection. ``statements`` is the number of round trips to PostgreSQL,
including commits. ``database`` is the time from sending a statement to its answer, including the
driver's time. CPU time is the time of this process and of all of PostgreSQL. On a busy machine, CPU
time is the better figure.

For comparison, ``runs`` empty statements and ``runs`` updates of one row by its key are timed on
the same connection, with prepared statements and without Django.
"""

from __future__ import annotations

import os
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from benchmarks.arrivals import Queue
from benchmarks.command import run
from benchmarks.testbed import Testbed, cpu_seconds, in_seconds, make_jobs


@dataclass
class Watch:
    """The time, statements and CPU time that ``watching`` measures."""

    seconds: float = 0.0
    statements: int = 0
    database: float = 0.0
    python_cpu: float = 0.0
    database_cpu: float = 0.0
    by_statement: Counter[str] = field(default_factory=Counter)

    def per(self, number: int) -> dict[str, Any]:
        return {
            "us": self.seconds / number * 1e6,
            "database_us": self.database / number * 1e6,
            "python_cpu_us": self.python_cpu / number * 1e6,
            "database_cpu_us": self.database_cpu / number * 1e6,
            "statements": self.statements / number,
            "by_statement_us": {
                name: seconds / number * 1e6 for name, seconds in self.by_statement.most_common(12)
            },
        }


def measure(testbed: Testbed, jobs: int, runs: int) -> dict[str, Any]:
    from django.db import connection

    from django_dcron.dispatch.celery import CeleryDispatcher
    from django_dcron.execution.executor import execute
    from django_dcron.runs import deliveries
    from django_dcron.scheduler.agenda import Agenda
    from django_dcron.scheduler.claim import CLAIMED_AT_ONCE, claim

    Queue().empty()
    due_at = in_seconds(1)
    make_jobs(jobs, due_at)
    due, dispatcher, considered = [], CeleryDispatcher(), CLAIMED_AT_ONCE
    with watching(testbed) as claiming:
        while considered == CLAIMED_AT_ONCE:
            claimed = claim(range(64), due_at - timedelta(seconds=1), node="bench")
            considered = claimed.considered
            due += claimed.runs
    agenda = Agenda(dispatcher, _FutureClock())
    with watching(testbed) as preparing:
        agenda.add(due)
    with watching(testbed) as publishing:
        agenda.publish_due()
    with watching(testbed) as marking:
        deliveries.mark_queued((run.key for run in due), due_at)
    execute(due[-1].run_id, 1, worker="bench")  # exclude what is loaded only once
    with watching(testbed) as executing:
        for each in due[:runs]:
            assert execute(each.run_id, 1, worker="bench")
    alone: Any = connection.connection  # the driver's connection
    alone.execute(
        "CREATE TABLE counters AS SELECT key, 0 AS value FROM generate_series(1, %s) key", [runs]
    )
    alone.execute("ALTER TABLE counters ADD PRIMARY KEY (key)")
    with watching(testbed) as asking:
        for key in range(1, runs + 1):
            alone.execute("SELECT %s::int", [key], prepare=True)
    with watching(testbed) as updating:
        for key in range(1, runs + 1):
            alone.execute("UPDATE counters SET value = 1 WHERE key = %s", [key], prepare=True)
    return {
        "jobs": jobs,
        "runs": runs,
        "claim": claiming.per(jobs),
        "prepare": preparing.per(jobs),
        "publish": publishing.per(jobs),
        "mark": marking.per(jobs),
        "start, call and finish": executing.per(runs),
        "an empty statement": asking.per(runs),
        "an update of one row": updating.per(runs),
    }


class _FutureClock:
    """A clock that is an hour fast, so that every run is due."""

    def now(self) -> Any:
        return in_seconds(3600)

    def monotonic(self) -> float:
        return time.monotonic()


@contextmanager
def watching(testbed: Testbed) -> Iterator[Watch]:
    from django.db import connection

    watch = Watch()

    def timed(name: str, call: Callable[..., Any], *args: Any) -> Any:
        began = time.perf_counter()
        try:
            return call(*args)
        finally:
            seconds = time.perf_counter() - began
            watch.statements += 1
            watch.database += seconds
            watch.by_statement[name] += seconds

    def statement(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        return timed(_shape(sql), execute, sql, params, many, context)

    commit = connection._commit
    connection._commit = lambda: timed("COMMIT", commit)
    server = testbed.database.pid if testbed.database else os.getpid()
    server_began, python_began, began = (
        cpu_seconds(server),
        time.process_time(),
        time.perf_counter(),
    )
    try:
        with connection.execute_wrapper(statement):
            yield watch
    finally:
        watch.seconds = time.perf_counter() - began
        watch.python_cpu = time.process_time() - python_began
        watch.database_cpu = cpu_seconds(server) - server_began
        del connection._commit


def _shape(sql: str) -> str:
    """Return the statement's verb and table, without its columns."""
    verb = sql.split(None, 1)[0]
    table = re.search(r'(?:FROM|INTO|UPDATE) "(\w+)"', sql)
    words = [verb, table[1] if table else "", "FOR UPDATE" if "FOR UPDATE" in sql else ""]
    return " ".join(word for word in words if word)


if __name__ == "__main__":
    run(__doc__, measure, jobs=5000, runs=500)
