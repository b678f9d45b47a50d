"""The current run, as a job's code sees it."""

import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest
from django.db import transaction

import django_dcron
from django_dcron import control
from django_dcron.db import clock
from django_dcron.exceptions import RunCancelled
from django_dcron.execution import current as module
from django_dcron.execution.current import CurrentRun, current_run
from django_dcron.execution.executor import execute
from django_dcron.models import Attempt, Job, Run
from django_dcron.policies.lifecycle import State
from django_dcron.runs import endings, transitions
from django_dcron.runs.endings import AttemptEnd
from tests.execution.conftest import MakeTarget, RunFunction, attempt_of, reread, state_of
from tests.factories import make_idle_job, make_run
from tests.waiting import TIMEOUT

pytestmark = pytest.mark.django_db(transaction=True)

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


def test_current_run_is_inactive_outside_a_run(
    run_function: RunFunction, django_assert_num_queries: Any
) -> None:
    actives = []
    run_function(lambda: actives.append(current_run().is_active))
    before = clock.now()
    with django_assert_num_queries(0):
        run = current_run()
        run.progress(1, 2, "note")
        run.heartbeat()
        repr(run)
        nothing = {
            run.previous_scheduled_at,
            run.timeout,
            run.deadline,
            run.time_left,
            run.job.pk,
        }
    assert actives == [True]
    assert run.is_active is False
    assert nothing == {None}
    assert (run.attempt, run.cancelled, str(run.job)) == (1, False, module.NO_JOB)
    assert before <= run.scheduled_at == run.started_at <= clock.now()
    assert run.scheduled_at.utcoffset() == timedelta()
    assert run.id != current_run().id
    with pytest.raises(ValueError, match="steps"):
        run.progress("steps")  # type: ignore[arg-type]  # a mistake is reported without a run, too
    assert Run.objects.count() == Attempt.objects.count() == 1


def test_current_run_is_inactive_in_a_thread_of_a_job(run_function: RunFunction) -> None:
    actives = []

    def target() -> None:
        thread = threading.Thread(target=lambda: actives.append(current_run().is_active))
        thread.start()
        thread.join()

    run_function(target)
    assert actives == [False]


def value_in_run(
    run_function: RunFunction,
    read: Callable[[CurrentRun], Any],
    run: Any = None,
    **job: Any,
) -> Any:
    values = []

    def target() -> None:
        values.append(read(django_dcron.current_run()))

    _, attempt = run_function(target, run, **job)
    assert attempt.outcome == "succeeded", attempt.traceback
    return values[0]


def test_current_run_has_the_values_of_the_run(run_function: RunFunction) -> None:
    given = {"scheduled_at": NOON, "attempt": 2}
    run = value_in_run(
        run_function, lambda run: run, given, max_attempts=3, timezone="Europe/Berlin"
    )
    [row] = Run.objects.all()
    assert (run.id, run.job, run.attempt, run.worker) == (row.pk, row.job, 2, "w")
    assert run.scheduled_at == NOON
    assert run.started_at == row.attempts.get().started_at
    assert run.cancelled is False


def test_previous_scheduled_at_is_the_previous_occurrence(make_target: MakeTarget) -> None:
    values: list[Any] = []
    key = make_target(lambda: values.append(django_dcron.current_run().previous_scheduled_at))
    job = make_idle_job(target=key)
    Job.objects.update(schedule="0 */6 * * *")
    run = make_run(job, scheduled_at=NOON)
    execute(run.pk, 1, worker="w")
    assert values == [NOON - timedelta(hours=6)]


def test_rerun_has_the_scheduled_at_of_the_first_run(make_target: MakeTarget) -> None:
    values: list[Any] = []
    job = make_idle_job(
        target=make_target(lambda: values.append(django_dcron.current_run().scheduled_at))
    )
    first = make_run(job, "failed", scheduled_at=NOON)
    again = make_run(job, trigger="rerun", rerun_of=first)
    execute(again.pk, 1, worker="w")
    assert values == [NOON]


def test_rerun_of_a_pruned_run_has_its_own_scheduled_at(make_target: MakeTarget) -> None:
    values: list[Any] = []
    job = make_idle_job(
        target=make_target(lambda: values.append(django_dcron.current_run().scheduled_at))
    )
    first = make_run(job, "failed", scheduled_at=NOON)
    again = make_run(job, trigger="rerun", rerun_of=first)
    first.delete()
    execute(again.pk, 1, worker="w")
    assert values == [again.scheduled_at]


def test_deadline_is_the_start_plus_the_timeout(run_function: RunFunction) -> None:
    hour = timedelta(hours=1)
    run, left = value_in_run(run_function, lambda run: (run, run.time_left), timeout=hour)
    assert run.deadline - run.started_at == hour
    assert timedelta(minutes=55) < left <= hour


def test_deadline_is_none_without_a_timeout(run_function: RunFunction) -> None:
    assert value_in_run(run_function, lambda run: (run.deadline, run.time_left)) == (None, None)


# --- progress -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "stored"),
    [
        ((3, 10, "rows"), (3, 10, "rows")),
        ((3,), (3, None, "")),
        ((2.9, 10.0), (2, 10, "")),
        ((-1, -5), (0, 0, "")),
        ((2**80, 2**90), (2**63 - 1, 2**63 - 1, "")),
        ((1, 2, "x" * 1000), (1, 2, "x" * 255)),
        ((1, 2, "NUL \x00 \ud800"), (1, 2, "NUL \ufffd \ufffd")),
        ((1, 2, 17), (1, 2, "17")),
    ],
    ids=lambda value: repr(value)[:30],
)
def test_progress_is_normalized_and_recorded(
    run_function: RunFunction, given: tuple[Any, ...], stored: tuple[Any, ...]
) -> None:
    _, attempt = run_function(lambda: django_dcron.current_run().progress(*given))
    assert attempt.outcome == "succeeded", attempt.traceback
    assert (attempt.progress_done, attempt.progress_total, attempt.progress_note) == stored


@pytest.mark.parametrize("nonsense", ["many", None, float("nan")])
def test_invalid_progress_raises_in_the_code_of_the_job(
    run_function: RunFunction, nonsense: Any
) -> None:
    run, attempt = run_function(lambda: django_dcron.current_run().progress(nonsense))
    assert (run.state, attempt.exception_class) in {
        ("failed", "ValueError"),
        ("failed", "TypeError"),
    }


# --- heartbeat and cancel -----------------------------------------------------------------------


@pytest.fixture
def every_beat(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MIN_HEARTBEAT_INTERVAL", 0.0)


@pytest.mark.usefixtures("every_beat")
def test_heartbeat_writes_progress_and_log_at_once(make_target: MakeTarget) -> None:
    values: list[Any] = []

    def target() -> None:
        run = django_dcron.current_run()
        before = Run.objects.get(pk=run.id).heartbeat_at
        print("at work")  # noqa: T201
        run.progress(1, 2)
        run.heartbeat()
        attempt = Attempt.objects.get(run=run.id)
        values.append(
            (Run.objects.get(pk=run.id).heartbeat_at > before, attempt.progress_done, attempt.log)
        )

    run = make_run(make_idle_job(target=make_target(target)))
    execute(run.pk, 1, worker="w")
    assert values == [(True, 1, "at work\n")]


@pytest.mark.usefixtures("every_beat")
def test_heartbeat_raises_at_once_after_a_cancel(make_target: MakeTarget) -> None:
    def target() -> None:
        run = django_dcron.current_run()
        run.heartbeat()
        control.cancel(Run.objects.get(pk=run.id), "by hand")
        run.heartbeat()
        raise AssertionError("the code continued")

    run = make_run(make_idle_job(target=make_target(target), max_attempts=3))
    execute(run.pk, 1, worker="w")
    assert (state_of(run), attempt_of(run).outcome) == (State.CANCELLED, "cancelled")


@pytest.mark.usefixtures("every_beat")
def test_heartbeat_raises_at_once_after_the_attempt_was_lost(make_target: MakeTarget) -> None:
    def target() -> None:
        run = django_dcron.current_run()
        endings.retry(run.run, AttemptEnd(1, {"outcome": "lost"}), run.started_at, "lost")
        run.heartbeat()
        raise AssertionError("the code continued")

    run = make_run(make_idle_job(target=make_target(target), max_attempts=3))
    execute(run.pk, 1, worker="w")
    assert (state_of(run), attempt_of(run).late_outcome) == (State.PENDING, "cancelled")


@pytest.mark.postgresql
@pytest.mark.mariadb
@pytest.mark.usefixtures("every_beat")
def test_heartbeat_in_a_transaction_of_the_job_holds_no_lock(run_function: RunFunction) -> None:
    """Otherwise, the heartbeat thread waits for the transaction, and the process loses all runs."""

    def target() -> None:
        run = django_dcron.current_run()
        with transaction.atomic():
            run.heartbeat()
            beaten = threading.Event()

            def beat_elsewhere() -> None:
                from django.db import connections

                transitions.renew_heartbeat(run.id, 1)
                connections.close_all()
                beaten.set()

            threading.Thread(target=beat_elsewhere).start()
            assert beaten.wait(TIMEOUT)

    assert run_function(target)[0].state == State.SUCCEEDED


def test_heartbeats_in_a_tight_loop_are_throttled(
    run_function: RunFunction, monkeypatch: pytest.MonkeyPatch
) -> None:
    beats = []
    real = transitions.renew_heartbeat
    monkeypatch.setattr(
        transitions, "renew_heartbeat", lambda *args: beats.append(1) or real(*args)
    )

    def target() -> None:
        for _ in range(1000):
            django_dcron.current_run().heartbeat()

    run_function(target)
    assert 1 <= len(beats) < 50


def bare_run() -> CurrentRun:
    """Return a current run without a heartbeat thread."""
    run = make_run(make_idle_job())
    return CurrentRun(reread(run), NOON, token=uuid4(), worker="w")


def test_every_call_raises_after_the_run_was_cancelled() -> None:
    run = bare_run()
    run.heartbeat()
    run.cancel()
    assert run.cancelled
    with pytest.raises(RunCancelled):
        run.heartbeat()
    with pytest.raises(RunCancelled):
        run.progress(1)
