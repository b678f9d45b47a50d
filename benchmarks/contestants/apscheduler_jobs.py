"""Store N jobs for APScheduler, or run its scheduler if N is missing.

python -m benchmarks.contestants.apscheduler_jobs [N]

The jobs are stored in PostgreSQL, and each publishes the trivial Celery task.
``misfire_grace_time`` is None. With the default of one second, APScheduler would drop later runs,
and a burst with few remaining runs would look short.
"""

from __future__ import annotations

import logging
import sys

from apscheduler.jobstores.sqlalchemy import SQLAlchemyJobStore
from apscheduler.schedulers.background import BackgroundScheduler
from apscheduler.schedulers.blocking import BlockingScheduler

from benchmarks.contestants.celery_app import trivial
from benchmarks.contestants.variables import DATABASE, POSTGRESQL_SOCKETS, burst_at


def publish(job: str) -> None:
    trivial.delay(job)


def options() -> dict[str, object]:
    url = f"postgresql+psycopg://postgres@/{DATABASE}?host={POSTGRESQL_SOCKETS}"
    return {
        "jobstores": {"default": SQLAlchemyJobStore(url=url)},
        "job_defaults": {"misfire_grace_time": None},
        "timezone": "UTC",
    }


def store(number: int) -> None:
    scheduler = BackgroundScheduler(**options())
    scheduler.start(paused=True)
    for n in range(number):
        name = f"job-{n}"
        scheduler.add_job(
            "benchmarks.contestants.apscheduler_jobs:publish",
            "cron",
            second=0,
            args=[name],
            id=name,
            next_run_time=burst_at(),
        )
    scheduler.shutdown()


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)
    if len(sys.argv) > 1:
        store(int(sys.argv[1]))
    else:
        BlockingScheduler(**options()).start()
