"""The contestants' Celery app with one trivial task, whose argument is the job."""

from __future__ import annotations

import os

from celery import Celery

from benchmarks.contestants.variables import BROKER_URL, REDIS_SOCKET

app = Celery("contestant", broker=BROKER_URL)
app.conf.result_backend = os.environ.get("BENCH_RESULT_BACKEND")
app.conf.broker_connection_retry_on_startup = True
app.conf["CELERY_DB_REUSE_MAX"] = int(os.environ.get("BENCH_DB_REUSE_MAX", "0"))
app.conf.redbeat_redis_url = f"unix://{REDIS_SOCKET}?db=2"


@app.task(name="bench.trivial")
def trivial(job: str) -> str:
    return "ok"
