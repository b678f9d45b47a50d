"""Targets that the jobs of the tests run."""

import asyncio
import logging
import os
import sqlite3
import time
from contextlib import closing, nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any

from celery import Task, shared_task
from celery.exceptions import SoftTimeLimitExceeded

import django_dcron
from django_dcron.exceptions import RunCancelled
from django_dcron.targets.functions import register_function
from tests.app.models import Witness
from tests.verdict.witness import witnessed

logger = logging.getLogger(__name__)

WITNESS_LOG = "DCRON_TEST_WITNESS_LOG"
"""The environment variable with the path of the witness log (see ``tests.verdict``)."""


@shared_task
def ok() -> str:
    return "ok"


@shared_task
def fail(message: str = "as asked") -> None:
    raise RuntimeError(message)


@shared_task
def log_and_fail() -> None:
    logger.warning("about to fail")
    raise RuntimeError


@shared_task
def echo(*args: Any, **kwargs: Any) -> dict[str, Any]:
    return {"args": list(args), "kwargs": kwargs}


@shared_task
def slow(seconds: float = 1.0) -> float:
    time.sleep(seconds)
    return seconds


async def wait(seconds: float = 1.0) -> float:
    """Like ``slow``, but as a coroutine function. Logs a line in the end, whatever happens."""
    try:
        await asyncio.sleep(seconds)
    finally:
        logger.warning("the coroutine ended")
    return seconds


register_function(wait)


async def awaited_witness(seconds: float = 0.0, number: int = 0) -> None:
    """Like ``witness``, but as a coroutine function."""
    run = django_dcron.current_run()
    start = {"job": str(run.job), "scheduled_at": run.scheduled_at, "attempt": run.attempt}
    log = os.environ.get(WITNESS_LOG)
    with witnessed(Path(log), run=str(run.id), **start) if log else nullcontext():
        row = {"run_id": str(run.id), "worker_pid": os.getpid(), "number": number, **start}
        await Witness.objects.acreate(**row)
        await asyncio.sleep(seconds)


register_function(awaited_witness)


@shared_task
def witness(seconds: float = 0.0, number: int = 0) -> None:
    """Append this start to the witness log, if there is one. Insert a row, then take `seconds`."""
    run = django_dcron.current_run()
    start = {"job": str(run.job), "scheduled_at": run.scheduled_at, "attempt": run.attempt}
    log = os.environ.get(WITNESS_LOG)
    with witnessed(Path(log), run=str(run.id), **start) if log else nullcontext():
        Witness.objects.create(run_id=str(run.id), worker_pid=os.getpid(), number=number, **start)
        time.sleep(seconds)


@shared_task
def logged_witness(directory: str) -> None:
    """Append this start to the witness log of the job, in this directory. Write nothing else."""
    run = django_dcron.current_run()
    start = {"job": str(run.job), "scheduled_at": run.scheduled_at, "attempt": run.attempt}
    with witnessed(Path(directory, f"{run.job}.jsonl"), run=str(run.id), **start):
        pass


@shared_task
def write_with_fence(directory: str) -> None:
    """Wait for the file ``release-ATTEMPT``, then write the attempt to ``store.sqlite3``.

    The store refuses a write if a later execution has replaced this one, and records each try.
    """
    run = django_dcron.current_run()
    start = {"job": str(run.job), "scheduled_at": run.scheduled_at, "attempt": run.attempt}
    release = Path(directory, f"release-{run.attempt}")
    with witnessed(Path(os.environ[WITNESS_LOG]), run=str(run.id), **start):
        while not release.exists():
            time.sleep(0.01)
        with closing(sqlite3.connect(Path(directory, "store.sqlite3"), timeout=60)) as store, store:
            value = (run.attempt, run.fence, run.fence)
            written = store.execute(
                "UPDATE value SET attempt = ?, fence = ? WHERE fence < ?", value
            )
            store.execute("INSERT INTO try VALUES (?, ?)", (run.attempt, written.rowcount))


@shared_task
def wait_for_file(path: str) -> str:
    while not Path(path).exists():
        time.sleep(0.01)
    return "found"


@shared_task
def nap(seconds: float) -> None:
    """Sleep in short steps, because an exception reaches a thread only between two steps."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(0.01)


@shared_task
def ignore_soft_time_limit(seconds: float) -> str:
    """Run for `seconds`, ignoring the soft time limit."""
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        try:
            time.sleep(left)
        except SoftTimeLimitExceeded:
            continue
    return "to the end"


@shared_task(bind=True)
def facts(self: "Task[Any, Any]") -> dict[str, Any]:
    return {
        "id": self.request.id,
        "retries": self.request.retries,
        "eager": self.request.called_directly,
    }


@shared_task(bind=True)
def retry_in_an_hour(self: "Task[Any, Any]") -> None:
    raise self.retry(countdown=3600)


@shared_task(bind=True)
def retry_twice(self: "Task[Any, Any]") -> None:
    raise self.retry(exc=ConnectionResetError("no answer"), countdown=3, max_retries=2)


@shared_task(autoretry_for=(ConnectionError,))
def retry_by_itself() -> None:
    raise ConnectionResetError("no answer")


@shared_task(autoretry_for=(Exception,))
def retry_for_any_error(amount: int) -> None:
    raise ConnectionResetError(f"no answer for {amount}")


@shared_task
def busy() -> None:
    raise django_dcron.RetryLater("busy", after=timedelta(hours=1))


@shared_task
def report_progress(seconds: float) -> None:
    run = django_dcron.current_run()
    run.progress(3, 10, "rows")
    print("three rows", flush=True)  # noqa: T201
    time.sleep(seconds)


@shared_task
def clean_up_when_cancelled(seconds: float) -> str:
    """When asked to stop, clean up and report it."""
    run = django_dcron.current_run()
    try:
        end = time.monotonic() + seconds
        while not run.cancelled and time.monotonic() < end:
            time.sleep(0.01)
    except RunCancelled:
        pass
    return f"in order; cancelled: {run.cancelled}"


@shared_task
def ignore_exceptions(seconds: float) -> None:
    """Run for `seconds`, ignoring every exception."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            time.sleep(0.01)
        except BaseException:  # noqa: S112
            continue
