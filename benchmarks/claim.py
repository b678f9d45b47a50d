"""How many occurrences a second one node claims: the tick's transaction alone, in this process.

DCRON_TEST_DATABASE=postgresql|sqlite|mariadb python -m benchmarks.claim [--jobs 10000] [--rounds 3]

Every job has one occurrence to claim; all share one schedule, as in a burst. From the first transaction's begin to the last
one's commit. The median of the rounds; each starts with empty tables.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

from benchmarks.command import run
from benchmarks.place import Place, empty_tables, in_seconds, make_jobs


def measure(place: Place, jobs: int, rounds: int) -> dict[str, Any]:
    from django.db import connection

    rates = [jobs / _claim_all(jobs) for _ in range(rounds)]
    return {"database": connection.vendor, "jobs": jobs, "rate": statistics.median(rates), "rounds": rates}


def _claim_all(jobs: int) -> float:
    from django_dcron.scheduler.claiming import CLAIMED_AT_ONCE, claim

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


if __name__ == "__main__":
    run(__doc__, measure, jobs=10_000, rounds=3)
