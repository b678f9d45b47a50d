"""Measure how fast finished runs are pruned, compared with one DELETE per table.

    python -m benchmarks.prune [--runs 100000] [--jobs 500] [--rounds 3]

Both ways delete all runs but the latest of each job, with their attempts, from equal tables. They
alternate in one process, so that the load of the machine affects both. The figures are the medians
of the rounds in runs per second, without the pauses that nodes make between batches. The CPU times
are per run.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from benchmarks.command import run
from benchmarks.history import fill_history
from benchmarks.testbed import Testbed, cpu_seconds, make_jobs


def measure(testbed: Testbed, runs: int, jobs: int, rounds: int) -> dict[str, Any]:
    from django_dcron.models import Job

    far = datetime(datetime.now(UTC).year + 2, 1, 1, tzinfo=UTC)
    first = make_jobs(jobs, far, schedule="0 0 1 1 *")[0].pk
    Job.objects.update(keep_for=timedelta(minutes=1), keep_failed_for=timedelta(minutes=1))
    deleted = runs - jobs
    measured: dict[str, list[dict[str, float]]] = {"pruned": [], "one_delete": []}
    for _ in range(rounds):
        for name, delete in (("pruned", _prune), ("one_delete", _delete_at_once)):
            fill_history(runs, jobs, first)
            measured[name].append(_time(testbed, delete, deleted))
    return {"runs": runs, "jobs": jobs} | {
        name: {figure: statistics.median(each[figure] for each in times) for figure in times[0]}
        for name, times in measured.items()
    }


def _time(testbed: Testbed, delete: Callable[[], None], deleted: int) -> dict[str, float]:
    from django_dcron.models import Run

    assert testbed.database is not None
    server = testbed.database.pid
    before = Run.objects.count()
    began, python, database = time.perf_counter(), time.process_time(), cpu_seconds(server)
    delete()
    seconds = time.perf_counter() - began
    assert before - Run.objects.count() == deleted
    return {
        "runs_per_second": deleted / seconds,
        "python_ms": (time.process_time() - python) / deleted * 1000,
        "database_ms": (cpu_seconds(server) - database) / deleted * 1000,
    }


def _prune() -> None:
    from django_dcron.db.now import database_now
    from django_dcron.models import Job
    from django_dcron.runs.retention import prune_runs

    for job in Job.objects.values_list("pk", flat=True):
        for _ in prune_runs(job, lambda: database_now("default")):
            pass


def _delete_at_once() -> None:
    from django.db.models import Max

    from django_dcron.models import Attempt, Run

    latest = Run.objects.values("job").annotate(at=Max("scheduled_at")).values("at")
    runs = Run.objects.exclude(scheduled_at__in=latest)
    Attempt.objects.filter(run__in=runs)._raw_delete("default")
    runs._raw_delete("default")


if __name__ == "__main__":
    run(__doc__, measure, runs=100_000, jobs=500, rounds=3)
