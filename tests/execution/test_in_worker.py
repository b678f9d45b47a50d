"""Runs on real Celery workers: stopped, killed, delivered twice, without their database."""

import json
import os
import re
import signal
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db import connection

from django_dcron import control
from django_dcron.dispatch import DueRun
from django_dcron.dispatch.celery import CeleryDispatcher
from django_dcron.models import Attempt, Job, Run
from tests.app.models import Witness
from tests.celery_app import app
from tests.conftest import StartProcess
from tests.execution.conftest import attempt_of, reread, state_of
from tests.factories import make_idle_job
from tests.services import Process, Server
from tests.waiting import wait_until

pytestmark = pytest.mark.every_database

SHORT = {"RUN_LEASE": 1, "STOP_WITHOUT_HEARTBEAT_AFTER": 60, "HARD_TIMEOUT_AFTER": 0.5}
LONG = 60.0
"""Seconds that a run takes if nothing stops it."""

StartWorker = Callable[..., Process]


@pytest.fixture
def worker(
    start_worker: StartProcess, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> StartWorker:
    """Start a worker with a short lease and a short delay between soft and hard timeout."""
    settings.DCRON_HARD_TIMEOUT_AFTER = timedelta(seconds=SHORT["HARD_TIMEOUT_AFTER"])

    def start(pool: str = "prefork", **options: Any) -> Process:
        if pool == "threads":
            # Before CPython 3.12, an exception that is pending for one thread blocks all other
            # traced threads. So coverage is off here.
            for name in ("COVERAGE_PROCESS_START", "COVERAGE_PROCESS_CONFIG"):
                monkeypatch.delenv(name, raising=False)
        return start_worker(env={"DCRON_TEST_SETTINGS": json.dumps(SHORT)}, pool=pool, **options)

    return start


def test_worker_with_invalid_settings_does_not_start(start_worker: StartProcess) -> None:
    invalid = {"DCRON_TEST_SETTINGS": json.dumps({"RUN_LEASE": 0.5, "LEASE": 0.1})}
    worker = start_worker(env=invalid, wait=False)
    assert worker.wait() == 1
    for name in ("DCRON_RUN_LEASE", "DCRON_LEASE"):
        assert worker.log.count(f"\n{name} ") == 1
    assert worker.log.endswith("Correct them. See manage.py check.\n")


def job_of(task: str, *args: Any, **fields: Any) -> Job:
    return make_idle_job(target=f"tests.app.tasks.{task}", args=list(args), **fields)


def trigger(task: str, *args: Any, **fields: Any) -> Run:
    return control.trigger(job_of(task, *args, **fields))


def wait_for_end(run: Run, number: int = 1) -> Attempt:
    ended = Attempt.objects.filter(run=run, number=number).exclude(outcome="")
    wait_until(ended.exists, what=f"the end of {run}, attempt {number}")
    return attempt_of(run, number)


def wait_for_witness(run: Run) -> Witness:
    witness = wait_until(
        lambda: Witness.objects.filter(run_id=str(run.pk)).first(), 30, what="a start"
    )
    assert witness is not None
    return witness


def assert_alive(worker: Process) -> None:
    assert wait_for_end(trigger("ok")).outcome == "succeeded"
    assert worker.running


def publish(run: Run, attempt: int, times: int = 1) -> None:
    """Publish the attempt directly, without a node."""
    due = DueRun(run.pk, attempt, run.due_at, run.job_id, str(run.job), run.job.target)
    dispatcher = CeleryDispatcher()
    try:
        dispatcher.publish([dispatcher.prepare(due) for _ in range(times)])
    finally:
        dispatcher.close()


def messages() -> tuple[int, int]:
    """Return the numbers of messages in the queue and of fetched, unacknowledged messages."""
    with app.connection_for_read() as connection:
        client = connection.default_channel.client
        return client.llen("celery"), client.hlen("unacked")


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_timeouts_are_recorded_and_the_worker_survives(worker: StartWorker, pool: str) -> None:
    process = worker(pool=pool)
    second = timedelta(seconds=1)
    # A thread gets the exception only when it executes Python code, so ``nap`` sleeps in short
    # steps.
    stopping = trigger("nap", LONG, timeout=second)
    ignoring = trigger("ignore_soft_time_limit", 3.5, timeout=second)

    attempt = wait_for_end(stopping)
    assert (attempt.outcome, state_of(stopping)) == ("timed_out", "failed")
    assert attempt.exception_class.endswith("SoftTimeLimitExceeded")
    assert "in nap" in attempt.traceback

    attempt = wait_for_end(ignoring)
    assert (attempt.outcome, state_of(ignoring)) == ("timed_out", "failed")
    assert_alive(process)


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_coroutine_ends_at_its_timeout_and_when_it_is_cancelled(
    worker: StartWorker, pool: str
) -> None:
    process = worker(pool=pool)
    timed_out = trigger("wait", LONG, timeout=timedelta(seconds=1))
    cancelled = trigger("wait", LONG)
    wait_until(lambda: state_of(cancelled) == "running", 30)
    control.cancel(reread(cancelled), "by hand")
    for run, outcome in ((timed_out, "timed_out"), (cancelled, "cancelled")):
        attempt = wait_for_end(run)
        assert (attempt.outcome, "in wait" in attempt.traceback) == (outcome, True)
        assert "the coroutine ended" in attempt.log
    assert_alive(process)


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_cancel_stops_a_running_run(worker: StartWorker, pool: str) -> None:
    process = worker(pool=pool)
    run = trigger("nap", LONG, max_attempts=3)
    wait_until(lambda: state_of(run) == "running", 30)
    control.cancel(reread(run), "by hand")
    attempt = wait_for_end(run)
    assert (attempt.outcome, state_of(run), reread(run).attempt) == ("cancelled", "cancelled", 1)
    assert_alive(process)


def test_run_of_a_killed_worker_process_is_retried_at_once(worker: StartWorker) -> None:
    process = worker()
    run = trigger("witness", LONG, max_attempts=2, retry_backoff=timedelta())
    child = wait_for_witness(run).worker_pid
    assert child != process.pid
    os.kill(child, signal.SIGKILL)

    attempt = wait_for_end(run)

    # There was no node to find the expired heartbeat, so it was Celery that reported the loss.
    assert attempt.outcome == "lost"
    assert "worker process died" in attempt.message
    assert "Job:" not in attempt.message
    after = reread(run)
    assert (after.state, after.attempt) == ("pending", 2)
    Job.objects.filter(pk=run.job_id).update(args=[0])
    publish(after, 2)
    assert wait_for_end(run, 2).outcome == "succeeded"
    assert [witness.attempt for witness in Witness.objects.order_by("pk")] == [1, 2]


def test_line_of_celery_names_the_outcome(worker: StartWorker) -> None:
    process = worker()
    for outcome, run in {"succeeded": trigger("ok"), "failed": trigger("fail")}.items():
        line = re.compile(rf"{run.pk}\.1\] succeeded in .*: 'attempt {outcome}'")
        wait_until(lambda line=line: line.search(process.log), what=f"the line of {outcome}")


def test_duplicate_deliveries_start_once(worker: StartWorker) -> None:
    process = worker(concurrency=2)
    runs = [trigger("witness", 0.3) for _ in range(3)]
    for run in runs:
        publish(run, 1, times=3)
    for run in runs:
        assert wait_for_end(run).outcome == "succeeded"
    assert_alive(process)  # this run is queued behind the duplicates
    for run in runs:
        publish(run, 1)  # duplicates after the end of the run
    assert_alive(process)
    assert Attempt.objects.filter(run__in=runs).count() == 3
    assert sorted(Witness.objects.values_list("run_id", flat=True)) == sorted(
        str(run.pk) for run in runs
    )


def test_messages_of_ended_runs_are_acknowledged(worker: StartWorker) -> None:
    worker(concurrency=1)
    runs = [trigger("ok") for _ in range(9)]
    for run in runs:
        assert wait_for_end(run).outcome == "succeeded"
    wait_until(lambda: messages() == (0, 0), what="the acknowledgement of all messages")


def test_stopping_worker_acknowledges_its_last_run(worker: StartWorker, tmp_path: Path) -> None:
    """The worker returns the messages that wait for its child."""
    process = worker(concurrency=1)
    running = trigger("wait_for_file", str(tmp_path / "go"))
    waiting = [trigger("ok") for _ in range(2)]
    for run in [running, *waiting]:
        process.wait_for_log(f"[{run.pk}.1] received")
    os.kill(process.pid, signal.SIGTERM)
    process.wait_for_log("Warm shutdown")
    (tmp_path / "go").touch()
    wait_until(lambda: not process.running, 30, what="the end of the worker")
    assert wait_for_end(running).outcome == "succeeded"
    assert messages() == (len(waiting), 0)


def test_celery_task_sees_its_attempt_and_its_retry_becomes_an_attempt(worker: StartWorker) -> None:
    worker()
    plain = trigger("facts")
    requested = trigger("retry_in_an_hour", max_attempts=3, retry_backoff=timedelta(seconds=1))
    automatic = trigger(
        "retry_by_itself", max_attempts=3, retry_backoff=timedelta(minutes=10), retry_jitter=0
    )
    later = trigger("busy", max_attempts=3)
    exhausted = trigger("retry_by_itself", max_attempts=1)

    facts = json.loads(wait_for_end(plain).result)
    assert facts == {"id": str(plain.pk), "retries": 0, "eager": False}
    for run, wait in ((requested, 3600), (automatic, 600), (later, 3600)):
        attempt = wait_for_end(run)
        assert attempt.outcome == "failed"
        after = reread(run)
        assert (after.state, after.attempt) == ("pending", 2)
        assert attempt.finished_at is not None
        planned = (after.due_at - attempt.finished_at).total_seconds()
        assert wait - 20 < planned < wait + 20
    assert wait_for_end(exhausted).exception_class == "ConnectionResetError"
    assert state_of(exhausted) == "failed"

    Run.objects.filter(pk=requested.pk).update(due_at=requested.due_at)
    Job.objects.filter(pk=requested.job_id).update(target="tests.app.tasks.facts")
    publish(reread(requested), 2)
    assert json.loads(wait_for_end(requested, 2).result)["retries"] == 1


def test_progress_and_log_are_visible_during_the_run(worker: StartWorker) -> None:
    worker()
    run = trigger("report_progress", LONG)

    def shown() -> bool:
        return Attempt.objects.filter(
            run=run, progress_done=3, progress_total=10, progress_note="rows"
        ).exists()

    wait_until(shown, what="the progress")
    assert "three rows" in attempt_of(run).log
    assert state_of(run) == "running"
    control.cancel(reread(run))
    wait_for_end(run)


@pytest.mark.postgresql
def test_outcome_waits_for_the_database_and_is_recorded_once(
    worker: StartWorker, database_server: Server
) -> None:
    process = worker()
    run = trigger("witness", 1.0)
    wait_for_witness(run)
    connection.close()
    try:
        database_server.stop()
        process.wait_for_log("waiting for the database: ")
    finally:
        database_server.start()
    assert wait_for_end(run).outcome == "succeeded"
    after = reread(run)
    assert (after.state, after.job.statistics.succeeded) == ("succeeded", 1)
    assert Witness.objects.count() == 1
    assert_alive(process)
