"""Measure how long it takes to save many jobs: one by one, and with ``control.save_many``.

    python -m benchmarks.save [--jobs 10000] [--rounds 3]

    DCRON_TEST_DATABASE=postgresql|sqlite|mariadb   the database

Both ways create the same new jobs and then change the schedule of each. They alternate in one run,
each on empty tables, so that the load of the machine affects both. The figures are the medians of
the rounds, in seconds. The ratio is the median of the rounds' ratios.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

from benchmarks.command import run
from benchmarks.testbed import Testbed, empty_tables


def measure(testbed: Testbed, jobs: int, rounds: int) -> dict[str, Any]:
    from django.db import connection

    measured = [
        (_times(jobs, one_by_one=True), _times(jobs, one_by_one=False)) for _ in range(rounds)
    ]
    return {"database": connection.vendor, "jobs": jobs} | {
        name: {
            "one_by_one": statistics.median(each[name] for each, _many in measured),
            "many": statistics.median(many[name] for _each, many in measured),
            "ratio": statistics.median(each[name] / many[name] for each, many in measured),
        }
        for name in ("create", "change")
    }


def _times(number: int, *, one_by_one: bool) -> dict[str, float]:
    from django_dcron import control
    from django_dcron.models import Cursor, Job

    def save(jobs: list[Job]) -> float:
        began = time.perf_counter()
        if one_by_one:
            for job in jobs:
                control.save(job)
        else:
            control.save_many(jobs)
        return time.perf_counter() - began

    empty_tables()
    created = save(
        [
            Job(name=f"job-{n}", target="tests.app.tasks.ok", schedule=f"{n % 60} 3 * * *")
            for n in range(number)
        ]
    )
    jobs = list(Job.objects.all())
    for job in jobs:
        job.schedule = f"{job.pk % 60} 4 * * *"
    changed = save(jobs)
    assert Cursor.objects.filter(schedule__endswith=" 4 * * *").count() == number
    return {"create": created, "change": changed}


if __name__ == "__main__":
    run(__doc__, measure, jobs=10_000, rounds=3)
