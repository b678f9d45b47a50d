"""The forced end of an attempt whose process is gone, recorded by another process."""

from unittest import mock
from uuid import uuid4

import pytest
from celery.exceptions import WorkerLostError
from django.db import InterfaceError, OperationalError

from django_dcron import tasks
from django_dcron.execution.termination import record_killed_attempt
from django_dcron.models import Run
from django_dcron.policies.lifecycle import Outcome, State
from django_dcron.runs import endings, transitions
from django_dcron.runs.endings import AttemptEnd
from tests.execution.conftest import attempt_of, reread, state_of
from tests.factories import make_idle_job, make_run
from tests.logs import logged

pytestmark = pytest.mark.django_db(transaction=True)


def end(run: Run, outcome: Outcome = Outcome.LOST, *, attempt: int = 1, worker: str = "w") -> None:
    record_killed_attempt(run.pk, attempt, outcome, "its process died", worker=worker)


@pytest.mark.parametrize("outcome", [Outcome.LOST, Outcome.TIMED_OUT])
def test_retry_policy_decides_about_killed_attempt(outcome: Outcome) -> None:
    run = make_run(make_idle_job(max_attempts=2), "running")
    end(run, outcome)
    assert (state_of(run), reread(run).attempt) == (State.PENDING, 2)
    assert (attempt_of(run).outcome, attempt_of(run).message) == (outcome, "its process died")


def test_message_of_a_killed_attempt_has_the_exact_duration() -> None:
    """Celery's hard limit of a run with a timeout of 14 days."""
    request = mock.Mock(spec=["_end_by_force"])
    with mock.patch.object(tasks, "super", create=True):
        tasks.RunRequest.on_timeout(request, soft=False, timeout=1_213_210)
    request._end_by_force.assert_called_once_with(
        Outcome.TIMED_OUT, "killed: still running after 14d1h10s"
    )


@pytest.mark.parametrize(
    ("status", "is_explained"), [("signal 9 (SIGKILL)", True), ("exitcode 1", False)]
)
def test_message_of_a_dead_process_has_no_number_and_explains_sigkill(
    status: str, is_explained: bool
) -> None:
    request = mock.Mock(spec=["_end_by_force"])
    causes = [WorkerLostError(f"Worker exited prematurely: {status} Job: {n}.") for n in (1, 134)]
    with mock.patch.object(tasks, "super", create=True):
        for cause in causes:
            tasks.RunRequest.on_failure(request, mock.Mock(exception=cause))
    first, second = (call.args for call in request._end_by_force.call_args_list)
    assert first == second
    assert first[0] is Outcome.LOST
    assert status in first[1]
    assert ("dmesg" in first[1]) is is_explained


def test_ended_attempt_is_kept() -> None:
    run = make_run(make_idle_job(), "running")
    endings.finish(run, AttemptEnd(1, {"outcome": "succeeded"}), State.SUCCEEDED, "")
    end(run)
    assert (state_of(run), attempt_of(run).outcome) == (State.SUCCEEDED, Outcome.SUCCEEDED)


def test_death_of_an_earlier_attempt_does_not_end_the_run() -> None:
    run = make_run(make_idle_job(max_attempts=3), "running", attempt=2)
    end(run, attempt=1)
    assert state_of(run) == State.RUNNING


def test_run_on_another_worker_keeps_running() -> None:
    """The process that died had a second delivery of the run."""
    run = make_run(make_idle_job(), "running")
    end(run, worker="elsewhere")
    assert state_of(run) == State.RUNNING


def test_unstarted_run_is_kept() -> None:
    run = make_run(make_idle_job(), "queued")
    end(run)
    assert state_of(run) == State.QUEUED
    record_killed_attempt(uuid4(), 1, Outcome.LOST, "", worker="w")


@pytest.mark.parametrize("error", [OperationalError("gone"), InterfaceError("closed")], ids=repr)
def test_killed_attempt_is_left_to_the_scheduler_without_a_database(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    run = make_run(make_idle_job(), "running")
    with mock.patch.object(transitions, "runs", side_effect=error):
        end(run)
    assert state_of(run) == State.RUNNING
    assert logged(caplog, "termination_not_recorded")
