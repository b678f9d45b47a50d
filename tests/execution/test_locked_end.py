"""Another session locks the rows of a run whose code has ended.

The process keeps the outcome, executes other runs, and records the outcome once the rows are free.
"""

import json
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

import pytest
from django.db import connections

import django_dcron
from django_dcron import control
from django_dcron.execution import executor, pending_outcomes
from django_dcron.execution.executor import execute
from django_dcron.execution.heartbeat import Heartbeats
from django_dcron.execution.pending_outcomes import PendingOutcomes
from django_dcron.models import Attempt, Job, Run, Statistics
from django_dcron.policies.lifecycle import State
from tests.conftest import StartProcess
from tests.execution.conftest import MakeTarget, attempt_of, reread, state_of
from tests.factories import make_idle_job, make_run
from tests.lock_holder import keeping_locked, lock_limit
from tests.logs import logged
from tests.threads import in_threads
from tests.waiting import TIMEOUT, wait_until

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.postgresql,
    pytest.mark.mariadb,
]

LOCKS: dict[str, Callable[[Run], AbstractContextManager[None]]] = {
    "run": lambda run: keeping_locked(Run.objects.filter(pk=run.pk)),
    "attempt": lambda run: keeping_locked(Attempt.objects.filter(pk=attempt_of(run).pk).order_by()),
}


@pytest.fixture(autouse=True)
def outcomes(monkeypatch: pytest.MonkeyPatch) -> Iterator[PendingOutcomes]:
    """The pending outcomes of this test."""
    pending = PendingOutcomes()
    monkeypatch.setattr(executor, "process_outcomes", lambda: pending)
    yield pending
    assert pending.flush(TIMEOUT)


class LockedEnd:
    """Executes a run. Another session locks a row of the run before its code ends."""

    def __init__(self, make_target: MakeTarget, row: str, code: Callable[[], Any], **job: Any):
        self._stack = ExitStack()
        self.heartbeats = Heartbeats()

        def locked() -> Any:
            self._stack.enter_context(LOCKS[row](self.run))
            return code()

        self.run = make_run(make_idle_job(target=make_target(locked), **job), "queued")

    def __enter__(self) -> Run:
        assert execute(self.run.pk, 1, worker="w", heartbeats=self.heartbeats)
        return self.run

    def __exit__(self, *error: object) -> None:
        self._stack.close()


def fail() -> None:
    raise ZeroDivisionError


def succeed() -> str:
    django_dcron.current_run().progress(50)
    return "done"


CASES: dict[str, tuple[Callable[[], Any], dict[str, Any], str]] = {
    "succeeds": (succeed, {}, "succeeded"),
    "a run may wait for it": (succeed, {"overlap_policy": "queue_all"}, "succeeded"),
    "fails": (fail, {}, "failed"),
    "is retried": (fail, {"max_attempts": 2}, "pending"),
}


@pytest.mark.parametrize("row", LOCKS)
@pytest.mark.parametrize("case", CASES)
def test_process_keeps_the_outcome_of_a_locked_run_and_executes_others(
    row: str, case: str, make_target: MakeTarget, outcomes: PendingOutcomes
) -> None:
    code, job, state = CASES[case]
    other = make_run(make_idle_job(target=make_target(succeed)), "queued")
    limit = lock_limit()
    with LockedEnd(make_target, row, code, **job) as run:
        assert execute(other.pk, 1, worker="w")
        assert (state_of(run), state_of(other)) == ("running", "succeeded")
        assert lock_limit() == limit, "the limit of the project's connection is restored"
        assert not outcomes.flush(0)
    assert outcomes.flush(TIMEOUT)
    assert state_of(run) == state
    attempt = attempt_of(run)
    assert attempt.outcome == ("succeeded" if code is succeed else "failed")
    assert (attempt.result, attempt.progress_done) == (
        ('"done"', 50) if code is succeed else ("", None)
    )
    assert ("ZeroDivisionError" in attempt.traceback) == (code is fail)
    counts = Statistics.objects.get(pk=run.job_id)
    assert counts.succeeded == (state == "succeeded")
    assert counts.failed == (state == "failed")


def test_heartbeats_of_a_kept_outcome_continue(make_target: MakeTarget) -> None:
    end = LockedEnd(make_target, "attempt", succeed)
    with end as run:
        before = reread(run).heartbeat_at
        end.heartbeats.request_round()
        wait_until(lambda: reread(run).heartbeat_at != before, what="another heartbeat")


def test_heartbeats_of_other_runs_do_not_wait_for_a_kept_outcome(
    make_target: MakeTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An UPDATE would wait for each locked row, in each round."""
    renewed: list[Any] = []
    end = LockedEnd(make_target, "run", succeed)
    with end as run:
        monkeypatch.setattr(
            "django_dcron.runs.transitions.renew_heartbeat",
            lambda run_id, _: renewed.append(run_id),
        )
        (heartbeat,) = end.heartbeats._heartbeats
        in_threads(lambda: end.heartbeats._renew_ended([heartbeat]))
        assert not heartbeat.failed
    assert run.pk not in renewed


def test_full_list_of_outcomes_makes_the_process_wait(
    make_target: MakeTarget, outcomes: PendingOutcomes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pending_outcomes, "MAX_OUTCOMES", 0)
    refused, ended = threading.Event(), threading.Event()
    monkeypatch.setattr(
        outcomes, "add", lambda *given: refused.set() or PendingOutcomes.add(outcomes, *given)
    )
    end = LockedEnd(make_target, "run", succeed)

    def work() -> None:
        with end:
            ended.set()
        connections.close_all()

    thread = threading.Thread(target=work)
    thread.start()
    assert refused.wait(TIMEOUT)
    assert not ended.is_set()
    end.__exit__()
    thread.join(TIMEOUT)
    assert ended.is_set()
    assert state_of(end.run) == "succeeded"


def test_auto_pause_of_a_locked_job_does_not_delay_the_worker(make_target: MakeTarget) -> None:
    job = make_idle_job(target=make_target(fail), pause_after_failures=1)
    run = make_run(job, "queued")
    with keeping_locked(Job.objects.filter(pk=job.pk)):
        assert execute(run.pk, 1, worker="w")
        assert state_of(run) == State.FAILED
    job.refresh_from_db()
    assert job.enabled, "a node pauses it later"


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_worker_records_its_outcomes_before_it_exits(
    start_worker: StartProcess, tmp_path: Path, pool: str
) -> None:
    file, worker = tmp_path / "file", start_worker(pool=pool)
    run = _run_that_waits_for(file)
    with keeping_locked(Run.objects.filter(pk=run.pk)):
        file.touch()
        worker.wait_for_log("outcome kept")
        worker.terminate()
        worker.wait_for_log("waits for locked runs before it exits")
    assert worker.wait() == 0
    assert (state_of(run), attempt_of(run).result) == ("succeeded", '"found"')


def test_worker_exits_although_a_run_stays_locked(
    start_worker: StartProcess, tmp_path: Path
) -> None:
    file = tmp_path / "file"
    worker = start_worker(env={"DCRON_TEST_SETTINGS": json.dumps({"RUN_LEASE": 1})})
    run = _run_that_waits_for(file)
    with keeping_locked(Run.objects.filter(pk=run.pk)):
        file.touch()
        worker.wait_for_log("outcome kept")
        worker.terminate()
        assert worker.wait() == 0
    assert "outcomes lost: runs=1" in worker.log
    assert state_of(run) == "running", "a node declares the attempt lost"


def _run_that_waits_for(file: Path) -> Run:
    job = make_idle_job(target="tests.app.tasks.wait_for_file", args=[str(file)])
    run = control.trigger(job)
    wait_until(lambda: state_of(run) == "running", what="the start of the run")
    return run


def test_unexpected_error_does_not_keep_other_outcomes_from_being_recorded(
    make_target: MakeTarget, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    real = pending_outcomes._unlocked
    errors = iter([ZeroDivisionError()])

    def broken_once(run_ids: Any) -> Any:
        if error := next(errors, None):
            raise error
        return real(run_ids)

    monkeypatch.setattr(pending_outcomes, "_unlocked", broken_once)
    caplog.set_level(logging.WARNING, "django_dcron.runs")
    with LockedEnd(make_target, "run", succeed) as run:
        assert logged(caplog, "outcome_kept")
    wait_until(lambda: state_of(run) == "succeeded")
