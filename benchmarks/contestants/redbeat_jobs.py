"""Store N jobs for celery-redbeat, due each full minute.

python -m benchmarks.contestants.redbeat_jobs N
"""

from __future__ import annotations

import sys

from celery.schedules import crontab
from redbeat import RedBeatSchedulerEntry

from benchmarks.contestants.celery_app import app
from benchmarks.contestants.variables import wait_for_last_minute


def main(number: int) -> None:
    wait_for_last_minute()
    for n in range(number):
        RedBeatSchedulerEntry(
            f"job-{n}", "bench.trivial", crontab(), args=[f"job-{n}"], app=app
        ).save()


if __name__ == "__main__":
    main(int(sys.argv[1]))
