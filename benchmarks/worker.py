"""Compare a worker process's runs per second with those of plain Celery tasks with results.

    python -m benchmarks.worker [--messages 1000] [--rounds 3] [--threads 20]

Each side has one prefork process, the same PostgreSQL, and the same number of messages in the queue
before its worker starts. django-celery-results records the results of the plain task, in a separate
environment. The time counts from the first completion to the last (``Run.finished_at``,
``TaskResult.date_done``), so the start of the worker doesn't count. CPU time is counted separately
for the worker's two processes and for PostgreSQL, after the first tenth of the messages, when
everything is loaded. The two sides take turns, and the result is the median of the rounds. Both run
with Celery's default, which closes Django's connections before and after each task regardless of
``CONN_MAX_AGE``, and with persistent connections (``CELERY_DB_REUSE_MAX``).

With ``threads``, a process that executes runs in that many threads is compared with the prefork
process of plain tasks. The threads are Celery's pool or the thread dispatcher of a node. All
connections are persistent.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import psutil

from benchmarks.arrivals import Queue
from benchmarks.command import run
from benchmarks.contestant_setup import new_database, variables_of
from benchmarks.environments import ROOT, environment
from benchmarks.testbed import Testbed, empty_tables, in_seconds, make_jobs

if TYPE_CHECKING:
    from tests.services import Process

PLAIN = "django-celery-results"
DATABASE = "results"
PREFORK = ("--pool", "prefork", "--concurrency", "1")
OPTIONS = ("--loglevel", "WARNING")
QUIETLY = ("--without-gossip", "--without-mingle", "--without-heartbeat")
WORKER = (*OPTIONS, *QUIETLY)
PATIENCE = 120.0
KEPT = 10**9
"""Tasks or seconds for which a connection is kept: more than the benchmark takes."""
CHECK_EVERY = 0.25
"""Seconds between two checks. Each check is work for PostgreSQL, too."""

Completed = tuple[int, datetime | None, datetime | None]
"""Number of completed tasks, first and last completion."""


class Round(NamedTuple):
    rate: float
    cpu_ms: float
    """CPU time of the worker per run, in milliseconds."""
    database_cpu_ms: float


def measure(testbed: Testbed, messages: int, rounds: int, threads: int) -> dict[str, Any]:
    assert testbed.database
    server = testbed.database.pid
    plain = _Plain()
    figures: dict[str, Any] = {"messages": messages}
    for name, tasks in (("new_connections", 0), ("kept_connection", KEPT)):
        os.environ["BENCH_DB_REUSE_MAX"] = str(tasks)
        pairs = [(_dcron(messages, server), plain.round(messages, server)) for _ in range(rounds)]
        dcron_rounds, plain_rounds = zip(*pairs, strict=True)
        figures[name] = {"dcron": _median(dcron_rounds), "plain": _median(plain_rounds)}
    if threads:
        pool = ("--pool", "threads", "--concurrency", str(threads))
        of_threads = [
            (
                _dcron(messages, server, pool),
                _embedded(messages, threads, server),
                plain.round(messages, server),
            )
            for _ in range(rounds)
        ]
        names = ("celery", "dispatcher", "plain")
        figures["threads"] = {"number": threads} | {
            name: _median(each)
            for name, each in zip(names, zip(*of_threads, strict=True), strict=True)
        }
    return figures


def _median(rounds: tuple[Round, ...]) -> dict[str, Any]:
    return {
        "rate": statistics.median(each.rate for each in rounds),
        "cpu_ms": statistics.median(each.cpu_ms for each in rounds),
        "database_cpu_ms": statistics.median(each.database_cpu_ms for each in rounds),
        "rates": [each.rate for each in rounds],
    }


# --- django-dcron -------------------------------------------------------------------------------


def _dcron(messages: int, server: int, pool: tuple[str, ...] = PREFORK) -> Round:
    """Create one due run per job, and claim, publish and mark the runs as a node does."""
    empty_tables()
    Queue().empty()
    due_at = in_seconds(1)
    make_jobs(messages, due_at)
    _claim_and_publish(due_at)
    settings = {"DJANGO_SETTINGS_MODULE": "benchmarks.settings"}
    return _work(
        sys.executable, "tests.celery_app", settings, messages, _completed_runs, server, pool
    )


def _embedded(messages: int, threads: int, server: int) -> Round:
    """Run a node that executes the runs itself. All are due when it starts."""
    empty_tables()
    Queue().empty()
    make_jobs(messages, in_seconds(-1))
    settings = {
        "DJANGO_SETTINGS_MODULE": "benchmarks.settings",
        "BENCH_THREADS": str(threads),
        "BENCH_CONN_MAX_AGE": str(KEPT),
    }
    program = [sys.executable, "-m", "django", "runcron", "--embedded"]
    return _until_done(program, settings, messages, _completed_runs, server)


def _claim_and_publish(due_at: datetime) -> None:
    from django_dcron.dispatch.celery import CeleryDispatcher
    from django_dcron.runs import deliveries
    from django_dcron.scheduler.claim import CLAIMED_AT_ONCE, claim

    dispatcher, runs, considered = CeleryDispatcher(), [], CLAIMED_AT_ONCE
    while considered == CLAIMED_AT_ONCE:
        claimed = claim(range(64), due_at - timedelta(seconds=1), node="bench")
        considered = claimed.considered
        runs += claimed.runs
    dispatcher.publish([dispatcher.prepare(run) for run in runs])
    deliveries.mark_queued((run.key for run in runs), due_at)
    dispatcher.close()


def _completed_runs() -> Completed:
    from django.db.models import Count, Max, Min

    from django_dcron.models import Run
    from django_dcron.policies.lifecycle import State

    found = Run.objects.filter(state=State.SUCCEEDED).aggregate(
        number=Count("pk"), first=Min("finished_at"), last=Max("finished_at")
    )
    return found["number"], found["first"], found["last"]


# --- a plain task -------------------------------------------------------------------------------


class _Plain:
    def __init__(self) -> None:
        packages = (
            "django",
            "django-celery-results",
            "celery",
            "redis",
            "packaging",
            "psycopg[binary]",
        )
        self._python: Path = environment(PLAIN, packages)
        new_database(DATABASE)

    def round(self, messages: int, server: int) -> Round:
        Queue().empty()
        variables = variables_of(DATABASE, django=True) | {"BENCH_RESULT_BACKEND": "django-db"}
        program = [self._python, "-m", "benchmarks.contestants.results_messages", str(messages)]
        subprocess.run(program, cwd=ROOT, env={**os.environ, **variables}, check=True)
        return _work(
            self._python,
            "benchmarks.contestants.celery_app",
            variables,
            messages,
            _completed_tasks,
            server,
        )


def _completed_tasks() -> Completed:
    import psycopg
    from django.db import connection

    parameters = {**connection.get_connection_params(), "dbname": DATABASE}
    parameters.pop("cursor_factory", None), parameters.pop("context", None)
    with psycopg.connect(**parameters) as database:
        found = database.execute(
            "SELECT count(*), min(date_done), max(date_done) FROM django_celery_results_taskresult"
            " WHERE status = 'SUCCESS'"
        ).fetchone()
    assert found
    return found


# --- both ---------------------------------------------------------------------------------------


def _work(
    python: Path | str,
    app: str,
    env: dict[str, str],
    messages: int,
    completed: Callable[[], Completed],
    server: int,
    pool: tuple[str, ...] = PREFORK,
) -> Round:
    program = [python, "-m", "celery", "-A", app, "worker", *pool, *WORKER]
    return _until_done(program, env, messages, completed, server)


def _until_done(
    program: list[Path | str],
    env: dict[str, str],
    messages: int,
    completed: Callable[[], Completed],
    server: int,
) -> Round:
    """Start a worker and wait until all is done. ``server`` is PostgreSQL's process id."""
    from tests.services import Process

    process = Process("worker", program, env=env)
    process.start()
    try:
        warm, *_ = _wait(process, messages // 10, completed)
        cpu_warm, server_warm = _cpu(process.pid), _cpu(server)
        done, first, last = _wait(process, messages, completed)
        cpu, server_cpu = _cpu(process.pid) - cpu_warm, _cpu(server) - server_warm
    finally:
        process.stop()
    assert first is not None
    assert last is not None
    seconds, number = (last - first).total_seconds(), done - warm
    return Round((done - 1) / seconds, cpu / number * 1000, server_cpu / number * 1000)


def _cpu(pid: int) -> float:
    """Return the CPU time of the process and its children, including children that have ended.

    PostgreSQL has a child for each connection.
    """
    main = psutil.Process(pid)
    seconds = sum(main.cpu_times()[:4])
    for child in main.children():
        with suppress(psutil.NoSuchProcess):
            seconds += sum(child.cpu_times()[:2])
    return float(seconds)


def _wait(process: Process, number: int, completed: Callable[[], Completed]) -> Completed:
    deadline = time.monotonic() + PATIENCE
    while True:
        found = completed()
        if found[0] >= number:
            return found
        if not process.running or time.monotonic() > deadline:
            raise AssertionError(f"{found[0]} of {number} done: {process.log[-1000:]}")
        time.sleep(CHECK_EVERY)


if __name__ == "__main__":
    run(__doc__, measure, messages=1000, rounds=3, threads=20)
