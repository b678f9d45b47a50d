"""``run_due`` executes due runs by the set clock, as nodes and workers do, without side effects."""

import logging
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from celery import current_app
from django.db import IntegrityError

from django_dcron import PermanentFailure, RetryLater, control, cron, current_run, targets
from django_dcron.db import clock
from django_dcron.db.now import database_now
from django_dcron.exceptions import InvalidValue
from django_dcron.models import Attempt, Calendar, Cursor, Incident, Job, Limit, Node, Run
from django_dcron.policies.slots import Slot
from django_dcron.runs import incidents
from django_dcron.testing import ManualClock, run_due, set_clock
from django_dcron.testing import stepping as stepping_module
from tests.factories import make_idle_job, make_job, make_run
from tests.refusals import refusal
from tests.services import Server
from tests.testing.conftest import NINE, MakeTarget

Calls = list[tuple[str, datetime, datetime]]
MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)

pytestmark = pytest.mark.django_db


def states(runs: list[Run]) -> list[str]:
    return [run.state for run in runs]


def times(runs: list[Run]) -> list[datetime]:
    return [run.scheduled_at for run in runs]


# --- due occurrences ---------------------------------------------------------------------------


def test_returns_no_runs_when_nothing_is_due() -> None:
    make_idle_job()
    assert run_due() == []


def test_each_occurrence_runs_with_the_clock_set_to_its_time(
    clock_at_nine: ManualClock, make_target: MakeTarget, calls: Calls
) -> None:
    hourly = make_job(name="hourly", schedule="0 * * * *", target=make_target())
    half = make_job(name="half", schedule="30 10 * * *", target=make_target())

    runs = run_due(at=NINE + 2 * HOUR)

    due = [NINE + HOUR, NINE + 1.5 * HOUR, NINE + 2 * HOUR]
    assert [(run.job, run.scheduled_at) for run in runs] == list(
        zip((hourly, half, hourly), due, strict=True)
    )
    assert calls == [
        (name, at, at) for name, at in zip(("hourly", "half", "hourly"), due, strict=True)
    ]
    for run, at in zip(runs, due, strict=True):
        assert (run.state, run.started_at, run.finished_at, run.claimed_at, run.queued_at) == (
            "succeeded", at, at, at, at,
        )  # fmt: skip
        (attempt,) = run.attempts.all()
        assert (attempt.outcome, attempt.started_at, attempt.finished_at) == ("succeeded", at, at)
    assert clock_at_nine.now() == NINE + 2 * HOUR
    assert Run.objects.count() == 3, "nothing is claimed ahead"
    assert Cursor.objects.get(job=hourly).next_at == NINE + 3 * HOUR
    assert run_due() == []


def test_a_job_is_not_due_at_the_instant_it_is_saved(clock_at_nine: ManualClock) -> None:
    make_job(schedule="0 * * * *")
    assert run_due() == []


def test_time_is_frozen_during_call_when_no_clock_is_set(
    make_target: MakeTarget, calls: Calls
) -> None:
    job = make_idle_job(name="idle", target=make_target())
    run = control.trigger(job)
    before = database_now("default")
    (ended,) = run_due()
    assert ended.pk == run.pk
    assert ended.started_at == ended.finished_at == calls[0][2] >= before
    later = (database_now("default") + timedelta(days=400)).replace(microsecond=0)
    assert 1 <= len(run_due(at=later)) <= 2
    assert clock.fixed_at is None


def test_past_or_naive_time_is_refused(clock_at_nine: ManualClock) -> None:
    with pytest.raises(ValueError, match=r" 2026-03-02T08:59:00\+.* 2026-03-02T09:00:00\+00:00\. "):
        run_due(at=NINE - MINUTE)
    with refusal(InvalidValue, "naive", field="at"):
        run_due(at=datetime(2026, 3, 2, 10))  # noqa: DTZ001 (a naive datetime)


def test_past_time_is_refused_when_no_clock_is_set() -> None:
    with pytest.raises(ValueError, match=r" 2026-03-02T09:00:00\+00:00 .* 20"):
        run_due(at=NINE)


def test_jitter_delays_due_at_but_not_scheduled_at(clock_at_nine: ManualClock) -> None:
    job = make_job(schedule="0 * * * *", jitter=30 * MINUTE)
    (run,) = run_due(at=NINE + 1.5 * HOUR)
    assert run.scheduled_at == NINE + HOUR < run.due_at == run.started_at
    assert job.jitter == 30 * MINUTE


def test_interval_job_runs_at_each_interval(clock_at_nine: ManualClock) -> None:
    make_job(schedule="@every 25m")
    assert times(run_due(at=NINE + HOUR)) == [NINE + 25 * MINUTE, NINE + 50 * MINUTE]


def test_at_schedule_runs_once_and_disables_the_job(clock_at_nine: ManualClock) -> None:
    job = make_job(schedule="@at 2026-03-02T09:30")
    assert times(run_due(at=NINE + 24 * HOUR)) == [NINE + 30 * MINUTE]
    job.refresh_from_db()
    assert not job.enabled


def test_occurrences_on_excluded_dates_are_skipped(clock_at_nine: ManualClock) -> None:
    control.save_calendar(Calendar(name="off", dates="2026-03-03"))
    make_job(schedule="0 12 * * *", calendar_id="off")
    assert times(run_due(at=NINE + timedelta(days=3))) == [
        datetime(2026, 3, day, 12, tzinfo=UTC) for day in (2, 4)
    ]


def test_occurrence_in_dst_gap_runs_after_the_gap() -> None:
    with set_clock(datetime(2026, 3, 28, tzinfo=UTC)):
        make_job(schedule="30 2 * * *", timezone="Europe/Berlin")
        runs = run_due(at=datetime(2026, 3, 30, 12, tzinfo=UTC))
    assert [f"{run.scheduled_at:%d %H:%M}" for run in runs] == ["28 01:30", "29 01:00", "30 00:30"]


# --- selected jobs ------------------------------------------------------------------------------


def test_jobs_and_namespace_arguments_limit_what_runs(clock_at_nine: ManualClock) -> None:
    one, two, three = (make_job(schedule="0 * * * *", namespace=name) for name in ("a", "b", "b"))
    control.trigger(one)
    assert {run.job for run in run_due(at=NINE + HOUR, jobs=[two])} == {two}
    assert run_due(jobs=[]) == []
    assert {run.job for run in run_due(namespace="b")} == {three}
    assert {run.job for run in run_due()} == {one}
    assert times(run_due(at=NINE + 2 * HOUR, jobs=[one, two], namespace="a")) == [NINE + 2 * HOUR]


def test_unsaved_job_or_job_name_is_refused(clock_at_nine: ManualClock) -> None:
    with pytest.raises(ValueError, match=r" draft .*control\.save"):
        run_due(jobs=[Job(name="draft")])
    with pytest.raises(TypeError, match=r"^'draft' .*@cron"):
        run_due(jobs=["draft"])  # type: ignore[list-item]


# --- policies -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("skip", [(13, "missed", 3)]),
        ("run_latest", [(13, "succeeded", 3)]),
        ("run_all", [(10, "succeeded", 0), (11, "succeeded", 0), (13, "missed", 1)]),
    ],
)
def test_misfire_policy_applies_to_occurrences_before_a_clock_jump(
    clock_at_nine: ManualClock, policy: str, expected: list[tuple[int, str, int]]
) -> None:
    make_job(schedule="0 * * * *", misfire_policy=policy, misfire_grace=MINUTE, catchup_limit=2)
    clock_at_nine.set_to(NINE + 4.5 * HOUR)
    runs = sorted(run_due(), key=lambda run: run.scheduled_at)
    assert [(run.scheduled_at.hour, run.state, run.missed_before) for run in runs] == expected
    assert {run.finished_at for run in runs} == {NINE + 4.5 * HOUR}


def test_advancing_to_a_time_causes_no_misfires(clock_at_nine: ManualClock) -> None:
    make_job(schedule="0 * * * *", misfire_policy="skip", misfire_grace=timedelta(seconds=1))
    assert states(run_due(at=NINE + 4.5 * HOUR)) == ["succeeded"] * 4


def test_occurrence_is_skipped_while_another_run_is_running(clock_at_nine: ManualClock) -> None:
    job = make_job(schedule="0 * * * *")
    running = make_run(job, "running", slot=Slot.RUNNING, heartbeat_at=NINE + 2 * HOUR)
    (skipped,) = run_due(at=NINE + HOUR)
    assert skipped.state == "skipped"
    assert str(running.pk) in skipped.reason


def test_queued_runs_all_finish_under_queue_all(clock_at_nine: ManualClock) -> None:
    job = make_job(schedule="0 * * * *", overlap_policy="queue_all", misfire_policy="run_all")
    clock_at_nine.advance(3 * HOUR)
    first = control.trigger(job)
    runs = run_due()
    assert states(runs) == ["succeeded"] * 4
    assert first in runs


def test_paused_job_runs_again_when_its_pause_ends(clock_at_nine: ManualClock) -> None:
    job = control.pause(make_job(schedule="0 * * * *"), until=NINE + 3 * HOUR)
    for_good = control.pause(make_job(schedule="0 * * * *"))
    assert times(run_due(at=NINE + 4 * HOUR)) == [NINE + 3 * HOUR, NINE + 4 * HOUR]
    job.refresh_from_db()
    for_good.refresh_from_db()
    assert (job.enabled, for_good.enabled) == (True, False)


def test_cancelled_run_is_not_executed(clock_at_nine: ManualClock) -> None:
    job = make_idle_job()
    control.cancel(control.trigger(job))
    assert run_due() == []


def test_all_backfilled_runs_are_executed(clock_at_nine: ManualClock) -> None:
    job = make_job(schedule="0 * * * *")
    control.backfill(job, NINE - 8 * HOUR, NINE)
    assert states(run_due()) == ["succeeded"] * 8


# --- failures -----------------------------------------------------------------------------------


def failing(times: int, error: BaseException) -> Callable[[], str]:
    left = [error] * times

    def work() -> str:
        if left:
            raise left.pop()
        return "done"

    return work


def test_failure_is_recorded_with_reason_and_traceback(
    clock_at_nine: ManualClock, make_target: MakeTarget
) -> None:
    make_job(schedule="0 * * * *", target=make_target(failing(1, ValueError("as asked"))))
    failed, succeeded = run_due(at=NINE + 2 * HOUR)
    assert (failed.state, failed.reason) == ("failed", "ValueError: as asked")
    assert "in work" in failed.attempts.get().traceback
    assert succeeded.state == "succeeded"
    assert succeeded.attempts.get().result == '"done"'


def test_retries_run_at_their_due_time(
    clock_at_nine: ManualClock, make_target: MakeTarget, calls: Calls
) -> None:
    make_job(
        schedule="0 * * * *",
        target=make_target(failing(2, ValueError())),
        max_attempts=3,
        retry_backoff=MINUTE,
        retry_jitter=0,
    )
    (run,) = run_due(at=NINE + HOUR)
    assert (run.state, run.attempt, run.due_at) == ("pending", 2, NINE + HOUR + MINUTE)
    (again,) = run_due(at=NINE + 1.5 * HOUR)
    assert (again.pk, again.state, again.attempt) == (run.pk, "succeeded", 3)
    assert [at for _, _, at in calls] == [
        NINE + HOUR,
        NINE + HOUR + MINUTE,
        NINE + HOUR + 3 * MINUTE,
    ]
    outcomes = Attempt.objects.order_by("number").values_list("outcome", flat=True)
    assert list(outcomes) == ["failed", "failed", "succeeded"]


def test_retry_later_and_permanent_failure_are_honored(
    clock_at_nine: ManualClock, make_target: MakeTarget
) -> None:
    make_job(
        name="later",
        schedule="0 10 * * *",
        max_attempts=5,
        target=make_target(failing(1, RetryLater(after=timedelta()))),
    )
    make_job(
        name="never",
        schedule="1 10 * * *",
        max_attempts=5,
        target=make_target(failing(9, PermanentFailure())),
    )
    later, never = run_due(at=NINE + 2 * HOUR)
    assert (later.state, later.attempt, later.finished_at) == ("succeeded", 2, NINE + HOUR)
    assert (never.state, never.attempt) == ("failed", 1)


def test_job_is_paused_after_consecutive_failures(
    clock_at_nine: ManualClock, make_target: MakeTarget
) -> None:
    job = make_job(
        schedule="0 * * * *", pause_after_failures=2, target=make_target(failing(9, ValueError()))
    )
    assert states(run_due(at=NINE + 5 * HOUR)) == ["failed", "failed"]
    job.refresh_from_db()
    assert not job.enabled


def test_raising_reraises_the_job_exception_after_recording_it(
    clock_at_nine: ManualClock, make_target: MakeTarget
) -> None:
    error = ValueError("as asked")
    make_job(schedule="0 * * * *", target=make_target(failing(1, error)))
    with pytest.raises(ValueError, match="as asked") as raised:
        run_due(at=NINE + 5 * HOUR, raising=True)
    assert raised.value is error
    assert Run.objects.get().state == "failed", "the failure is recorded first"
    assert clock_at_nine.now() == NINE + HOUR, "the clock stops where the job raised"
    assert states(run_due(at=NINE + 3 * HOUR, raising=True)) == ["succeeded"] * 2


def test_runs_after_the_one_that_raised_run_in_the_next_call(
    clock_at_nine: ManualClock, make_target: MakeTarget
) -> None:
    target = make_target(failing(1, ValueError("as asked")))
    for _ in range(3):
        make_job(schedule="0 * * * *", target=target)
    with pytest.raises(ValueError, match="as asked"):
        run_due(at=NINE + HOUR, raising=True)
    assert states(run_due()) == ["succeeded"] * 2


def test_job_that_advances_the_clock_delays_later_runs(
    clock_at_nine: ManualClock, make_target: MakeTarget, calls: Calls
) -> None:
    make_job(
        name="long",
        schedule="0 10 * * *",
        target=make_target(lambda: clock_at_nine.advance(50 * MINUTE) or "done"),
    )
    make_job(name="short", schedule="*/30 * * * *", misfire_grace=HOUR, target=make_target())
    runs = run_due(at=NINE + 2 * HOUR)
    assert states(runs) == ["succeeded"] * 5
    assert [at for name, _, at in calls if name == "short"] == [
        NINE + minutes * MINUTE for minutes in (30, 110, 110, 120)
    ]
    assert clock_at_nine.now() == NINE + 2 * HOUR


def test_pytest_fail_propagates_but_sys_exit_fails_the_run(
    clock_at_nine: ManualClock, make_target: MakeTarget
) -> None:
    make_job(schedule="0 * * * *", target=make_target(lambda: pytest.fail("the test's own")))
    with pytest.raises(pytest.fail.Exception, match="the test's own"):
        run_due(at=NINE + HOUR)
    make_job(name="leaves", schedule="0 11 * * *", target=make_target(sys.exit))
    assert "failed" in states(run_due(at=NINE + 2 * HOUR, jobs=Job.objects.filter(name="leaves")))


def test_run_with_missing_target_fails(clock_at_nine: ManualClock) -> None:
    job = make_idle_job()
    Job.objects.filter(pk=job.pk).update(target="gone")
    job.refresh_from_db()
    run = make_run(job)
    (failed,) = run_due()
    assert (failed.pk, failed.state) == (run.pk, "failed")
    assert "gone" in failed.reason


# --- chained runs -------------------------------------------------------------------------------


def test_chained_jobs_run_at_the_same_instant(
    clock_at_nine: ManualClock, make_target: MakeTarget, calls: Calls
) -> None:
    make_job(name="import", schedule="0 * * * *", target=make_target())
    make_job(name="invoice", schedule="@never", after={"import": "succeeded"}, target=make_target())
    make_job(name="tell", schedule="@never", after={"invoice": "failed"}, target=make_target())
    make_job(name="send", schedule="@never", after={"invoice": "succeeded"}, target=make_target())
    runs = run_due(at=NINE + HOUR)
    assert [run.job.name for run in runs] == ["import", "invoice", "send"]
    assert {run.finished_at for run in runs} == {NINE + HOUR}
    assert [name for name, _, _ in calls] == ["import", "invoice", "send"]


def test_runs_triggered_by_a_job_are_executed_too(
    clock_at_nine: ManualClock, make_target: MakeTarget
) -> None:
    other = make_idle_job(name="other", target=make_target())
    make_job(
        name="first",
        schedule="0 * * * *",
        target=make_target(lambda: [control.trigger(other)] * 3 and None),
    )
    assert [run.job.name for run in run_due(at=NINE + HOUR)] == ["first", "other"]


@pytest.mark.django_db(transaction=True)
def test_run_triggered_without_a_clock_is_sent_and_executed_by_run_due(
    redis_server: Server, monkeypatch: pytest.MonkeyPatch, make_target: MakeTarget
) -> None:
    """The message is sent although Celery is eager. No worker of the test receives it."""
    monkeypatch.setitem(current_app.conf, "task_always_eager", True)
    runs = [control.trigger(make_idle_job(target=make_target())) for _ in range(2)]
    for run in runs:
        run.refresh_from_db()
    assert {run.state for run in runs} == {"queued"}
    assert run_due(jobs=[runs[1].job]) == runs[1:]
    assert run_due() == runs[:1]
    runs[0].refresh_from_db()
    assert (runs[0].state, runs[0].attempt) == ("succeeded", 1)


def test_runs_triggered_at_one_instant_keep_their_order(clock_at_nine: ManualClock) -> None:
    job = make_idle_job(overlap_policy="allow")
    made = [control.trigger(job) for _ in range(5)]
    assert run_due() == made
    assert clock_at_nine.now() == NINE


def test_heartbeat_stops_job_when_cancellation_is_requested(
    clock_at_nine: ManualClock, make_target: MakeTarget
) -> None:
    def work() -> None:
        run = current_run()
        assert run is not None
        run.heartbeat()  # no cancellation is requested yet
        Run.objects.filter(pk=run.id).update(cancel_requested_at=clock.now(), reason="enough")
        run._heartbeat_requested_at -= 2  # it sends at most one heartbeat per second
        run.heartbeat()
        raise AssertionError("heartbeat() didn't stop the job")

    make_job(schedule="0 * * * *", target=make_target(work), max_attempts=3)
    (run,) = run_due(at=NINE + HOUR, raising=True)
    assert (run.state, run.reason) == ("cancelled", "enough")


def test_remaining_time_follows_the_set_clock(
    clock_at_nine: ManualClock, make_target: MakeTarget
) -> None:
    seen = []

    def work() -> None:
        run = current_run()
        assert run is not None
        seen.append(run.time_left)
        clock_at_nine.advance(10 * MINUTE)
        seen.append(run.time_left)

    make_job(schedule="0 * * * *", target=make_target(work), timeout=HOUR)
    (run,) = run_due(at=NINE + HOUR)
    assert seen == [HOUR, 50 * MINUTE]
    assert run.started_at is not None
    assert run.finished_at == run.started_at + 10 * MINUTE


def test_timeout_is_measured_in_real_time(clock_at_nine: ManualClock) -> None:
    make_job(
        schedule="0 * * * *", target="tests.app.tasks.nap", args=[60], timeout=timedelta(seconds=1)
    )
    (run,) = run_due(at=NINE + HOUR)
    assert (run.state, run.attempts.get().outcome) == ("failed", "timed_out")
    assert run.finished_at == NINE + HOUR


# --- side effects -------------------------------------------------------------------------------


def test_run_due_leaves_no_threads_nodes_or_pending_runs(
    clock_at_nine: ManualClock, make_target: MakeTarget
) -> None:
    threads, stdout = set(threading.enumerate()), sys.stdout
    make_job(schedule="0 * * * *", target=make_target(lambda: print("printed")), timeout=HOUR)  # noqa: T201 (the job does)
    (run,) = run_due(at=NINE + HOUR)
    assert run.attempts.get().log == "printed\n"
    assert set(threading.enumerate()) <= threads
    assert sys.stdout is stdout
    assert not Node.objects.exists()
    assert not Run.objects.exclude(node="").filter(state="pending").exists()


def sender_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "dcron-checkins"}


def test_checkins_are_not_sent_to_external_services(
    clock_at_nine: ManualClock, settings: object, caplog: pytest.LogCaptureFixture
) -> None:
    settings.DCRON_MIDDLEWARE = [  # type: ignore[attr-defined]
        "django_dcron.contrib.checkins.check_in_healthchecks",
        "django_dcron.execution.log_capture.capture_log",
    ]
    settings.DCRON_HEALTHCHECKS_URL = "http://127.0.0.1:9/ping"  # type: ignore[attr-defined]
    make_job(schedule="0 * * * *", tags=["healthchecks"])
    senders = sender_threads()  # another test may have left one
    with caplog.at_level(logging.WARNING):
        assert states(run_due(at=NINE + HOUR)) == ["succeeded"]
    assert sender_threads() <= senders
    assert not caplog.records


def test_calling_run_due_from_a_job_is_refused(
    clock_at_nine: ManualClock, make_target: MakeTarget
) -> None:
    make_job(schedule="0 * * * *", target=make_target(run_due))
    with pytest.raises(RuntimeError, match=r"^run_due "):
        run_due(at=NINE + HOUR, raising=True)


def test_too_many_attempts_raise_runtime_error(
    clock_at_nine: ManualClock, make_target: MakeTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stepping_module, "MAX_ATTEMPTS", 3)
    make_job(name="often", schedule="* * * * * *")
    with pytest.raises(RuntimeError, match=r"3 attempts at 2026-03-02T09.* often"):
        run_due(at=NINE + HOUR)


# --- database errors and transactions -----------------------------------------------------------


def duplicate() -> None:
    first = Calendar.objects.create(name="written", dates="2026-01-01")
    Calendar.objects.create(name=first.name, dates="2026-01-01")


def test_database_error_in_job_does_not_break_the_test_transaction(
    clock_at_nine: ManualClock, make_target: MakeTarget
) -> None:
    make_job(name="dup", schedule="0 * * * *", target=make_target(duplicate))
    make_job(name="next", schedule="30 10 * * *", target=make_target())
    failed, succeeded = run_due(at=NINE + 1.5 * HOUR)
    assert (failed.state, succeeded.state) == ("failed", "succeeded")
    assert failed.reason.startswith("django.db.utils.IntegrityError")
    with pytest.raises(IntegrityError):
        run_due(at=NINE + 2 * HOUR, raising=True)


@pytest.mark.postgresql
def test_job_that_swallows_a_database_error_fails_with_a_hint(
    clock_at_nine: ManualClock, make_target: MakeTarget
) -> None:
    def work() -> None:
        try:
            duplicate()
        except IntegrityError:
            return

    make_job(schedule="0 * * * *", target=make_target(work))
    (failed,) = run_due(at=NINE + HOUR)
    assert failed.state == "failed"
    assert "TransactionTestCase" in failed.reason


@pytest.mark.django_db(transaction=True)
def test_run_due_works_outside_of_a_transaction(
    clock_at_nine: ManualClock, make_target: MakeTarget
) -> None:
    make_job(
        name="dup",
        schedule="0 * * * *",
        target=make_target(duplicate),
        max_attempts=2,
        retry_jitter=0,
    )
    make_job(name="after", schedule="@never", after={"dup": "ended"}, target=make_target())
    control.trigger(make_idle_job(name="by hand", target=make_target()))
    assert [run.job.name for run in run_due(at=NINE + 1.5 * HOUR)] == ["by hand", "dup", "after"]
    assert Calendar.objects.filter(name="written").exists(), "committed, as in a worker"


# --- Celery tasks that retry ---------------------------------------------------------------------


def test_task_that_is_out_of_retries_fails_its_run(clock_at_nine: ManualClock) -> None:
    """The job would allow more attempts, after a longer wait."""
    job = make_job(
        schedule="0 10 * * *",
        target="tests.app.tasks.retry_twice",
        max_attempts=5,
        retry_backoff=HOUR,
    )
    (run,) = run_due(at=NINE + HOUR + MINUTE, jobs=[job])
    assert run.state == "failed"
    attempts = list(run.attempts.order_by("number"))
    waits = [later.started_at - earlier.started_at for earlier, later in pairwise(attempts)]
    assert waits == [timedelta(seconds=3)] * 2
    assert attempts[-1].exception_class == "ConnectionResetError"
    assert "ConnectionResetError: no answer" in attempts[-1].traceback
    incidents.group_failed_attempts()
    assert [each.count for each in Incident.objects.all()] == [3], "all have the same cause"


@pytest.mark.parametrize("attempts", [1, 3])
def test_raising_raises_the_exception_for_which_a_task_retries(
    attempts: int, clock_at_nine: ManualClock
) -> None:
    make_job(schedule="0 10 * * *", target="tests.app.tasks.retry_twice", max_attempts=5)
    for _ in range(attempts):
        with pytest.raises(ConnectionResetError, match="no answer"):
            run_due(at=clock_at_nine.now() + HOUR, raising=True)
    assert Run.objects.get().attempt == min(attempts + 1, 3)


def test_raising_raises_the_retry_that_the_code_itself_raised(
    clock_at_nine: ManualClock, make_target: MakeTarget
) -> None:
    def busy() -> None:
        raise RetryLater from ConnectionResetError("no answer")

    make_job(schedule="0 10 * * *", target=make_target(busy), max_attempts=5)
    with pytest.raises(RetryLater):
        run_due(at=NINE + HOUR, raising=True)


# --- limits -------------------------------------------------------------------------------------


@pytest.mark.parametrize("only_these", [False, True])
def test_jobs_share_a_limit(
    only_these: bool, clock_at_nine: ManualClock, make_target: MakeTarget
) -> None:
    limit = control.save_limit(Limit(name="payment-api", max_running=1))
    jobs = [make_job(schedule="0 * * * *", target=make_target(), limit=limit) for _ in range(3)]
    runs = run_due(at=NINE + HOUR, jobs=jobs if only_these else None)
    assert states(runs) == ["succeeded"] * 3


@pytest.mark.parametrize("only_these", [False, True])
def test_runs_start_when_the_interval_of_a_limit_allows(
    only_these: bool, clock_at_nine: ManualClock, make_target: MakeTarget, calls: Calls
) -> None:
    limit = control.save_limit(Limit(name="sms", max_started=2, interval=MINUTE))
    jobs = [make_job(schedule="0 * * * *", target=make_target(), limit=limit) for _ in range(5)]
    until = NINE + HOUR + 1.5 * MINUTE
    runs = run_due(at=until, jobs=jobs if only_these else None)
    starts = [run.started_at for run in runs if run.started_at]
    assert starts == [NINE + HOUR] * 2 + [NINE + HOUR + MINUTE] * 2
    assert states(run_due(at=until + MINUTE, jobs=jobs if only_these else None)) == ["succeeded"]


def test_call_before_the_first_occurrence_warns_unless_the_test_has_set_the_time() -> None:
    job = make_job(schedule="0 0 1 1 *")
    with pytest.warns(UserWarning, match=f"{job} at .*-01-01T00:00:00.*at="):
        assert run_due(jobs=[job]) == []
    assert run_due(at=database_now("default") + timedelta(seconds=1), jobs=[job]) == []
    with set_clock(Cursor.objects.get(job=job).next_at - HOUR):
        assert run_due(jobs=[job]) == []
    control.trigger(job)
    assert len(run_due(jobs=[job])) == 1
    assert run_due(jobs=[job]) == [], "it has run"
    assert run_due() == []


@pytest.mark.parametrize(
    ("minutes", "warns"), [(-61, False), (-1, False), (0, True), (1, True), (2, False)]
)
def test_job_that_is_saved_right_after_its_occurrence_is_explained(
    minutes: int, warns: bool
) -> None:
    nine = datetime(2026, 3, 2, 9, tzinfo=UTC)
    with (
        targets.isolated_registry(),
        set_clock(nine + timedelta(minutes=minutes)),
        warnings.catch_warnings(record=True) as seen,
    ):
        warnings.simplefilter("always")

        @cron("0 9 * * *")
        def bill() -> None: ...

        @cron("30 10 * * *")
        def tidy() -> None: ...

        assert run_due(jobs=[tidy, bill]) == []
        assert run_due(jobs=[tidy, bill]) == [], "the second call doesn't save the jobs"
    assert len(seen) == warns
    for warning in seen:
        assert "was saved after 2026-03-02T09:00:00" in str(warning.message)
        assert "2026-03-03T09:00:00" in str(warning.message)


@contextmanager
def declared_chain() -> Iterator[tuple[Callable[[], None], Callable[[], None]]]:
    """``collect`` runs at 10:00 and ``pay`` follows it. The clock shows 9:00."""
    with targets.isolated_registry(), set_clock(NINE):

        @cron("0 10 * * *")
        def collect() -> None: ...

        @cron("@never", after={"collect": "succeeded"})
        def pay() -> None: ...

        yield collect, pay


def test_jobs_of_a_chain_may_be_listed_in_any_order() -> None:
    with declared_chain() as (collect, pay):
        runs = run_due(at=NINE + HOUR, jobs=[pay, collect])
        assert [run.job.name for run in runs] == ["collect", "pay"]


def test_follower_that_is_saved_after_the_run_of_its_job_is_explained() -> None:
    with declared_chain() as (collect, pay):
        with pytest.raises(ValueError, match="jobs that it follows"):
            run_due(jobs=[pay])
        assert len(run_due(at=NINE + HOUR, jobs=[collect])) == 1
        with pytest.warns(UserWarning, match="pay was saved after the run .* of one call"):
            assert run_due(jobs=[pay]) == []
        assert run_due(jobs=[pay]) == [], "only the call that saves the job warns"


def test_follower_that_is_saved_before_the_run_of_its_job_is_not_explained() -> None:
    with declared_chain() as (collect, pay):
        assert run_due(jobs=[collect, pay]) == []
        assert len(run_due(at=NINE + HOUR, jobs=[collect])) == 1
        (run,) = run_due(jobs=[pay])
        assert run.state == "succeeded"


def test_clock_before_the_save_of_the_job_is_explained() -> None:
    job = make_job(schedule="0 9 * * *")
    with set_clock(datetime(2026, 3, 2, 8, tzinfo=UTC)):
        with pytest.warns(UserWarning, match=f"{job} was saved at a later time than the clock"):
            assert run_due(at=datetime(2026, 3, 2, 10, tzinfo=UTC)) == []
        with pytest.warns(UserWarning, match="Set the clock before you save"):
            assert run_due(at=datetime(2026, 3, 3, 10, tzinfo=UTC), jobs=[job]) == []
        assert run_due(at=datetime(2026, 3, 4, 8, tzinfo=UTC)) == [], "nothing was due anyway"


@pytest.mark.parametrize("schedule", ["0 9 * * *", "@every 10m"])
@pytest.mark.parametrize("listed", [False, True])
def test_clock_before_the_save_is_explained_if_the_test_advances_it(
    schedule: str, listed: bool
) -> None:
    job = make_job(schedule=schedule)
    with set_clock(datetime(2026, 3, 2, 8, tzinfo=UTC)) as test_clock:
        test_clock.advance(timedelta(hours=3))
        with pytest.warns(UserWarning, match="Set the clock before you save"):
            assert run_due(jobs=[job] if listed else None) == []
        with pytest.warns(UserWarning, match="Set the clock before you save"):
            assert run_due(at=datetime(2026, 3, 3, 11, tzinfo=UTC)) == []


def test_job_whose_first_occurrence_is_after_its_save_is_not_explained() -> None:
    make_job(schedule="@at 2099-01-01T00:00:00Z")
    with set_clock(datetime(2026, 3, 2, 8, tzinfo=UTC)):
        assert run_due() == []


def test_clock_before_the_save_of_another_job_is_not_explained(clock_at_nine: ManualClock) -> None:
    mine = make_job(schedule="0 12 * * *", namespace="mine")
    Cursor.objects.filter(job=make_job(schedule="* * * * *")).update(
        placed_at=clock_at_nine.now() + timedelta(days=9),
        next_at=clock_at_nine.now() + timedelta(days=9),
    )
    at = clock_at_nine.now() + timedelta(hours=1)
    assert run_due(at=at, namespace="mine") == []
    assert run_due(at=at, jobs=[mine]) == []
    with pytest.warns(UserWarning, match="Set the clock before you save"):
        assert run_due(at=at + timedelta(hours=1)) == []


def test_end_of_a_pause_within_the_call_is_no_late_save(clock_at_nine: ManualClock) -> None:
    job = make_job(schedule="0 10 * * *")
    now = clock_at_nine.now()
    control.pause(job, until=now + timedelta(minutes=90))
    assert run_due(at=now + timedelta(hours=2)) == []


def test_job_that_has_run_is_not_explained(clock_at_nine: ManualClock) -> None:
    job = make_job(schedule="0 10 * * *")
    (run,) = run_due(at=clock_at_nine.now() + timedelta(hours=1))
    later = clock_at_nine.now() + timedelta(days=9)
    Cursor.objects.filter(job=job).update(placed_at=later, next_at=later)
    assert run.job == job
    assert run_due(at=clock_at_nine.now() + timedelta(days=2)) == []


def test_call_without_any_job_warns() -> None:
    """A test may forget that declared jobs aren't in its database."""
    with pytest.warns(UserWarning, match="jobs="):
        assert run_due() == []
    make_idle_job()
    assert run_due() == []
