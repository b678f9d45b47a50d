"""``run_due`` does the work of nodes and workers by the set clock, and leaves nothing behind."""

import logging
import sys
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from django.db import IntegrityError

from django_dcron import PermanentFailure, RetryLater, control, current_run
from django_dcron.db import clock
from django_dcron.db.now import database_now
from django_dcron.models import Attempt, Calendar, Cursor, Job, Node, Run
from django_dcron.policies.slots import running_slot
from django_dcron.testing import ManualClock, run_due, set_clock
from django_dcron.testing import stepping as stepping_module
from tests.factories import make_idle_job, make_job, make_run
from tests.testing.conftest import NINE, MakeTarget

Calls = list[tuple[str, datetime, datetime]]
MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)

pytestmark = pytest.mark.django_db


def states(runs: list[Run]) -> list[str]:
    return [run.state for run in runs]


def times(runs: list[Run]) -> list[datetime]:
    return [run.scheduled_at for run in runs]


# --- what is run, and when ----------------------------------------------------------------------


def test_nothing_is_due() -> None:
    assert run_due() == []


def test_occurrence_by_occurrence_each_at_its_time(
    nine: ManualClock, make_target: MakeTarget, calls: Calls
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
    assert nine.now() == NINE + 2 * HOUR
    assert Run.objects.count() == 3, "nothing is claimed ahead"
    assert Cursor.objects.get(job=hourly).next_at == NINE + 3 * HOUR
    assert run_due() == []


def test_a_job_is_not_due_at_the_instant_it_is_saved(nine: ManualClock) -> None:
    make_job(schedule="0 * * * *")
    assert run_due() == []


def test_without_a_clock_time_stands_still_for_as_long_as_it_takes(
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


def test_what_has_passed_is_refused(nine: ManualClock) -> None:
    with pytest.raises(
        ValueError, match=r"is in the past: the clock is set to 2026-03-02T09:00:00\+00:00"
    ):
        run_due(at=NINE - MINUTE)
    with pytest.raises(ValueError, match="no time zone"):
        run_due(at=datetime(2026, 3, 2, 10))  # noqa: DTZ001 (what is to be refused)


def test_what_has_passed_is_refused_without_a_clock() -> None:
    with pytest.raises(ValueError, match=r"is in the past: no clock is set, .* 20"):
        run_due(at=NINE)


def test_jitter_delays_the_run_not_the_occurrence(nine: ManualClock) -> None:
    job = make_job(schedule="0 * * * *", jitter=30 * MINUTE)
    (run,) = run_due(at=NINE + 1.5 * HOUR)
    assert run.scheduled_at == NINE + HOUR < run.due_at == run.started_at
    assert job.jitter == 30 * MINUTE


def test_an_interval_keeps_its_phase(nine: ManualClock) -> None:
    make_job(schedule="@every 25m")
    assert times(run_due(at=NINE + HOUR)) == [NINE + 25 * MINUTE, NINE + 50 * MINUTE]


def test_one_time_only(nine: ManualClock) -> None:
    job = make_job(schedule="@at 2026-03-02T09:30")
    assert times(run_due(at=NINE + 24 * HOUR)) == [NINE + 30 * MINUTE]
    job.refresh_from_db()
    assert not job.enabled


def test_days_that_a_calendar_excludes(nine: ManualClock) -> None:
    control.save_calendar(Calendar(name="off", dates="2026-03-03"))
    make_job(schedule="0 12 * * *", calendar_id="off")
    assert times(run_due(at=NINE + timedelta(days=3))) == [
        datetime(2026, 3, day, 12, tzinfo=UTC) for day in (2, 4)
    ]


def test_clocks_that_go_forward_in_its_zone() -> None:
    with set_clock(datetime(2026, 3, 28, tzinfo=UTC)):
        make_job(schedule="30 2 * * *", timezone="Europe/Berlin")
        runs = run_due(at=datetime(2026, 3, 30, 12, tzinfo=UTC))
    assert [f"{run.scheduled_at:%d %H:%M}" for run in runs] == ["28 01:30", "29 01:00", "30 00:30"]


# --- which jobs ---------------------------------------------------------------------------------


def test_some_jobs_alone(nine: ManualClock) -> None:
    one, two, three = (make_job(schedule="0 * * * *", namespace=name) for name in ("a", "b", "b"))
    control.trigger(one)
    assert {run.job for run in run_due(at=NINE + HOUR, jobs=[two])} == {two}
    assert run_due(jobs=[]) == []
    assert {run.job for run in run_due(namespace="b")} == {three}
    assert {run.job for run in run_due()} == {one}
    assert times(run_due(at=NINE + 2 * HOUR, jobs=[one, two], namespace="a")) == [NINE + 2 * HOUR]


def test_a_job_that_is_not_saved(nine: ManualClock) -> None:
    with pytest.raises(ValueError, match="draft is not saved"):
        run_due(jobs=[Job(name="draft")])
    with pytest.raises(TypeError, match="'draft' is neither"):
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
def test_what_comes_after_an_outage(
    nine: ManualClock, policy: str, expected: list[tuple[int, str, int]]
) -> None:
    make_job(schedule="0 * * * *", misfire_policy=policy, misfire_grace=MINUTE, catchup_limit=2)
    nine.set_to(NINE + 4.5 * HOUR)
    runs = sorted(run_due(), key=lambda run: run.scheduled_at)
    assert [(run.scheduled_at.hour, run.state, run.missed_before) for run in runs] == expected
    assert {run.finished_at for run in runs} == {NINE + 4.5 * HOUR}


def test_no_outage_when_time_passes_with_nodes_at_work(nine: ManualClock) -> None:
    make_job(schedule="0 * * * *", misfire_policy="skip", misfire_grace=timedelta(seconds=1))
    assert states(run_due(at=NINE + 4.5 * HOUR)) == ["succeeded"] * 4


def test_a_run_of_somebody_elses_is_unfinished(nine: ManualClock) -> None:
    job = make_job(schedule="0 * * * *")
    running = make_run(job, "running", slot=running_slot(job.pk), heartbeat_at=NINE + 2 * HOUR)
    (skipped,) = run_due(at=NINE + HOUR)
    assert skipped.state == "skipped"
    assert str(running.pk) in skipped.reason


def test_runs_that_wait_for_another(nine: ManualClock) -> None:
    job = make_job(schedule="0 * * * *", overlap_policy="queue_all", misfire_policy="run_all")
    nine.advance(3 * HOUR)
    first = control.trigger(job)
    runs = run_due()
    assert states(runs) == ["succeeded"] * 4
    assert first in runs


def test_a_paused_job_and_the_end_of_its_pause(nine: ManualClock) -> None:
    job = control.pause(make_job(schedule="0 * * * *"), until=NINE + 3 * HOUR)
    for_good = control.pause(make_job(schedule="0 * * * *"))
    assert times(run_due(at=NINE + 4 * HOUR)) == [NINE + 3 * HOUR, NINE + 4 * HOUR]
    job.refresh_from_db()
    for_good.refresh_from_db()
    assert (job.enabled, for_good.enabled) == (True, False)


def test_a_run_that_was_cancelled_before(nine: ManualClock) -> None:
    job = make_idle_job()
    control.cancel(control.trigger(job))
    assert run_due() == []


def test_a_backfill_comes_to_its_end(nine: ManualClock) -> None:
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


def test_a_failure_is_recorded(nine: ManualClock, make_target: MakeTarget) -> None:
    make_job(schedule="0 * * * *", target=make_target(failing(1, ValueError("as asked"))))
    failed, succeeded = run_due(at=NINE + 2 * HOUR)
    assert (failed.state, failed.reason) == ("failed", "ValueError: as asked")
    assert "in work" in failed.attempts.get().traceback
    assert succeeded.state == "succeeded"
    assert succeeded.attempts.get().result == '"done"'


def test_retries_come_when_they_are_due(
    nine: ManualClock, make_target: MakeTarget, calls: Calls
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


def test_later_as_the_job_wants_it_and_never_again(
    nine: ManualClock, make_target: MakeTarget
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


def test_the_circuit_opens(nine: ManualClock, make_target: MakeTarget) -> None:
    job = make_job(
        schedule="0 * * * *", pause_after_failures=2, target=make_target(failing(9, ValueError()))
    )
    assert states(run_due(at=NINE + 5 * HOUR)) == ["failed", "failed"]
    job.refresh_from_db()
    assert not job.enabled


def test_a_test_may_see_the_exception_itself(nine: ManualClock, make_target: MakeTarget) -> None:
    error = ValueError("as asked")
    make_job(schedule="0 * * * *", target=make_target(failing(1, error)))
    with pytest.raises(ValueError, match="as asked") as raised:
        run_due(at=NINE + 5 * HOUR, raising=True)
    assert raised.value is error
    assert Run.objects.get().state == "failed", "it is recorded first"
    assert nine.now() == NINE + HOUR, "time stands where it was raised"
    assert states(run_due(at=NINE + 3 * HOUR, raising=True)) == ["succeeded"] * 2


def test_what_was_to_run_after_the_one_that_raised_is_not_lost(
    nine: ManualClock, make_target: MakeTarget
) -> None:
    target = make_target(failing(1, ValueError("as asked")))
    for _ in range(3):
        make_job(schedule="0 * * * *", target=target)
    with pytest.raises(ValueError, match="as asked"):
        run_due(at=NINE + HOUR, raising=True)
    assert states(run_due()) == ["succeeded"] * 2


def test_a_job_that_takes_its_time(
    nine: ManualClock, make_target: MakeTarget, calls: Calls
) -> None:
    make_job(
        name="long",
        schedule="0 10 * * *",
        target=make_target(lambda: nine.advance(50 * MINUTE) or "done"),
    )
    make_job(name="short", schedule="*/30 * * * *", misfire_grace=HOUR, target=make_target())
    runs = run_due(at=NINE + 2 * HOUR)
    assert states(runs) == ["succeeded"] * 5
    assert [at for name, _, at in calls if name == "short"] == [
        NINE + minutes * MINUTE for minutes in (30, 110, 110, 120)
    ]
    assert nine.now() == NINE + 2 * HOUR


def test_what_ends_a_test_is_not_the_jobs(nine: ManualClock, make_target: MakeTarget) -> None:
    make_job(schedule="0 * * * *", target=make_target(lambda: pytest.fail("the test's own")))
    with pytest.raises(pytest.fail.Exception, match="the test's own"):
        run_due(at=NINE + HOUR)
    make_job(name="leaves", schedule="0 11 * * *", target=make_target(sys.exit))
    assert "failed" in states(run_due(at=NINE + 2 * HOUR, jobs=Job.objects.filter(name="leaves")))


def test_a_target_that_is_gone(nine: ManualClock) -> None:
    job = make_idle_job()
    Job.objects.filter(pk=job.pk).update(target="gone")
    job.refresh_from_db()
    run = make_run(job)
    (failed,) = run_due()
    assert (failed.pk, failed.state) == (run.pk, "failed")
    assert "gone" in failed.reason


# --- what follows -------------------------------------------------------------------------------


def test_chains(nine: ManualClock, make_target: MakeTarget, calls: Calls) -> None:
    make_job(name="import", schedule="0 * * * *", target=make_target())
    make_job(name="invoice", schedule="@never", after={"import": "succeeded"}, target=make_target())
    make_job(name="tell", schedule="@never", after={"invoice": "failed"}, target=make_target())
    make_job(name="send", schedule="@never", after={"invoice": "succeeded"}, target=make_target())
    runs = run_due(at=NINE + HOUR)
    assert [run.job.name for run in runs] == ["import", "invoice", "send"]
    assert {run.finished_at for run in runs} == {NINE + HOUR}
    assert [name for name, _, _ in calls] == ["import", "invoice", "send"]


def test_a_job_that_triggers_another(nine: ManualClock, make_target: MakeTarget) -> None:
    other = make_idle_job(name="other", target=make_target())
    make_job(
        name="first",
        schedule="0 * * * *",
        target=make_target(lambda: [control.trigger(other)] * 3 and None),
    )
    assert [run.job.name for run in run_due(at=NINE + HOUR)] == ["first", "other"]


def test_runs_made_at_one_instant(nine: ManualClock) -> None:
    job = make_idle_job(overlap_policy="allow")
    made = [control.trigger(job) for _ in range(5)]
    assert run_due() == made
    assert nine.now() == NINE


def test_a_job_that_asks_whether_it_is_to_stop(nine: ManualClock, make_target: MakeTarget) -> None:
    def work() -> None:
        run = current_run()
        assert run is not None
        run.heartbeat()  # nobody has requested a stop yet
        Run.objects.filter(pk=run.id).update(cancel_requested_at=clock.now(), reason="enough")
        run._beaten_at -= 2  # it sends at most one heartbeat per second
        run.heartbeat()
        raise AssertionError("it goes on")

    make_job(schedule="0 * * * *", target=make_target(work), max_attempts=3)
    (run,) = run_due(at=NINE + HOUR, raising=True)
    assert (run.state, run.reason) == ("cancelled", "enough")


def test_the_time_a_job_has_left(nine: ManualClock, make_target: MakeTarget) -> None:
    seen = []

    def work() -> None:
        run = current_run()
        assert run is not None
        seen.append(run.time_left)
        nine.advance(10 * MINUTE)
        seen.append(run.time_left)

    make_job(schedule="0 * * * *", target=make_target(work), timeout=HOUR)
    (run,) = run_due(at=NINE + HOUR)
    assert seen == [HOUR, 50 * MINUTE]
    assert run.started_at is not None
    assert run.finished_at == run.started_at + 10 * MINUTE


def test_a_timeout_takes_real_time(nine: ManualClock) -> None:
    make_job(
        schedule="0 * * * *", target="tests.app.tasks.nap", args=[60], timeout=timedelta(seconds=1)
    )
    (run,) = run_due(at=NINE + HOUR)
    assert (run.state, run.attempts.get().outcome) == ("failed", "timed_out")
    assert run.finished_at == NINE + HOUR


# --- what it leaves alone -----------------------------------------------------------------------


def test_nothing_is_left_behind(nine: ManualClock, make_target: MakeTarget) -> None:
    threads, stdout = set(threading.enumerate()), sys.stdout
    make_job(schedule="0 * * * *", target=make_target(lambda: print("said")), timeout=HOUR)  # noqa: T201 (the job does)
    (run,) = run_due(at=NINE + HOUR)
    assert run.attempts.get().log == "said\n"
    assert set(threading.enumerate()) <= threads
    assert sys.stdout is stdout
    assert not Node.objects.exists()
    assert not Run.objects.exclude(node="").filter(state="pending").exists()


def sender_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "dcron-checkins"}


def test_a_service_outside_is_not_notified(
    nine: ManualClock, settings: object, caplog: pytest.LogCaptureFixture
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


def test_it_is_not_for_jobs(nine: ManualClock, make_target: MakeTarget) -> None:
    make_job(schedule="0 * * * *", target=make_target(run_due))
    with pytest.raises(RuntimeError, match="by the code of a job"):
        run_due(at=NINE + HOUR, raising=True)


def test_too_much_is_refused(
    nine: ManualClock, make_target: MakeTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stepping_module, "MOST", 3)
    make_job(name="often", schedule="* * * * * *")
    with pytest.raises(RuntimeError, match=r"3 attempts at 2026-03-02T09.* often"):
        run_due(at=NINE + HOUR)


# --- the transaction of a test ------------------------------------------------------------------


def duplicate() -> None:
    first = Calendar.objects.create(name="written", dates="2026-01-01")
    Calendar.objects.create(name=first.name, dates="2026-01-01")


def test_a_database_error_of_the_job(nine: ManualClock, make_target: MakeTarget) -> None:
    make_job(name="dup", schedule="0 * * * *", target=make_target(duplicate))
    make_job(name="next", schedule="30 10 * * *", target=make_target())
    failed, succeeded = run_due(at=NINE + 1.5 * HOUR)
    assert (failed.state, succeeded.state) == ("failed", "succeeded")
    assert failed.reason.startswith("django.db.utils.IntegrityError")
    with pytest.raises(IntegrityError):
        run_due(at=NINE + 2 * HOUR, raising=True)


@pytest.mark.postgresql
def test_a_job_that_goes_on_after_a_database_error(
    nine: ManualClock, make_target: MakeTarget
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
def test_outside_of_a_transaction(nine: ManualClock, make_target: MakeTarget) -> None:
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
    assert Calendar.objects.filter(name="written").exists(), "as in a worker"
