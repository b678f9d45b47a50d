"""Measure how many occurrences one node claims per second: only the tick's transaction, in process.

    python -m benchmarks.claim [--jobs 10000] [--rounds 3]

    DCRON_TEST_DATABASE=postgresql|sqlite|mariadb   the database

Every job has one occurrence to claim. All jobs have the same schedule, as in a burst. The time
counts from the start of the first transaction to the commit of the last. The result is the median
of the rounds. Each round starts with empty tables.

``limit`` is the rate at which the database alone inserts the same runs from a copy of the table, in
one statement, with all indexes and constraints.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

from benchmarks.command import run
from benchmarks.testbed import Testbed, empty_tables, in_seconds, make_jobs


def measure(testbed: Testbed, jobs: int, rounds: int) -> dict[str, Any]:
    from django.db import connection

    rates, limits = [], []
    for _ in range(rounds):
        rates.append(jobs / _claim_all(jobs))
        limits.append(jobs / _insert_again())
    rate, limit = statistics.median(rates), statistics.median(limits)
    return {
        "database": connection.vendor,
        "jobs": jobs,
        "rate": rate,
        "rounds": rates,
        "limit": limit,
        "rate_to_limit": rate / limit,
    }


def _claim_all(jobs: int) -> float:
    from django_dcron.scheduler.claim import CLAIMED_AT_ONCE, claim

    empty_tables()
    first_at = in_seconds(5)
    make_jobs(jobs, first_at)
    claimed, considered = 0, CLAIMED_AT_ONCE
    began = time.perf_counter()
    while considered == CLAIMED_AT_ONCE:
        done = claim(range(64), first_at, node="bench")
        considered, claimed = done.considered, claimed + len(done.runs)
    seconds = time.perf_counter() - began
    assert claimed == jobs, f"{claimed} claimed of {jobs}"
    return seconds


def _insert_again() -> float:
    """Let the database alone insert the claimed runs once more. Return the seconds."""
    from django.db import connection

    from django_dcron.models import Run

    table = Run._meta.db_table
    with connection.cursor() as cursor:
        cursor.execute(f"CREATE TABLE claimed AS SELECT * FROM {table}")  # noqa: S608
        cursor.execute(f"DELETE FROM {table}")  # noqa: S608
        began = time.perf_counter()
        cursor.execute(f"INSERT INTO {table} SELECT * FROM claimed")  # noqa: S608
        seconds = time.perf_counter() - began
        cursor.execute("DROP TABLE claimed")
    return seconds


if __name__ == "__main__":
    run(__doc__, measure, jobs=10_000, rounds=3)
