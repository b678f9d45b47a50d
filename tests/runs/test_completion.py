"""The completion of an attempt: the job's policies decide once what follows."""

import logging
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any
from unittest import mock
from uuid import uuid4

import pytest
from pytest_django import DjangoCaptureOnCommitCallbacks

from django_dcron import control
from django_dcron.db.now import database_now
from django_dcron.diagnosis.why.explanation import explain
from django_dcron.diagnosis.why.run_sentences import run_sentences
from django_dcron.dispatch import best_effort
from django_dcron.exceptions import Conflict
from django_dcron.jobs import pausing
from django_dcron.jobs.attempt_end import declare_lost, end_attempt
from django_dcron.jobs.definitions import record_definition
from django_dcron.models import Attempt, Job, Run, Statistics
from django_dcron.policies.lifecycle import Outcome, State
from django_dcron.policies.retry import Failure, FailureClass
from django_dcron.policies.slots import Slot
from django_dcron.runs import completion, endings, transitions
from django_dcron.runs.completion import WITHOUT_EXCEPTION, Ending
from django_dcron.runs.endings import LastHeartbeat
from django_dcron.targets.shadow import NOT_EXECUTED
from tests.execution.conftest import attempt_of, reread, state_of
from tests.factories import make_idle_job, make_job, make_run
from tests.logs import logged
from tests.scheduler.stand_ins import MemoryDispatcher

pytestmark = pytest.mark.django_db

MINUTE = timedelta(minutes=1)
SUCCEEDED = Ending(Outcome.SUCCEEDED, result="42")
CANCELLED = Ending(Outcome.CANCELLED, exception_class="RunCancelled")
TOLERANCE = timedelta(seconds=20)
"""Maximum time that a slow machine may take between two statements."""


def failed(kind: FailureClass = FailureClass.TRANSIENT, *names: str, **failure: Any) -> Ending:
    return Ending(
        Outcome.FAILED,
        Failure(kind, frozenset(names), **failure),
        exception_class="ValueError",
        message="no",
        traceback="Traceback ...",
        output={"log": "printed"},
    )


def running(**job: Any) -> Run:
    return make_run(make_idle_job(**{"retry_jitter": 0.0, **job}), "running")


def retry_delay(run: Run) -> timedelta:
    return reread(run).due_at - database_now("default")


def about(wait: timedelta, expected: timedelta) -> bool:
    return expected - TOLERANCE <= wait <= expected


def test_success_ends_the_run_as_succeeded() -> None:
    run = running()
    assert end_attempt(run, 1, SUCCEEDED, attempt_of(run).token)
    after, attempt = reread(run), attempt_of(run)
    assert after.state == State.SUCCEEDED
    assert after.finished_at is not None
    assert (after.reason, after.slot) == ("", None)
    assert (attempt.outcome, attempt.result) == (Outcome.SUCCEEDED, "42")
    assert attempt.finished_at is not None
    assert after.job.statistics.succeeded == 1
    assert after.job.statistics.last_state == State.SUCCEEDED


def test_success_of_a_shadow_says_that_nothing_was_executed() -> None:
    job = make_idle_job(target="shadow:tests.app.tasks.ok")
    run = make_run(job, "running", scheduled_at=database_now("default").replace(microsecond=0))
    assert end_attempt(run, 1, SUCCEEDED, attempt_of(run).token)
    Job.objects.filter(pk=run.job_id).update(target="tests.app.tasks.ok")
    after = reread(run)
    assert (after.state, after.reason) == (State.SUCCEEDED, NOT_EXECUTED)
    codes = [sentence.code for sentence in explain(after.job, after.scheduled_at).sentences]
    assert "shadow_not_executed" in codes
    assert not {"succeeded", "reason"} & set(codes)


def test_success_of_a_shadow_is_counted_but_not_shown() -> None:
    run = running(target="shadow:tests.app.tasks.ok")
    Statistics.objects.filter(pk=run.job_id).update(consecutive_failures=2)
    assert end_attempt(run, 1, SUCCEEDED, attempt_of(run).token)
    statistics = reread(run).job.statistics
    assert (statistics.succeeded, statistics.shadow_runs) == (1, 1)
    assert (statistics.shown_count(State.SUCCEEDED), statistics.consecutive_failures) == (0, 0)
    assert statistics.last_state == State.SUCCEEDED


def test_failure_without_attempts_left_ends_the_run_with_its_reason() -> None:
    run = running()
    assert end_attempt(run, 1, failed(), attempt_of(run).token)
    after, attempt = reread(run), attempt_of(run)
    assert (after.state, after.reason) == (State.FAILED, "ValueError: no")
    assert (attempt.outcome, attempt.exception_class) == (Outcome.FAILED, "ValueError")
    assert (attempt.message, attempt.traceback, attempt.log) == ("no", "Traceback ...", "printed")
    assert (after.job.statistics.failed, after.job.statistics.consecutive_failures) == (1, 1)


def test_failure_with_attempts_left_is_retried_after_the_backoff() -> None:
    run = running(max_attempts=3, retry_backoff=10 * MINUTE, retry_backoff_factor=3)
    assert end_attempt(run, 1, failed(), attempt_of(run).token)
    after = reread(run)
    assert (after.state, after.attempt, after.finished_at) == (State.PENDING, 2, None)
    assert (after.deliveries, after.node, after.heartbeat_at) == (0, "", None)
    assert about(retry_delay(run), 10 * MINUTE)
    assert attempt_of(run).outcome == Outcome.FAILED
    assert after.job.statistics.failed == 0


def test_backoff_grows_and_the_last_attempt_fails_the_run() -> None:
    run = make_run(
        make_idle_job(
            max_attempts=3, retry_backoff=10 * MINUTE, retry_backoff_factor=3, retry_jitter=0
        ),
        "running",
        attempt=2,
    )
    assert end_attempt(run, 2, failed())
    assert about(retry_delay(run), 30 * MINUTE)
    Run.objects.update(state="running")
    assert end_attempt(reread(run), 3, failed())
    assert state_of(run) == State.FAILED


@pytest.mark.parametrize(
    ("ending", "again"),
    [
        (failed(FailureClass.PERMANENT, "PermanentFailure"), False),
        (failed(FailureClass.TRANSIENT, "OSError"), True),
        (failed(FailureClass.TRANSIENT, "KeyError"), False),
        (failed(FailureClass.TRANSIENT, "OSError", "TimeoutError"), False),
        (Ending(Outcome.TIMED_OUT, WITHOUT_EXCEPTION), True),
        (Ending(Outcome.LOST, WITHOUT_EXCEPTION), True),
    ],
    ids=["permanent", "named", "not named", "excluded", "timed out", "lost"],
)
def test_retry_policy_decides_by_exception_class_and_outcome(ending: Ending, again: bool) -> None:
    run = running(max_attempts=5, retry_on=["OSError"], never_retry_on=["TimeoutError"])
    assert end_attempt(run, 1, ending)
    assert state_of(run) == (State.PENDING if again else State.FAILED)
    assert attempt_of(run).outcome == ending.outcome


def test_retry_delay_requested_by_the_code_is_used() -> None:
    run = running(max_attempts=2, retry_backoff=MINUTE)
    end_attempt(run, 1, failed(retry_wanted=True, retry_after=60 * MINUTE))
    assert about(retry_delay(run), 60 * MINUTE)


def test_retry_delay_of_maximum_length_is_accepted() -> None:
    run = running(max_attempts=2)
    assert end_attempt(run, 1, failed(retry_wanted=True, retry_after=timedelta.max))
    assert retry_delay(run) > timedelta(days=365)


def test_contention_is_retried_soon() -> None:
    run = running(max_attempts=2, retry_backoff=60 * MINUTE)
    end_attempt(run, 1, failed(FailureClass.CONTENTION))
    assert retry_delay(run) < MINUTE


def test_lost_attempt_is_retried_and_keeps_its_log() -> None:
    run = running(max_attempts=2)
    Attempt.objects.update(log="so far")
    assert declare_lost(run, "its worker vanished")
    assert state_of(run) == State.PENDING
    lost = attempt_of(run)
    assert (lost.outcome, lost.message, lost.log) == (Outcome.LOST, "its worker vanished", "so far")


def test_retry_keeps_the_slot() -> None:
    run = running(max_attempts=2)
    Run.objects.update(slot=Slot.RUNNING)
    end_attempt(run, 1, failed())
    assert reread(run).slot == Slot.RUNNING


def test_end_of_run_wakes_the_waiting_run() -> None:
    run = running(overlap_policy="queue_all")
    Run.objects.update(slot=Slot.RUNNING)
    waiting = make_run(run.job, "waiting")
    end_attempt(run, 1, failed())
    after = reread(waiting)
    assert (after.state, after.slot) == (State.PENDING, Slot.RUNNING)


# --- exactly once -------------------------------------------------------------------------------


def test_second_start_of_an_attempt_is_closed_after_the_first_one_has_ended_the_run() -> None:
    """The database has lost the first start, as in a failover to an asynchronous replica."""
    run = running()
    second = attempt_of(run)
    assert end_attempt(run, 1, SUCCEEDED, uuid4()), "the first execution doesn't know of the second"
    assert not end_attempt(run, 1, failed(), second.token)
    assert state_of(run) == State.SUCCEEDED
    second.refresh_from_db()
    assert (second.outcome, second.late_outcome) == (Outcome.FAILED, "")
    assert second.finished_at is not None


def test_late_outcome_of_a_lost_attempt_does_not_change_its_run() -> None:
    run = running(max_attempts=2)
    token = attempt_of(run).token
    declare_lost(run, "gone")
    before = Run.objects.filter(pk=run.pk).values().get()

    assert not end_attempt(run, 1, SUCCEEDED, token)

    assert Run.objects.filter(pk=run.pk).values().get() == before
    attempt = attempt_of(run)
    assert (attempt.outcome, attempt.late_outcome, attempt.result) == (
        Outcome.LOST,
        Outcome.SUCCEEDED,
        "",
    )


def test_repeated_outcome_is_recorded_once() -> None:
    run = running()
    token = attempt_of(run).token
    assert end_attempt(run, 1, SUCCEEDED, token)
    assert not end_attempt(run, 1, SUCCEEDED, token)
    assert reread(run).job.statistics.succeeded == 1
    assert attempt_of(run).late_outcome == ""


def test_repeated_failure_schedules_one_retry() -> None:
    run = running(max_attempts=5)
    token = attempt_of(run).token
    assert end_attempt(run, 1, failed(), token)
    assert not end_attempt(run, 1, failed(), token)
    assert reread(run).attempt == 2


@pytest.mark.parametrize(
    "ending", [SUCCEEDED, failed(), CANCELLED], ids=["succeeded", "failed", "cancelled"]
)
@pytest.mark.parametrize("max_attempts", [1, 2])
def test_attempt_of_another_execution_is_not_closed(ending: Ending, max_attempts: int) -> None:
    run = running(max_attempts=max_attempts)
    end_attempt(run, 1, ending, uuid4())
    assert attempt_of(run).outcome == ""


def test_only_the_execution_itself_dispatches_followers(
    monkeypatch: pytest.MonkeyPatch,
    django_capture_on_commit_callbacks: DjangoCaptureOnCommitCallbacks,
) -> None:
    """Nodes dispatch what follows if another process ends the attempt.

    That process may have no time for a broker.
    """
    dispatched: list[Run] = []
    monkeypatch.setattr(endings, "dispatch_now", dispatched.append)
    job = make_idle_job()
    after = make_job(schedule="@never", after={str(job): "ended"})
    for ending in (SUCCEEDED, failed(), CANCELLED):
        by_itself, by_others = make_run(job, "running"), make_run(job, "running")
        with django_capture_on_commit_callbacks(execute=True):
            assert end_attempt(by_others, 1, ending)
        assert dispatched == []
        with django_capture_on_commit_callbacks(execute=True):
            assert end_attempt(by_itself, 1, ending, attempt_of(by_itself).token)
        [run] = dispatched
        assert (run.job_id, run.trigger) == (after.pk, "chain")
        dispatched.clear()


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("overlap", ["queue_one", "queue_all", "cancel_running"])
@pytest.mark.parametrize("unreachable", [False, True])
def test_run_that_waited_for_the_slot_is_dispatched_at_once(
    overlap: str, unreachable: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The runs that wait for the slot follow one another without waiting for a tick."""
    broker = MemoryDispatcher()
    broker.broker_unreachable = unreachable
    monkeypatch.setattr(best_effort, "shared_dispatcher", lambda: broker)
    monkeypatch.setattr(best_effort, "_broker_unreachable_until", float("-inf"))
    job = make_idle_job(overlap_policy=overlap)
    run = make_run(job, "running", slot=Slot.RUNNING)
    due_at = database_now("default") - timedelta(hours=1)
    waiting = make_run(job, "waiting", due_at=due_at, deliveries=1)
    Job.objects.filter(pk=job.pk).update(queue="mail")  # after the worker read the job
    assert end_attempt(run, 1, SUCCEEDED, attempt_of(run).token)
    after = reread(waiting)
    assert after.slot == Slot.RUNNING
    if unreachable:
        assert (after.state, after.deliveries, broker.dispatched) == (State.PENDING, 0, [])
        return
    assert (after.state, after.deliveries) == (State.QUEUED, 1)
    assert after.queued_at
    assert after.queued_at - due_at >= timedelta(hours=1)
    [due] = broker.dispatched
    assert (due.run_id, due.attempt, due.queue) == (waiting.pk, 1, "mail")


@pytest.mark.parametrize(
    "ending", [SUCCEEDED, failed(), CANCELLED], ids=["succeeded", "failed", "cancelled"]
)
@pytest.mark.parametrize("max_attempts", [1, 2])
@pytest.mark.parametrize("cancel_requested", [False, True])
def test_attempt_with_a_newer_heartbeat_is_not_ended(
    ending: Ending, max_attempts: int, cancel_requested: bool
) -> None:
    run = running(max_attempts=max_attempts)
    if cancel_requested:
        control.cancel(reread(run))
    earlier = LastHeartbeat(database_now("default") - MINUTE, attempt_of(run).token)
    assert not end_attempt(run, 1, ending, last_heartbeat=earlier)
    assert (state_of(run), attempt_of(run).outcome) == (State.RUNNING, "")
    latest = LastHeartbeat(reread(run).heartbeat_at, attempt_of(run).token)
    assert end_attempt(run, 1, ending, last_heartbeat=latest)


def test_cancelled_attempt_of_another_execution_is_not_closed() -> None:
    run = running()
    control.cancel(reread(run))
    assert end_attempt(run, 1, failed(), uuid4())
    assert (state_of(run), attempt_of(run).outcome) == (State.CANCELLED, "")


def test_ending_has_empty_texts_by_default() -> None:
    texts = dict.fromkeys(("exception_class", "message", "traceback", "raised_in", "result"), "")
    assert Ending(Outcome.LOST).columns() == {"outcome": Outcome.LOST, "incident": 0, **texts}
    assert Ending(Outcome.SUCCEEDED).columns() == {"outcome": Outcome.SUCCEEDED, **texts}
    assert (Ending(Outcome.LOST).failure, Ending(Outcome.LOST).reason) == (None, "")


def test_without_texts_keeps_only_the_outcome() -> None:
    ending = replace(failed(), result="42").without_texts("refused")
    texts = dict.fromkeys(("exception_class", "message", "traceback", "raised_in", "result"), "")
    expected = {"outcome": Outcome.FAILED, "incident": 0, **texts, "message": "refused"}
    assert ending.columns() == expected
    assert ending.failure == failed().failure


def test_ending_of_a_deleted_run_is_ignored() -> None:
    run = running()
    stale = reread(run)
    Job.objects.all().delete()
    for ending in (SUCCEEDED, failed(), CANCELLED):
        assert not end_attempt(stale, 1, ending, uuid4())


# --- cancellation -------------------------------------------------------------------------------


def test_cancelled_run_ends_as_cancelled() -> None:
    run = running(max_attempts=5)
    assert end_attempt(run, 1, CANCELLED, attempt_of(run).token)
    assert (state_of(run), attempt_of(run).outcome) == (State.CANCELLED, Outcome.CANCELLED)


@pytest.mark.parametrize("reason", ["by hand", ""])
@pytest.mark.parametrize("ending", [CANCELLED, failed()], ids=["cancelled", "failed"])
def test_cancelled_run_has_the_reason_of_the_request(ending: Ending, reason: str) -> None:
    by_code, requested = running(), running()
    assert end_attempt(by_code, 1, CANCELLED, attempt_of(by_code).token)
    assert "RunCancelled" in reread(by_code).reason
    control.cancel(reread(requested), reason)
    assert end_attempt(requested, 1, ending, attempt_of(requested).token)
    assert (state_of(requested), reread(requested).reason) == (State.CANCELLED, reason)


@pytest.mark.parametrize(
    "ending", [failed(), Ending(Outcome.LOST, WITHOUT_EXCEPTION)], ids=["failed", "lost"]
)
def test_cancelled_run_is_not_retried(ending: Ending) -> None:
    run = running(max_attempts=5)
    control.cancel(reread(run))
    assert end_attempt(run, 1, ending)
    assert (state_of(run), attempt_of(run).outcome) == (State.CANCELLED, ending.outcome)


def test_cancel_during_the_retry_decision_ends_the_run() -> None:
    run = running(max_attempts=3, overlap_policy="skip")
    Run.objects.filter(pk=run.pk).update(slot=Slot.RUNNING)

    def cancelled_meanwhile(using: str) -> datetime:
        control.cancel(reread(run), "by hand")
        return database_now(using)

    with mock.patch.object(completion, "database_now", cancelled_meanwhile):
        assert end_attempt(run, 1, failed(), attempt_of(run).token)
    after = reread(run)
    assert (after.state, after.reason, after.attempt, after.slot) == (
        State.CANCELLED,
        "by hand",
        1,
        None,
    )
    assert attempt_of(run).outcome == Outcome.FAILED


def test_success_after_a_cancel_request_is_recorded_as_success() -> None:
    run = running()
    control.cancel(reread(run))
    end_attempt(run, 1, SUCCEEDED, attempt_of(run).token)
    assert state_of(run) == State.SUCCEEDED


# --- auto-pause ---------------------------------------------------------------------------------


def fail_once(job: Job) -> None:
    run = make_run(job, "running")
    assert end_attempt(reread(run), 1, failed())


def test_job_that_keeps_failing_is_paused(caplog: pytest.LogCaptureFixture) -> None:
    job = make_idle_job(pause_after_failures=3)
    for expected in (True, True, False):
        fail_once(job)
        job.refresh_from_db()
        assert job.enabled is expected
    assert job.pause_reason == "paused automatically after 3 consecutive failed runs"
    assert job.cursor.next_at is None
    paused = [each for each in caplog.records if vars(each).get("event") == "auto_paused"]
    assert [(each.levelno, vars(each)["job"]) for each in paused] == [(logging.ERROR, str(job))]


def test_success_resets_the_count_of_failures() -> None:
    job = make_idle_job(pause_after_failures=2)
    fail_once(job)
    end_attempt(make_run(job, "running"), 1, SUCCEEDED)
    fail_once(job)
    job.refresh_from_db()
    assert job.enabled


def test_retried_attempts_do_not_count_as_failures() -> None:
    run = running(pause_after_failures=1, max_attempts=2)
    end_attempt(run, 1, failed())
    assert reread(run).job.enabled


def test_auto_pause_keeps_the_reason_of_an_earlier_pause() -> None:
    job = make_idle_job(pause_after_failures=1)
    control.pause(job, "maintenance")
    fail_once(job)
    job.refresh_from_db()
    assert job.pause_reason == "maintenance"


def test_auto_pause_ignores_a_job_deleted_meanwhile() -> None:
    run = running(pause_after_failures=1)
    with mock.patch.object(pausing, "switch_batch", side_effect=Conflict):
        assert end_attempt(run, 1, failed())


def test_end_of_attempt_is_logged_with_structured_fields(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "django_dcron.runs")
    run = running()
    end_attempt(run, 1, failed())
    [record] = [record for record in caplog.records if record.name == "django_dcron.runs"]
    assert logged(caplog, "attempt_ended", run.job, "ValueError: no", job=str(run.job), attempt=1)
    assert f" run={run.pk} " in record.getMessage()
    assert (record.levelno, vars(record)["outcome"]) == (logging.WARNING, "failed")


def test_report_without_effect_writes_one_record(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "django_dcron.runs")
    run = running()
    token = attempt_of(run).token
    declare_lost(run, "gone")
    end_attempt(run, 1, SUCCEEDED, token)
    end_attempt(run, 1, SUCCEEDED, token)
    events = [vars(each)["event"] for each in caplog.records if each.name == "django_dcron.runs"]
    assert events == ["attempt_ended", "late_outcome", "outcome_ignored"]


@pytest.mark.parametrize(("won", "retried"), [(True, True), (True, False), (False, False)])
def test_log_contains_retry_delay_only_if_the_run_is_retried(
    won: bool, retried: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "django_dcron.runs")
    run = running(max_attempts=3 if retried else 1)
    if not won:
        Run.objects.update(state="succeeded")
    assert end_attempt(run, 1, failed()) is won
    message = caplog.messages[-1]
    assert ("retry_in=" in message) is retried
    assert f"attempt=1/{run.job.max_attempts} " in message
    assert "None" not in message


@pytest.mark.parametrize(("names", "logged"), [(["ConectionError"], True), ([], False)])
@pytest.mark.parametrize("outcome", [Outcome.FAILED, Outcome.TIMED_OUT])
def test_log_says_why_a_failure_is_not_retried(
    outcome: Outcome, names: list[str], logged: bool, caplog: pytest.LogCaptureFixture
) -> None:
    run = running(max_attempts=3, retry_on=names)
    failure = Failure(FailureClass.TRANSIENT, frozenset({"ConnectionError"}))
    assert end_attempt(run, 1, Ending(outcome, failure, exception_class="ConnectionError"))
    assert ("no_retry='not listed in retry_on'" in caplog.messages[-1]) is logged
    codes = [sentence.code for sentence in run_sentences(reread(run), run.job, run.due_at, str)]
    assert ("not_retried" in codes) is logged


def test_why_names_the_lists_of_exceptions_only_if_the_job_has_any() -> None:
    run = running(max_attempts=3)
    assert end_attempt(run, 1, Ending(Outcome.FAILED, Failure(FailureClass.PERMANENT)))
    (text,) = [
        str(sentence)
        for sentence in run_sentences(reread(run), run.job, run.due_at, str)
        if sentence.code == "not_retried"
    ]
    assert "retry_on" not in text


def test_why_expects_no_attempt_that_the_job_allows_only_since_the_failure() -> None:
    run = running(max_attempts=1)
    record_definition(run.job, attempt_of(run).pk)
    assert end_attempt(run, 1, Ending(Outcome.FAILED, Failure(FailureClass.PERMANENT)))
    run.job.max_attempts = 3
    codes = [sentence.code for sentence in run_sentences(reread(run), run.job, run.due_at, str)]
    assert "failed" in codes
    assert "not_retried" not in codes


def test_long_reason_is_truncated() -> None:
    run = running()
    assert end_attempt(run, 1, Ending(Outcome.FAILED, WITHOUT_EXCEPTION, message="x" * 100_000))
    assert reread(run).reason == "x" * 500
    assert transitions.runs().filter(pk=run.pk, state="failed").exists()
