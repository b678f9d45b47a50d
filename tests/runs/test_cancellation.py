"""A cancel reaches the holder of the run at once, and never an attempt that may start later."""

import json
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from django.db import connection, transaction
from pytest_django import Settings

from django_dcron import control, dispatch
from django_dcron.dispatch import DispatchFailed, best_effort
from django_dcron.execution import executor
from django_dcron.execution.executor import execute
from django_dcron.models import Attempt, Run
from django_dcron.policies.lifecycle import State
from django_dcron.runs import endings
from django_dcron.runs.endings import AttemptEnd
from tests.conftest import StartProcess
from tests.execution.conftest import MakeTarget, attempt_of, deliver, reread, state_of
from tests.factories import make_idle_job, make_run
from tests.logs import events, logged
from tests.scheduler.stand_ins import MemoryDispatcher
from tests.services import Process, Server
from tests.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)

LONG = 100.0
"""Seconds that a run takes if nothing stops it."""
NO_HEARTBEAT = {"RUN_LEASE": 3600, "HARD_TIMEOUT_AFTER": 0.5}
"""With these settings, a worker learns nothing from its heartbeat during a test."""


@pytest.fixture(autouse=True)
def broker_is_reachable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make this process regard the broker as reachable, before and after the test."""
    monkeypatch.setattr(best_effort, "_broker_unreachable_until", float("-inf"))


# --- revocation ---------------------------------------------------------------------------------


@pytest.fixture
def recording_dispatcher(settings: Settings) -> Iterator[MemoryDispatcher]:
    """This process's dispatcher, which records what was revoked."""
    settings.DCRON_DISPATCHER = "tests.scheduler.stand_ins.MemoryDispatcher"
    dispatch._shared.cache_clear()
    dispatcher = dispatch.shared_dispatcher()
    assert isinstance(dispatcher, MemoryDispatcher)
    yield dispatcher
    dispatch._shared.cache_clear()


def test_running_attempt_is_revoked_once(recording_dispatcher: MemoryDispatcher) -> None:
    run = make_run(make_idle_job(), "running", attempt=2)
    control.cancel(run)
    control.cancel(run)
    assert recording_dispatcher.revoked == [(run.pk, 2)]


@pytest.mark.parametrize(("state", "times"), [("pending", 0), ("queued", 1), ("waiting", 0)])
def test_only_queued_run_is_revoked_if_unstarted(
    recording_dispatcher: MemoryDispatcher, state: str, times: int
) -> None:
    run = control.cancel(make_run(make_idle_job(), state))
    assert run.is_final
    assert recording_dispatcher.revoked == [(run.pk, 1)] * times


def test_replaced_holder_is_revoked_but_not_the_newcomer(
    recording_dispatcher: MemoryDispatcher,
) -> None:
    """The newcomer is delivered again as the same attempt. If revoked, it would be dropped."""
    job = make_idle_job(overlap_policy="cancel_running")
    holder, newcomer = make_run(job, "queued"), make_run(job, "queued")
    assert deliver(holder)
    assert not deliver(newcomer)
    assert state_of(newcomer) == "waiting"
    assert recording_dispatcher.revoked == [(holder.pk, 1)]
    assert endings.finish(
        reread(holder), AttemptEnd(1, {"outcome": "cancelled"}), State.CANCELLED, ""
    )
    assert deliver(newcomer)


def test_run_is_revoked_only_after_commit(recording_dispatcher: MemoryDispatcher) -> None:
    run = make_run(make_idle_job(), "running")
    with transaction.atomic():
        control.cancel(run)
        transaction.set_rollback(True)
    with transaction.atomic():
        control.cancel(run)
        assert not recording_dispatcher.revoked, "nothing is revoked before the commit"
    assert recording_dispatcher.revoked == [(run.pk, 1)]


def test_cancel_succeeds_while_broker_is_unreachable(
    recording_dispatcher: MemoryDispatcher,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    revocations = []

    def fail(*args: Any) -> None:
        revocations.append(args)
        raise DispatchFailed("the broker is down")

    monkeypatch.setattr(recording_dispatcher, "revoke", fail)
    caplog.set_level("INFO", "django_dcron.runs")
    runs = [make_run(make_idle_job(), "running") for _ in range(3)]
    for run in runs:
        assert control.cancel(run, "by hand").cancel_requested_at
    assert len(revocations) == 1
    assert events(caplog) == ["not_revoked"]
    assert logged(caplog, "not_revoked", "the broker is down", run=str(runs[0].pk))


# --- in threads of this process -----------------------------------------------------------------


def test_code_in_this_process_is_interrupted_at_once(
    make_target: MakeTarget, settings: Settings
) -> None:
    """With threads as workers, there is no broker, and the next heartbeat is an hour away."""
    settings.DCRON_DISPATCHER = "thread"
    settings.DCRON_RUN_LEASE = timedelta(hours=1)
    make_run(make_idle_job())
    seen: list[bool] = []
    used: list[object] = []

    def cancels_itself() -> str:
        import django_dcron
        from django_dcron.exceptions import RunCancelled

        run = django_dcron.current_run()
        used.append(connection.connection)
        try:
            control.cancel(Run.objects.get(pk=run.id), "by hand")
            wait_until(lambda: False, LONG)
        except RunCancelled:
            seen.append(run.cancelled)
        return "tidied up"

    row = make_run(make_idle_job(target=make_target(cancels_itself), max_attempts=3))
    execute(row.pk, 1, worker="w")
    assert seen == [True]
    assert connection.connection not in used, "an interrupted connection is used again"
    after, attempt = reread(row), attempt_of(row)
    assert (after.state, after.reason, after.attempt) == ("cancelled", "by hand", 1)
    assert (attempt.outcome, attempt.result) == ("cancelled", '"tidied up"')
    assert after.job.statistics.cancelled == 1


def test_cancel_right_after_the_start_is_noticed(
    make_target: MakeTarget, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cancel arrives before the process has recorded the run or can interrupt its code."""
    settings.DCRON_DISPATCHER = "thread"
    settings.DCRON_RUN_LEASE = timedelta(hours=1)
    real = executor.start_attempt

    def start_and_cancel(run_id: UUID, *args: Any, **options: Any) -> Any:
        started = real(run_id, *args, **options)
        control.cancel(Run.objects.get(pk=run_id), "by hand")
        return started

    monkeypatch.setattr(executor, "start_attempt", start_and_cancel)
    row = make_run(make_idle_job(target=make_target(lambda: wait_until(lambda: False, 30))))
    execute(row.pk, 1, worker="w")
    assert (state_of(row), reread(row).reason) == ("cancelled", "by hand")


# --- on real workers ----------------------------------------------------------------------------


@pytest.fixture
def worker(start_worker: StartProcess, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Process]:
    def start(pool: str = "prefork", **given: float) -> Process:
        if pool == "threads":
            # Before CPython 3.12, an exception that is pending for one thread blocks all other
            # traced threads. So coverage is off here.
            for name in ("COVERAGE_PROCESS_START", "COVERAGE_PROCESS_CONFIG"):
                monkeypatch.delenv(name, raising=False)
        env = {"DCRON_TEST_SETTINGS": json.dumps(NO_HEARTBEAT | given)}
        return start_worker(env=env, pool=pool, concurrency=1)

    return start


def trigger(task: str, *args: Any, **fields: Any) -> Run:
    return control.trigger(
        make_idle_job(target=f"tests.app.tasks.{task}", args=list(args), **fields)
    )


def wait_for_state(run: Run, state: str) -> Run:
    wait_until(lambda: state_of(run) == state, what=f"{run} to be {state}")
    return reread(run)


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_worker_is_notified_of_a_cancel_at_once(worker: Callable[..., Process], pool: str) -> None:
    """This works for several runs of a process. A cancelled, prefetched run doesn't start."""
    process = worker(pool)
    for _ in range(2):
        run = trigger("clean_up_when_cancelled", LONG, max_attempts=3)
        wait_for_state(run, "running")
        prefetched = trigger("ok")
        process.wait_for_log(f"Task {prefetched.job}[{prefetched.pk}.1] received")
        control.cancel(reread(prefetched))
        control.cancel(reread(run), "by hand")
        after = wait_for_state(run, "cancelled")
        assert (after.reason, after.attempt, after.slot) == ("by hand", 1, None)
        attempt = attempt_of(run)
        assert (attempt.outcome, attempt.result) == ("cancelled", '"in order; cancelled: True"')
        wait_for_state(trigger("ok"), "succeeded")
        assert not Attempt.objects.filter(run=prefetched).exists()
        # With threads, Celery passes them the prefetched messages, and the start drops these.
        if pool == "prefork":
            assert f"Discarding revoked task: {prefetched.job}[{prefetched.pk}.1]" in process.log
    assert process.running
    assert " ERROR" not in process.log
    assert "WARNING" not in process.log


def test_code_that_ignores_cancellation_is_killed_and_cancelled(
    worker: Callable[..., Process],
) -> None:
    process = worker()
    run = trigger("ignore_exceptions", LONG, max_attempts=3)
    wait_for_state(run, "running")
    control.cancel(reread(run), "by hand")
    after = wait_for_state(run, "cancelled")
    assert (after.reason, after.attempt) == ("by hand", 1)
    attempt = attempt_of(run)
    assert (attempt.outcome, attempt.late_outcome) == ("cancelled", "")
    assert attempt.message == "did not stop within 0.5s after cancellation"
    wait_for_state(trigger("ok"), "succeeded")  # in the process that replaced the killed one
    assert state_of(run) == "cancelled"
    assert process.running


def test_worker_without_broker_learns_of_a_cancel_by_heartbeat(
    worker: Callable[..., Process], redis_server: Server
) -> None:
    """The broker is gone. This pool's only thread receives no command during a run anyway."""
    worker("solo", RUN_LEASE=1, STOP_WITHOUT_HEARTBEAT_AFTER=60)
    run = trigger("clean_up_when_cancelled", LONG)
    wait_for_state(run, "running")
    redis_server.kill()
    assert control.cancel(reread(run), "by hand").cancel_requested_at
    assert wait_for_state(run, "cancelled").reason == "by hand"
