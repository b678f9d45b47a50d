"""The functions of ``control``: each succeeds, or raises with the reason and changes nothing."""

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest
from django.db import OperationalError, connections, transaction
from pytest_django import DjangoCaptureOnCommitCallbacks, Settings

from django_dcron import control
from django_dcron.db.contention import MAX_RETRIES
from django_dcron.db.now import database_now
from django_dcron.dispatch import DispatchFailed, best_effort
from django_dcron.dispatch.base import DueRun, PartlyPublished
from django_dcron.exceptions import (
    IdempotencyKeyReused,
    InvalidArguments,
    InvalidSchedule,
    InvalidValue,
    NotPossible,
    UnknownTarget,
)
from django_dcron.jobs import manual_runs
from django_dcron.models import Cursor, Job, Run
from django_dcron.policies.lifecycle import FINAL, State
from django_dcron.policies.slots import Slot
from django_dcron.runs import endings, slot_queue, transitions
from django_dcron.runs.chains import follower_key
from django_dcron.runs.immediate_dispatch import dispatch_now
from django_dcron.scheduler.claim import claim
from django_dcron.schedules.timetable import MICROSECOND
from tests.factories import make_idle_job, make_job, make_run
from tests.refusals import refusal
from tests.scheduler.stand_ins import MemoryDispatcher
from tests.waiting import TIMEOUT

pytestmark = pytest.mark.django_db

SECOND = timedelta(seconds=1)
ECHO = "tests.app.tasks.echo"


@pytest.fixture(autouse=True)
def dispatcher(monkeypatch: pytest.MonkeyPatch) -> Iterator[MemoryDispatcher]:
    """The dispatcher of this process, which replaces Celery."""
    dispatcher = MemoryDispatcher()
    monkeypatch.setattr(best_effort, "shared_dispatcher", lambda: dispatcher)
    monkeypatch.setattr(best_effort, "_broker_unreachable_until", float("-inf"))
    return dispatcher


# --- trigger ------------------------------------------------------------------------------------


def test_triggered_run_is_dispatched_after_the_commit(
    dispatcher: MemoryDispatcher, django_capture_on_commit_callbacks: DjangoCaptureOnCommitCallbacks
) -> None:
    job = make_idle_job(queue="q", priority=1, timeout=timedelta(seconds=5))
    before = database_now("default")
    with django_capture_on_commit_callbacks(execute=True):
        run = control.trigger(job)
        assert (run.state, run.trigger, run.args, run.kwargs) == ("pending", "manual", None, None)
        assert dispatcher.dispatched == []
    (due,) = dispatcher.dispatched
    assert (due.run_id, due.attempt, due.job_id, due.job_name) == (run.pk, 1, job.pk, job.name)
    assert (due.target, due.queue, due.priority, due.timeout) == (job.target, "q", 1, job.timeout)
    run.refresh_from_db()
    assert (run.state, run.deliveries) == ("queued", 1)
    assert before <= run.due_at <= database_now("default")


def test_trigger_with_arguments_stores_them_on_the_run() -> None:
    job = make_idle_job(target=ECHO, args=[1])
    run = control.trigger(job, args=[2], kwargs={"city": "Berlin"})
    run.refresh_from_db()
    assert (run.args, run.kwargs) == ([2], {"city": "Berlin"})


@pytest.mark.parametrize(
    ("given", "error"),
    [({"args": [1]}, InvalidArguments), ({"kwargs": {"a": 1}}, InvalidArguments)],
)
def test_trigger_refuses_arguments_that_the_target_does_not_accept(
    given: dict[str, Any], error: type[Exception]
) -> None:
    job = make_idle_job()
    with pytest.raises(error):
        control.trigger(job, **given)
    assert not Run.objects.exists()


def test_trigger_refuses_a_missing_target() -> None:
    job = make_idle_job()
    job.target = "gone"
    with pytest.raises(UnknownTarget):
        control.trigger(job)
    assert not Run.objects.exists()


def test_paused_job_can_be_triggered() -> None:
    job = control.pause(make_idle_job())
    assert control.trigger(job).state == "pending"


def test_triggered_run_never_gets_the_time_of_an_occurrence() -> None:
    job = make_job()
    runs = [control.trigger(job) for _ in range(20)]
    assert len({run.scheduled_at for run in runs}) == 20
    assert all(run.scheduled_at.microsecond for run in runs)


def test_triggered_run_is_moved_off_a_whole_second(monkeypatch: pytest.MonkeyPatch) -> None:
    at = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)
    monkeypatch.setattr(manual_runs, "database_now", lambda using: at)
    assert control.trigger(make_idle_job()).scheduled_at == at + MICROSECOND


def test_trigger_fails_if_no_instant_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    at = datetime(2026, 3, 1, 12, 0, 0, 5, tzinfo=UTC)
    monkeypatch.setattr(manual_runs, "database_now", lambda using: at)
    job = make_idle_job()
    for n in range(manual_runs.MAX_TRIES):
        assert control.trigger(job).scheduled_at == at + n * MICROSECOND
    with refusal(NotPossible, "busy"):
        control.trigger(job)


def test_idempotency_key_creates_one_run_per_job(dispatcher: MemoryDispatcher) -> None:
    job, other = make_idle_job(), make_idle_job()
    first = control.trigger(job, idempotency_key="order-7")
    assert control.trigger(job, idempotency_key="order-7") == first
    assert control.trigger(job, idempotency_key="order-8") != first
    assert control.trigger(other, idempotency_key="order-7") != first
    assert Run.objects.count() == 3


@pytest.mark.parametrize("other", ["ORDER-7", "órder-7", "order-7 "])
def test_idempotency_keys_differ_by_case_accents_and_spaces(other: str) -> None:
    """MariaDB's collations would treat such keys as equal."""
    job = make_idle_job()
    assert control.trigger(job, idempotency_key="order-7") != control.trigger(
        job, idempotency_key=other
    )


@pytest.mark.parametrize("other", [{}, {"args": [2]}, {"args": [1], "kwargs": {}}], ids=str)
def test_idempotency_key_with_other_arguments_is_refused(other: dict[str, Any]) -> None:
    job = make_idle_job(target="tests.app.tasks.echo")
    run = control.trigger(job, args=[1], idempotency_key="order-7")
    with refusal(IdempotencyKeyReused, "key_reused") as refused:
        control.trigger(job, **other, idempotency_key="order-7")
    assert str(run.pk) in str(refused.value)
    assert Run.objects.count() == 1


@pytest.mark.parametrize("given", [{"args": [(1, 2)]}, {"kwargs": {"m": {1: 2}}}], ids=str)
def test_arguments_of_an_idempotency_key_are_compared_as_json(given: dict[str, Any]) -> None:
    job = make_idle_job(target="tests.app.tasks.echo")
    run = control.trigger(job, **given, idempotency_key="order-7")
    assert control.trigger(job, **given, idempotency_key="order-7") == run
    assert control.trigger_many([job, job], **given, idempotency_key="order-7") == [run, run]


def test_idempotency_key_returns_its_run_although_the_target_is_gone() -> None:
    job = make_idle_job(target="tests.app.tasks.echo")
    run = control.trigger(job, args=[1], idempotency_key="order-7")
    Job.objects.filter(pk=job.pk).update(target="tests.app.tasks.gone")
    job.refresh_from_db()
    assert control.trigger(job, args=[1], idempotency_key="order-7") == run
    other = make_idle_job()
    Job.objects.filter(pk=other.pk).update(target="tests.app.tasks.gone")
    other.refresh_from_db()
    found, error = control.trigger_many([job, other], args=[1], idempotency_key="order-7")
    assert found == run
    assert isinstance(error, UnknownTarget)


@pytest.mark.parametrize("key", ["", "x" * 121])
def test_invalid_idempotency_key_is_refused(key: str) -> None:
    with refusal(InvalidValue, "invalid_length", field="idempotency_key"):
        control.trigger(make_idle_job(), idempotency_key=key)
    assert control.trigger(make_idle_job(), idempotency_key="x" * 120)


@pytest.mark.parametrize("key", ["order\0", "order \ud800"], ids=ascii)
def test_idempotency_key_that_cannot_be_stored_is_refused(key: str) -> None:
    for trigger in (control.trigger, lambda job, **given: control.trigger_many([job], **given)):
        with refusal(InvalidValue, "not_storable", field="idempotency_key"):
            trigger(make_idle_job(), idempotency_key=key)


def test_idempotency_key_of_a_chain_is_refused() -> None:
    """Otherwise the chained run would count as created already and would never be created."""
    job, run = make_idle_job(), make_run(make_idle_job())
    with refusal(InvalidValue, "reserved", field="idempotency_key"):
        control.trigger(job, idempotency_key=follower_key(run.pk))
    assert not Run.objects.filter(job=job).exists()
    assert control.trigger(job, idempotency_key=f"before and {follower_key(run.pk)}")


@pytest.mark.django_db(transaction=True)
def test_concurrent_triggers_with_one_key_create_one_run(dispatcher: MemoryDispatcher) -> None:
    job = make_idle_job()
    together = threading.Barrier(5)
    results: list[Any] = []

    def trigger_once() -> None:
        together.wait(TIMEOUT)
        try:
            results.append(control.trigger(job, idempotency_key="order-7").pk)
        except BaseException as error:
            results.append(error)
        finally:
            connections.close_all()

    threads = [threading.Thread(target=trigger_once) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT)
    assert results == [Run.objects.get().pk] * 5
    assert len(dispatcher.dispatched) == 1


@pytest.mark.django_db(transaction=True)
def test_rolled_back_trigger_creates_and_dispatches_nothing(dispatcher: MemoryDispatcher) -> None:
    job = make_idle_job()
    with transaction.atomic():
        control.trigger(job)
        transaction.set_rollback(True)
    assert not Run.objects.exists()
    assert dispatcher.dispatched == []
    with transaction.atomic():
        run = control.trigger(job)
        assert dispatcher.dispatched == []
    assert [due.run_id for due in dispatcher.dispatched] == [run.pk]


@pytest.mark.parametrize("trouble", ["broker_unreachable", "undeliverable", "broken"])
def test_run_that_cannot_be_dispatched_is_left_to_a_node(
    dispatcher: MemoryDispatcher,
    django_capture_on_commit_callbacks: DjangoCaptureOnCommitCallbacks,
    caplog: pytest.LogCaptureFixture,
    trouble: str,
) -> None:
    """The caller gets no error, because the run exists and a node will dispatch it."""
    job = make_idle_job()
    setattr(dispatcher, trouble, True if trouble == "broker_unreachable" else {job.name})
    with django_capture_on_commit_callbacks(execute=True):
        run = control.trigger(job)
    run.refresh_from_db()
    assert (run.state, run.node) == ("pending", "")
    (record,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert (vars(record)["event"], vars(record)["run"]) == ("dispatch_deferred", str(run.pk))


def test_unreachable_broker_is_tried_once_per_pause(
    dispatcher: MemoryDispatcher,
    monkeypatch: pytest.MonkeyPatch,
    django_capture_on_commit_callbacks: DjangoCaptureOnCommitCallbacks,
) -> None:
    """Run now for 500 jobs is one request. It must not attempt 500 connections."""
    jobs = [make_idle_job() for _ in range(3)]

    def trigger_all() -> None:
        with django_capture_on_commit_callbacks(execute=True):
            for job in jobs:
                control.trigger(job)

    dispatcher.undeliverable = {jobs[0].name}  # a failure of this run alone
    trigger_all()
    assert len(dispatcher.dispatched) == 2
    dispatcher.broker_unreachable = True
    dispatcher.batches.clear()
    trigger_all()
    assert dispatcher.batches == [1]
    dispatcher.broker_unreachable = False
    trigger_all()
    assert dispatcher.batches == [1]
    assert Run.objects.pending().count() == 7
    monkeypatch.setattr(
        best_effort,
        "_broker_unreachable_until",
        best_effort._broker_unreachable_until - best_effort.BROKER_PAUSE,
    )
    trigger_all()
    assert dispatcher.batches == [1, 1, 1]


@pytest.mark.parametrize("by_error", [True, False])
def test_rejected_run_does_not_delay_other_requests(
    dispatcher: MemoryDispatcher, monkeypatch: pytest.MonkeyPatch, by_error: bool
) -> None:
    """A full or faulty queue says nothing about other queues."""
    rejected, other = make_run(make_idle_job()), make_run(make_idle_job())
    publish = dispatcher.publish

    def reject(prepared: Sequence[DueRun]) -> None:
        if prepared[0].run_id == rejected.pk:
            raise PartlyPublished("no permission for queue a", {0}, by_error=by_error)
        publish(prepared)

    monkeypatch.setattr(dispatcher, "publish", reject)
    dispatch_now(rejected)
    dispatch_now(other)
    assert [due.run_id for due in dispatcher.dispatched] == [other.pk]
    rejected.refresh_from_db()
    assert rejected.state == "pending"


def test_run_is_left_to_a_node_without_a_dispatcher(
    monkeypatch: pytest.MonkeyPatch,
    django_capture_on_commit_callbacks: DjangoCaptureOnCommitCallbacks,
) -> None:
    monkeypatch.setattr(best_effort, "shared_dispatcher", lambda: None)
    with django_capture_on_commit_callbacks(execute=True):
        run = control.trigger(make_idle_job())
    run.refresh_from_db()
    assert run.state == "pending"


def test_run_woken_before_it_was_marked_stays_pending(
    monkeypatch: pytest.MonkeyPatch,
    django_capture_on_commit_callbacks: DjangoCaptureOnCommitCallbacks,
) -> None:
    """A worker has used up the message. If marked as queued, the run would wait for redelivery."""
    job = make_idle_job(overlap_policy="queue_all")

    class WakingDispatcher(MemoryDispatcher):
        def publish(self, prepared: Any) -> None:
            assert transitions.mark_waiting(
                Run.objects.get(pk=prepared[0].run_id), slot=None, reason=""
            )
            assert slot_queue.wake_next(job.pk)

    monkeypatch.setattr(best_effort, "shared_dispatcher", WakingDispatcher)
    with django_capture_on_commit_callbacks(execute=True):
        run = control.trigger(job)
    run.refresh_from_db()
    assert (run.state, run.slot) == ("pending", Slot.RUNNING)


@pytest.mark.django_db(transaction=True)
def test_trigger_of_a_deleted_job_is_refused() -> None:
    job = make_idle_job()
    Job.objects.filter(pk=job.pk).delete()
    with pytest.raises(NotPossible) as refused:
        control.trigger(job)
    assert refused.value.code == "deleted"


# --- rerun --------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", sorted(FINAL))
def test_rerun_creates_a_new_run_with_the_same_arguments(state: State) -> None:
    original = make_run(make_idle_job(target=ECHO), state, args=[1], kwargs={"a": 2})
    again = control.rerun(original)
    assert again != original
    assert (again.state, again.trigger, again.rerun_of) == ("pending", "rerun", original)
    assert (again.args, again.kwargs) == ([1], {"a": 2})
    Run.objects.filter(pk=again.pk).update(state="failed")
    again.refresh_from_db()
    assert control.rerun(again).rerun_of == original, "each rerun refers to the first run"


@pytest.mark.parametrize("state", sorted(set(State) - FINAL))
def test_rerun_of_an_unfinished_run_is_refused(state: State) -> None:
    with pytest.raises(NotPossible) as refused:
        control.rerun(make_run(make_idle_job(), state))
    assert (refused.value.code, str(refused.value.params["state"])) == ("not_finished", state)
    assert Run.objects.count() == 1


def test_rerun_of_a_run_that_was_deleted_with_its_job_is_refused() -> None:
    run = Run.objects.get(pk=make_run(make_idle_job(), "failed").pk)
    Job.objects.all().delete()
    with refusal(NotPossible, "pruned"):
        control.rerun(run)


# --- cancel -------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", ["pending", "queued", "waiting"])
def test_unstarted_run_is_cancelled_at_once(state: str) -> None:
    run = control.cancel(make_run(make_idle_job(), state), "no longer needed")
    assert (run.state, run.reason) == ("cancelled", "no longer needed")
    assert Run.objects.get().state == "cancelled"


def test_cancel_of_a_running_run_is_requested_once() -> None:
    run = control.cancel(make_run(make_idle_job(), "running"), "first")
    requested_at = run.cancel_requested_at
    assert (run.state, run.reason, requested_at is None) == ("running", "first", False)
    again = control.cancel(run, "second")
    assert (again.cancel_requested_at, again.reason) == (requested_at, "first")


@pytest.mark.parametrize("state", sorted(FINAL))
def test_finished_run_cannot_be_cancelled(state: State) -> None:
    run = make_run(make_idle_job(), state)
    with pytest.raises(NotPossible) as refused:
        control.cancel(run)
    assert (refused.value.code, str(refused.value.params["state"])) == ("finished", state)
    assert Run.objects.get().state == state


def test_cancel_is_retried_if_the_run_started_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run(make_idle_job(), "queued")
    original: Callable[..., bool] = endings.end_unstarted

    def started_meanwhile(*args: Any) -> bool:
        transitions.mark_running(
            run, 1, slot=None, token=uuid4(), worker="w", started_at=run.due_at
        )
        return original(*args)

    monkeypatch.setattr(endings, "end_unstarted", started_meanwhile)
    cancelled = control.cancel(run)
    assert cancelled.state == "running"
    assert cancelled.cancel_requested_at is not None


def test_cancel_gives_up_if_the_state_keeps_changing(monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run(make_idle_job())
    monkeypatch.setattr(endings, "end_unstarted", lambda *args: False)
    with refusal(NotPossible, "busy"):
        control.cancel(run)


@pytest.mark.django_db(transaction=True)
def test_cancel_is_retried_after_contention(monkeypatch: pytest.MonkeyPatch) -> None:
    original: Callable[..., bool] = endings.end_unstarted
    errors = [OperationalError("deadlock detected")] * MAX_RETRIES

    def contended(*args: Any) -> bool:
        if errors:
            raise errors.pop()
        return original(*args)

    monkeypatch.setattr(endings, "end_unstarted", contended)
    run = make_run(make_idle_job())
    assert control.cancel(run).state == "cancelled"
    another = make_run(make_idle_job())
    errors[:] = [OperationalError("deadlock detected")] * (MAX_RETRIES + 1)
    with pytest.raises(OperationalError, match="deadlock"):
        control.cancel(another)
    errors[:] = [OperationalError("gone")]
    with pytest.raises(OperationalError, match="gone"):
        control.cancel(another)
    errors[:] = [OperationalError("deadlock detected")]
    with pytest.raises(OperationalError), transaction.atomic():
        control.cancel(another)


# --- preview ------------------------------------------------------------------------------------


def test_preview_starts_at_the_cursor() -> None:
    job = make_job(schedule="@every 7s")
    cursor = Cursor.objects.get()
    previewed = control.preview(job, 3)
    assert cursor.next_at
    assert previewed == [cursor.next_at + n * 7 * SECOND for n in range(3)]


def test_preview_includes_claimed_occurrences() -> None:
    job = make_job()
    claim(range(64), database_now("default"), node="a")
    first, second, *_ = control.preview(job, 3)
    assert first - database_now("default") <= SECOND
    assert second - first == SECOND
    every = make_job(schedule="@every 3s")
    before = control.preview(every, 2)
    claim(range(64), database_now("default") + 2 * SECOND, node="a")
    assert (control.preview(every, 1)[0] - before[0]) % (3 * SECOND) == timedelta()


def test_preview_of_an_unsaved_job_starts_now() -> None:
    job = Job(name="new", schedule="0 3 * * *", timezone="Europe/Berlin")
    first, second = control.preview(job, 2)
    assert second - first in (timedelta(hours=23), timedelta(hours=24), timedelta(hours=25))
    assert first > datetime.now(UTC)


def test_preview_ignores_a_pause_and_uses_unsaved_changes() -> None:
    job = control.pause(make_idle_job())
    assert len(control.preview(job)) == 10
    job.schedule = "*/5 * * * * *"
    assert {at.second % 5 for at in control.preview(job)} == {0}


def test_preview_ends_with_the_schedule() -> None:
    assert control.preview(Job(name="a", schedule="@at 2050-01-01T00:00")) == [
        datetime(2050, 1, 1, tzinfo=UTC)
    ]
    assert control.preview(Job(name="a", schedule="@at 2020-01-01T00:00")) == []
    assert control.preview(make_job(), 0) == []


def test_preview_of_an_invalid_schedule_is_refused() -> None:
    with pytest.raises(InvalidSchedule):
        control.preview(Job(name="a", schedule="nonsense"))


def test_shared_dispatcher_is_created_once(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    from django_dcron import dispatch

    settings.DCRON_DISPATCHER = "tests.scheduler.stand_ins.MemoryDispatcher"
    assert dispatch.shared_dispatcher() is dispatch.shared_dispatcher()
    assert isinstance(dispatch.shared_dispatcher(), MemoryDispatcher)
    settings.DCRON_DISPATCHER = "thread"
    assert dispatch.shared_dispatcher() is None
    assert issubclass(DispatchFailed, Exception)
