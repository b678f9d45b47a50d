"""Measure how soon an edit takes effect: from the commit of ``control.save`` to the first claim.

    python -m benchmarks.edit [--edits 20] [--jobs 1000]

A job that is due in years is saved with an every-second schedule, as the admin saves it. The time
ends when the job's first run is in the table. The saves happen at random moments of the tick.
``jobs`` is the number of other jobs.
"""

from __future__ import annotations

import random
import time
from datetime import UTC, datetime
from typing import Any

from benchmarks.command import run
from benchmarks.testbed import Testbed, make_jobs, nodes, percentile


def measure(testbed: Testbed, edits: int, jobs: int) -> dict[str, Any]:
    from django_dcron.models import Node

    made = make_jobs(
        jobs, datetime(datetime.now(UTC).year + 2, 1, 1, tzinfo=UTC), schedule="0 0 1 1 *"
    )
    with nodes():
        while not Node.objects.exclude(ticked_at=None).exists():
            time.sleep(0.05)
        time.sleep(3)
        seconds = sorted(_edit(job.pk) for job in made[:edits])
    return {"edits": edits, "jobs": jobs, "p50": percentile(seconds, 0.5), "max": seconds[-1]}


def _edit(job_id: int) -> float:
    from django_dcron import control
    from django_dcron.models import Job, Run

    time.sleep(random.uniform(0, 0.6))
    job = Job.objects.get(pk=job_id)
    job.schedule = "* * * * * *"
    control.save(job)
    saved = time.monotonic()
    while not Run.objects.filter(job=job_id).exists():
        assert time.monotonic() < saved + 30, "the edit was not seen within 30 s"
        time.sleep(0.002)
    seen = time.monotonic() - saved
    control.pause(job)
    return seen


if __name__ == "__main__":
    run(__doc__, measure, edits=20, jobs=1000)
