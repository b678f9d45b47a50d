"""Measure how long ``manage.py dcron`` takes to pause, resume, run and cancel many jobs.

    python -m benchmarks.bulk_actions [--jobs 10000]

    DCRON_TEST_DATABASE=postgresql|sqlite|mariadb   the database

The figures are the seconds of each command, without the start of Python. No node is running.
"""

from __future__ import annotations

import io
import time
from typing import Any

from benchmarks.command import run
from benchmarks.testbed import Testbed


def measure(testbed: Testbed, jobs: int) -> dict[str, Any]:
    from django.db import connection

    from django_dcron import control
    from django_dcron.models import Job

    control.save_many(
        Job(name=f"job-{n}", target="tests.app.tasks.ok", schedule=f"{n % 60} {n % 24} * * *")
        for n in range(jobs)
    )
    figures: dict[str, Any] = {"database": connection.vendor, "jobs": jobs}
    for name, options in (
        ("pause", ["--reason", "deploy"]),
        ("resume", []),
        ("run", ["--no-wait"]),
        ("cancel", []),
    ):
        figures[name] = _seconds(name, "--all", "--yes", *options)
    return figures


def _seconds(*arguments: str) -> float:
    from django.core.management import call_command

    began = time.perf_counter()
    call_command("dcron", *arguments, stdout=io.StringIO())
    return time.perf_counter() - began


if __name__ == "__main__":
    run(__doc__, measure, jobs=10_000)
