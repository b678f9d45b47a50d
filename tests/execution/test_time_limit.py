"""The job's timeout, in this process: first soft, then forced."""

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest
from celery.exceptions import SoftTimeLimitExceeded
from django.db import IntegrityError, ProgrammingError

from django_dcron import control, current_run
from django_dcron.exceptions import RunCancelled, RunTimedOut
from django_dcron.execution import termination, time_limit
from django_dcron.execution.executor import execute
from django_dcron.models import Job
from django_dcron.policies.lifecycle import Outcome, State
from tests.execution.conftest import MakeTarget, attempt_of, reread, state_of
from tests.factories import make_idle_job, make_run
from tests.logs import logged
from tests.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)

TIMEOUT = timedelta(milliseconds=200)
HOUR = timedelta(hours=1)
PATIENCE = 30.0


def job_with_timeout(target: str, timeout: timedelta = TIMEOUT, **fields: Any) -> Job:
    job = make_idle_job(target=target, **fields)
    Job.objects.update(timeout=timeout)  # shorter than a job's validation allows
    return job


def spin_until(done: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not done() and time.monotonic() < end:
        pass


def in_thread(work: Callable[[], Any]) -> None:
    from django.db import connections

    def work_and_close() -> None:
        try:
            work()
        finally:
            connections.close_all()

    thread = threading.Thread(target=work_and_close)
    thread.start()
    thread.join(2 * PATIENCE)


def in_main(work: Callable[[], Any]) -> None:
    work()


@pytest.mark.parametrize("where", [in_main, in_thread])
@pytest.mark.parametrize("exception", [RunTimedOut, SoftTimeLimitExceeded])
def test_code_is_interrupted_at_its_timeout_and_can_clean_up(
    make_target: MakeTarget, where: Callable[..., None], exception: type[Exception]
) -> None:
    cleaned = []

    def endless() -> None:
        try:
            spin_until(lambda: False)
        except exception:
            cleaned.append("up")
            raise

    run = make_run(job_with_timeout(make_target(endless), max_attempts=2))
    began = time.monotonic()
    where(lambda: execute(run.pk, 1, worker="w", timeout_exception=exception))
    assert time.monotonic() - began < PATIENCE
    assert cleaned == ["up"]
    attempt = attempt_of(run)
    assert attempt.outcome == Outcome.TIMED_OUT
    assert attempt.exception_class.endswith(exception.__name__)
    assert "in endless" in attempt.traceback
    assert (state_of(run), reread(run).attempt) == (State.PENDING, 2)


def test_code_that_ends_in_time_succeeds(make_target: MakeTarget) -> None:
    run = make_run(job_with_timeout(make_target(lambda: "done"), timedelta(hours=1)))
    execute(run.pk, 1, worker="w")
    assert attempt_of(run).result == '"done"'
    wait_until(
        lambda: not any(isinstance(thread, threading.Timer) for thread in threading.enumerate())
    )


def test_code_that_catches_the_timeout_and_returns_succeeds(make_target: MakeTarget) -> None:
    def partial() -> str:
        with suppress(RunTimedOut):
            spin_until(lambda: False)
        return "as far as it got"

    run = make_run(job_with_timeout(make_target(partial)))
    execute(run.pk, 1, worker="w")
    assert (state_of(run), attempt_of(run).result) == (State.SUCCEEDED, '"as far as it got"')


def test_code_that_ignores_the_timeout_is_recorded_as_timed_out_before_its_process_is_ended(
    make_target: MakeTarget, settings: Any
) -> None:
    settings.DCRON_HARD_TIMEOUT_AFTER = timedelta(milliseconds=200)
    ended = threading.Event()

    def stubborn() -> None:
        print("ignoring the timeout")  # noqa: T201
        while not ended.is_set():
            with suppress(RunTimedOut):
                spin_until(ended.is_set)

    run = make_run(job_with_timeout(make_target(stubborn)))
    execute(run.pk, 1, worker="w", end_process=ended.set)
    attempt = attempt_of(run)
    assert attempt.outcome == Outcome.TIMED_OUT
    # Before the code returns, the heartbeat may notice that the run has ended, and interrupt it.
    assert attempt.late_outcome in (Outcome.SUCCEEDED, Outcome.CANCELLED)
    assert "did not stop within" in attempt.message
    assert attempt.log == "ignoring the timeout\n"
    assert state_of(run) == State.FAILED
    assert reread(run).job.statistics.failed == 1


@pytest.mark.parametrize("where", [in_main, in_thread])
def test_loop_that_catches_the_timeout_is_interrupted_again(
    make_target: MakeTarget, settings: Any, where: Callable[..., None]
) -> None:
    settings.DCRON_HARD_TIMEOUT_AFTER = timedelta(milliseconds=200)
    caught = []

    def loop() -> None:
        for _ in range(2):
            try:
                spin_until(lambda: False)
            except Exception as error:
                caught.append(type(error))

    run = make_run(job_with_timeout(make_target(loop), max_attempts=2))
    where(lambda: execute(run.pk, 1, worker="w"))
    assert caught == [RunTimedOut]
    attempt = attempt_of(run)
    assert (attempt.outcome, attempt.late_outcome) == (Outcome.TIMED_OUT, "")
    assert "did not stop within" in attempt.message
    assert "in loop" in attempt.traceback
    assert __file__ in attempt.raised_in
    assert (state_of(run), reread(run).attempt) == (State.PENDING, 2)


def spin_beside(call: Callable[[], None]) -> None:
    threading.Thread(target=call).start()
    spin_until(lambda: False)


def ignore_timeout() -> None:
    """Let the code pass its timeout and its hard timeout here, and catch both exceptions.

    The timers of a short timeout could end before a slow machine has started the code.
    """
    run = current_run()

    def pass_timeout() -> None:
        run.interruption.interrupt(run.timeout_exception)

    def pass_hard_timeout() -> None:
        time_limit._stop_after_hard_timeout(run)

    for exception, stop in ((RunTimedOut, pass_timeout), (RunCancelled, pass_hard_timeout)):
        with pytest.raises(exception):
            spin_beside(stop)


def test_next_attempt_waits_for_code_whose_process_cannot_be_ended(
    make_target: MakeTarget, caplog: pytest.LogCaptureFixture
) -> None:
    while_running = []

    def stubborn() -> str:
        ignore_timeout()
        while_running.append((state_of(run), attempt_of(run).outcome))
        return "perhaps incomplete"

    run = make_run(job_with_timeout(make_target(stubborn), HOUR, max_attempts=2))
    execute(run.pk, 1, worker="w")
    assert while_running == [(State.RUNNING, "")]
    attempt = attempt_of(run)
    assert (attempt.outcome, attempt.late_outcome) == (Outcome.TIMED_OUT, "")
    assert (state_of(run), reread(run).attempt) == (State.PENDING, 2)
    assert logged(caplog, "timeout_ignored", run=str(run.pk), attempt=1, worker="w")


@pytest.mark.parametrize("end_process", [None, lambda: None])
def test_code_that_returns_just_before_its_hard_timeout_has_not_timed_out(
    make_target: MakeTarget, caplog: pytest.LogCaptureFixture, end_process: Callable[[], None]
) -> None:
    executed = []
    run = make_run(job_with_timeout(make_target(lambda: executed.append(current_run())), HOUR))
    # The timer's thread runs beside the executing thread, so it may be late.
    execute(run.pk, 1, worker="w", end_process=end_process)
    time_limit._stop_after_hard_timeout(executed[0])
    assert (executed[0].cancelled, executed[0].ignored_timeout) == (False, False)
    assert not logged(caplog, "timeout_ignored")
    attempt = attempt_of(run)
    assert (attempt.outcome, attempt.late_outcome) == (Outcome.SUCCEEDED, "")


def test_run_that_ignores_its_timeout_and_is_cancelled_is_not_retried(
    make_target: MakeTarget,
) -> None:
    def stubborn() -> None:
        ignore_timeout()
        control.cancel(reread(run), "by hand")

    run = make_run(job_with_timeout(make_target(stubborn), HOUR, max_attempts=2))
    execute(run.pk, 1, worker="w")
    assert (state_of(run), reread(run).reason) == (State.CANCELLED, "by hand")


def test_cancelled_code_that_ignores_its_timeout_is_cancelled(make_target: MakeTarget) -> None:
    def work_until_stopped(stop: Callable[[], None]) -> None:
        threading.Thread(target=stop).start()
        spin_until(lambda: False)

    def stubborn() -> None:
        this = current_run()
        for stop in (this.cancel, this.stop_after_hard_timeout):
            with pytest.raises(RunCancelled):
                work_until_stopped(stop)

    run = make_run(job_with_timeout(make_target(stubborn), timedelta(hours=1)))
    execute(run.pk, 1, worker="w")
    assert attempt_of(run).outcome == Outcome.CANCELLED


@pytest.mark.parametrize("error", [ProgrammingError("no such column"), IntegrityError("duplicate")])
def test_process_is_ended_even_if_the_outcome_cannot_be_recorded(
    make_target: MakeTarget,
    settings: Any,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    error: Exception,
) -> None:
    settings.DCRON_HARD_TIMEOUT_AFTER = timedelta(milliseconds=200)
    ended = threading.Event()

    def refuse(*given: Any) -> None:
        raise error

    def stubborn() -> None:
        deadline = time.monotonic() + PATIENCE
        while not ended.is_set() and time.monotonic() < deadline:
            with suppress(RunTimedOut):
                spin_until(ended.is_set)

    monkeypatch.setattr(termination, "end_attempt", refuse)
    run = make_run(job_with_timeout(make_target(stubborn)))
    execute(run.pk, 1, worker="w", end_process=ended.set)
    assert ended.is_set()
    assert logged(caplog, "outcome_not_recorded", run=str(run.pk), attempt=1, worker="w")
