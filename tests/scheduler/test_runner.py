"""The runner, in this process: its threads, the drain and the handling of errors."""

import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from django.db import IntegrityError, InternalError, OperationalError
from pytest_django import Settings

from django_dcron.db.now import database_now
from django_dcron.dispatch import Dispatcher
from django_dcron.dispatch.thread import ThreadDispatcher
from django_dcron.execution.executor import execute
from django_dcron.locks import get_lock
from django_dcron.models import LockLease, Node, Run
from django_dcron.runs import retention
from django_dcron.scheduler import backoff, pruner
from django_dcron.scheduler import runner as module
from django_dcron.scheduler.runner import CLOSE, EXIT_FAILED, EXIT_OK, Runner
from django_dcron.utils.threads import DcronThread
from tests.factories import make_idle_job, make_job, make_run
from tests.lock_holder import keeping_locked
from tests.logs import events, logged
from tests.scheduler.stand_ins import MemoryDispatcher
from tests.waiting import TIMEOUT, wait_until

pytestmark = pytest.mark.django_db(transaction=True)

SECOND = timedelta(seconds=1)


@pytest.fixture
def dispatcher() -> MemoryDispatcher:
    return MemoryDispatcher()


@pytest.fixture(autouse=True)
def quick(settings: Settings, caplog: pytest.LogCaptureFixture) -> None:
    settings.DCRON_TICK = timedelta(seconds=0.05)
    settings.DCRON_LEASE = timedelta(hours=1)  # even a slow machine keeps its leases
    caplog.set_level(logging.INFO, "django_dcron.scheduler")


@pytest.fixture
def frequent_heartbeats(quick: None, settings: Settings) -> None:
    settings.DCRON_LEASE = timedelta(seconds=0.5)


def runner_with(dispatcher: Dispatcher) -> Runner:
    return Runner(name="a", namespace="", lock=get_lock("database"), dispatcher=dispatcher)


@pytest.fixture
def runner(dispatcher: MemoryDispatcher) -> Runner:
    return runner_with(dispatcher)


class WorkThread:
    """Run ``work`` in another thread than the node's main thread. An exception fails the test."""

    def __init__(self, work: Callable[[], None], runner: Runner):
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(work, runner))
        self._thread.start()

    def _run(self, work: Callable[[], None], runner: Runner) -> None:
        try:
            work()
        except BaseException as error:
            self._failure = error
        finally:
            runner._signals.wake()  # stops the node even if the work failed
            module.connections.close_all()

    def join(self) -> None:
        self._thread.join(TIMEOUT)
        if self._failure:
            raise self._failure


@pytest.fixture
def start_in_thread() -> Iterator[Callable[[Callable[[], None], Runner], None]]:
    started: list[WorkThread] = []
    yield lambda work, runner: started.append(WorkThread(work, runner))
    for each in started:
        each.join()


StartInThread = Callable[[Callable[[], None], Runner], None]


def terminate() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def no_node_or_lease_is_left() -> bool:
    return not Node.objects.exists() and not LockLease.objects.held().exists()


# --- one pass -----------------------------------------------------------------------------------


def test_runcron_once_dispatches_due_runs_and_releases_the_others(
    runner: Runner, dispatcher: MemoryDispatcher
) -> None:
    make_job()
    due = make_run(make_idle_job(), due_at=database_now("default") - timedelta(minutes=1))
    assert runner.run_once() == EXIT_OK
    assert due.pk in {run.run_id for run in dispatcher.dispatched}
    assert set(Run.objects.filter(state="pending").values_list("node", flat=True)) == {""}
    assert Run.objects.filter(state="queued").count() == len(dispatcher.dispatched)
    assert dispatcher.closed == [True]
    assert no_node_or_lease_is_left()


def test_once_with_threads_finishes_all_due_runs() -> None:
    """There are more runs than threads. Every claimed run must finish."""
    job = make_idle_job(overlap_policy="allow")
    now = database_now("default")
    for n in range(12):
        make_run(job, scheduled_at=now - n * SECOND)
    assert runner_with(ThreadDispatcher(execute, 2, 1)).run_once() == EXIT_OK
    assert list(Run.objects.values_list("state", flat=True)) == ["succeeded"] * 12


def test_runcron_once_logs_that_another_node_leads(
    runner: Runner, dispatcher: MemoryDispatcher, caplog: pytest.LogCaptureFixture
) -> None:
    leader = runner_with(MemoryDispatcher())
    leader.membership.register()
    due = make_run(make_idle_job())
    assert runner.run_once() == EXIT_OK
    assert logged(caplog, "no_shards_led", node="a")
    assert events(caplog, "tick_report") == []
    due.refresh_from_db()
    assert (due.state, dispatcher.dispatched) == ("pending", [])
    leader.membership.leave()


def test_runcron_once_rescues_a_run_with_a_stale_heartbeat(runner: Runner) -> None:
    run = make_run(make_idle_job(), "running", heartbeat_at=database_now("default") - 60 * SECOND)
    assert runner.run_once() == EXIT_OK
    run.refresh_from_db()
    assert run.state == "failed"
    assert "no heartbeat from " in run.reason


# --- the life of a node -------------------------------------------------------------------------


def test_node_works_until_a_signal(
    runner: Runner,
    dispatcher: MemoryDispatcher,
    start_in_thread: StartInThread,
    caplog: pytest.LogCaptureFixture,
) -> None:
    make_job()

    def work() -> None:
        wait_until(lambda: len(dispatcher.dispatched) >= 2, what="two runs dispatched")
        terminate()

    start_in_thread(work, runner)
    assert runner.run() == EXIT_OK
    dispatched = {run.run_id for run in dispatcher.dispatched}
    assert set(Run.objects.filter(state="queued").values_list("pk", flat=True)) == dispatched
    assert set(Run.objects.filter(state="pending").values_list("node", flat=True)) == {""}
    assert no_node_or_lease_is_left()
    output = events(caplog)
    assert (output[:2], output[-1]) == (["shards_changed", "started"], "stopped")
    assert logged(caplog, "started", runner.membership.id, os.getpid(), node="a")
    assert logged(caplog, "shards_changed", node="a", shards=64)


def thread_names() -> set[str]:
    return {thread.name for thread in threading.enumerate()}


def test_node_drains_without_a_new_thread(
    runner: Runner, start_in_thread: StartInThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python 3.12 starts no thread while the interpreter of a web server's process shuts down."""

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    def work() -> None:
        wait_until(lambda: Node.objects.exclude(ticked_at=None).exists(), what="a tick")
        # The node starts this thread last.
        wait_until(lambda: f"dcron-{CLOSE}" in thread_names(), what="all threads")
        monkeypatch.setattr(DcronThread, "start", refuse)
        terminate()

    start_in_thread(work, runner)
    assert runner.run() == EXIT_OK
    assert not Node.objects.exists()


def test_node_works_for_the_given_time(runner: Runner, dispatcher: MemoryDispatcher) -> None:
    due = make_run(make_idle_job())
    assert runner.run(seconds=0.01) == EXIT_OK
    due.refresh_from_db()
    assert due.state == "queued" or due.node == ""
    assert dispatcher.closed == [True]
    assert no_node_or_lease_is_left()


def test_first_signal_during_a_timed_drain_does_not_abort_it(
    start_in_thread: StartInThread,
) -> None:
    closing, may_close = threading.Event(), threading.Event()

    class Slow(MemoryDispatcher):
        def close(self, wait: bool = True) -> None:
            closing.set()
            assert may_close.wait(TIMEOUT)

    runner = runner_with(Slow())

    def work() -> None:
        assert closing.wait(TIMEOUT)
        terminate()
        may_close.set()

    start_in_thread(work, runner)
    assert runner.run(seconds=0.01) == EXIT_OK  # and it doesn't end this process


def test_duplicate_signal_does_not_abort_the_drain(
    start_in_thread: StartInThread, caplog: pytest.LogCaptureFixture
) -> None:
    """Supervisors signal the child first and then its group."""
    closing, may_close = threading.Event(), threading.Event()

    class Slow(MemoryDispatcher):
        def executing(self) -> list[str]:
            return ["long"]

        def close(self, wait: bool = True) -> None:
            closing.set()
            assert may_close.wait(TIMEOUT)

    runner = runner_with(Slow())

    def work() -> None:
        wait_until(lambda: runner._threads["heartbeat"].is_alive(), what="the node")
        terminate(), terminate()
        assert closing.wait(TIMEOUT)
        may_close.set()

    start_in_thread(work, runner)
    assert runner.run() == EXIT_OK  # and it doesn't end this process
    assert logged(caplog, "stopping", "=1 ", "=long", node="a")


def test_runs_returned_without_a_broker_are_logged(
    runner: Runner,
    dispatcher: MemoryDispatcher,
    start_in_thread: StartInThread,
    caplog: pytest.LogCaptureFixture,
) -> None:
    dispatcher.broker_unreachable = True
    for _ in range(3):
        make_run(make_idle_job())
    start_in_thread(
        lambda: wait_until(lambda: runner.agenda.broker_unreachable) and terminate(), runner
    )
    assert runner.run() == EXIT_OK
    assert logged(caplog, "runs_returned", "=3", node="a")


def test_ring_change_triggers_a_heartbeat_at_once(
    runner: Runner, start_in_thread: StartInThread
) -> None:
    """The next regular heartbeat would be due in 20 minutes."""
    other = runner_with(MemoryDispatcher())

    def work() -> None:
        wait_until(lambda: len(runner.membership.shards) == 64, what="all shards")
        other.membership.register()
        wait_until(lambda: len(runner.membership.shards) < 64, what="a share for the newcomer")
        other.membership.beat(agenda=0)
        other.membership.leave()
        wait_until(lambda: len(runner.membership.shards) == 64, what="the shards of the other node")
        terminate()

    start_in_thread(work, runner)
    assert runner.run() == EXIT_OK


def test_gained_shards_trigger_a_tick_at_once(
    runner: Runner,
    start_in_thread: StartInThread,
    settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings.DCRON_TICK = timedelta(seconds=60)
    ticks: list[None] = []
    monkeypatch.setattr(runner.ticker, "tick", lambda: ticks.append(None))
    monkeypatch.setattr(runner.membership, "beat", lambda **given: len(ticks) == 1)
    start_in_thread(lambda: wait_until(lambda: len(ticks) >= 2) and terminate(), runner)
    assert runner.run() == EXIT_OK


def test_agenda_follows_the_clock_after_each_heartbeat(
    runner: Runner, start_in_thread: StartInThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    followed = threading.Event()
    monkeypatch.setattr(runner.agenda, "follow_clock", followed.set)

    def work() -> None:
        wait_until(lambda: Node.objects.exists(), what="the node")
        runner._beat_wanted.set()
        assert followed.wait(TIMEOUT)
        terminate()

    start_in_thread(work, runner)
    assert runner.run() == EXIT_OK


def test_runs_that_no_thread_started_return_to_the_nodes(start_in_thread: StartInThread) -> None:
    started, may_end = threading.Event(), threading.Event()

    def busy(run_id: UUID, attempt: int, *, worker: str) -> None:
        started.set()
        assert may_end.wait(TIMEOUT)

    job = make_idle_job()
    now = database_now("default")
    for n in range(3):
        make_run(job, scheduled_at=now - n * SECOND, due_at=now - n * SECOND)
    dispatcher = ThreadDispatcher(busy, 1, 1)
    runner = runner_with(dispatcher)

    def work() -> None:
        assert started.wait(TIMEOUT)
        wait_until(
            lambda: Run.objects.filter(state="queued").count() == 3, what="all three dispatched"
        )
        terminate()
        wait_until(
            lambda: Run.objects.filter(state="pending", node="").count() == 2, what="two given back"
        )
        may_end.set()

    start_in_thread(work, runner)
    assert runner.run() == EXIT_OK
    assert sorted(Run.objects.values_list("state", flat=True)) == ["pending", "pending", "queued"]
    assert Run.objects.get(state="queued").due_at == now - 2 * SECOND


# --- pruning ------------------------------------------------------------------------------------


def test_old_runs_are_pruned_while_the_node_works(
    runner: Runner,
    dispatcher: MemoryDispatcher,
    start_in_thread: StartInThread,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pruner, "FIRST_ROUND_AFTER", 0.0)
    monkeypatch.setattr(
        pruner, "PAUSE_BETWEEN_ROUNDS", 0.1
    )  # the first round may precede the shards
    job, now = make_idle_job(), database_now("default")
    for days in (60, 40, 31, 1):
        at = now - timedelta(days=days)
        make_run(job, "succeeded", scheduled_at=at, due_at=at, finished_at=at)
    make_job()

    def work() -> None:
        wait_until(lambda: Run.objects.filter(job=job).count() == 1, what="three runs pruned")
        wait_until(lambda: dispatcher.dispatched, what="a run dispatched")
        terminate()

    start_in_thread(work, runner)
    assert runner.run() == EXIT_OK
    assert no_node_or_lease_is_left()


def test_drain_does_not_wait_for_the_end_of_pruning(
    runner: Runner, start_in_thread: StartInThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pruner, "FIRST_ROUND_AFTER", 0.0)
    monkeypatch.setattr(
        pruner, "PAUSE_BETWEEN_ROUNDS", 0.1
    )  # the first round may precede the shards
    monkeypatch.setattr(
        retention, "candidates", lambda jobs, now: list(jobs.values_list("pk", flat=True))
    )
    begun = threading.Event()

    def endless(job_id: int, now: object) -> Iterator[int]:
        while True:
            begun.set()
            yield 1

    monkeypatch.setattr(retention, "prune_runs", endless)
    make_idle_job()
    start_in_thread(lambda: begun.wait(TIMEOUT) and terminate(), runner)
    assert runner.run() == EXIT_OK
    assert not runner._threads["prune"].is_alive()
    assert no_node_or_lease_is_left()


# --- errors -------------------------------------------------------------------------------------


@pytest.mark.parametrize("thread", ["tick", "agenda", "heartbeat", "prune"])
@pytest.mark.usefixtures("frequent_heartbeats")
def test_death_of_a_thread_stops_the_node(
    dispatcher: MemoryDispatcher,
    thread: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def die(*args: Any, **kwargs: Any) -> None:
        raise ZeroDivisionError("unexpected error")

    runner = runner_with(dispatcher)
    where = {
        "tick": (runner.ticker, "tick"),
        "agenda": (runner.agenda, "_publish_due"),
        "heartbeat": (runner.membership, "beat"),
        "prune": (retention, "candidates"),
    }[thread]
    monkeypatch.setattr(pruner, "FIRST_ROUND_AFTER", 0.0)
    monkeypatch.setattr(
        pruner, "PAUSE_BETWEEN_ROUNDS", 0.1
    )  # the first round may precede the shards
    due = make_run(make_idle_job())
    original = getattr(*where)
    runner.membership.register()
    calls = iter([die])
    monkeypatch.setattr(*where, lambda *args, **kwargs: next(calls, original)(*args, **kwargs))
    monkeypatch.setattr(runner.membership, "register", lambda: None)
    assert runner.run() == EXIT_FAILED
    (died,) = [record for record in caplog.records if record.levelno == logging.CRITICAL]
    assert (vars(died)["event"], vars(died)["node"]) == ("thread_died", "a")
    assert "unexpected error" in caplog.text
    assert no_node_or_lease_is_left()
    due.refresh_from_db()
    assert due.state in ("pending", "queued")
    assert due.state == "queued" or due.node == ""


def failing_ticks(
    runner: Runner,
    monkeypatch: pytest.MonkeyPatch,
    *errors: str,
    error: type[Exception] = OperationalError,
) -> list[bool]:
    """Make the first ticks fail. Return whether each later tick adopted the node's own claims."""
    left = list(errors)
    original, seen = runner.ticker.tick, []

    def tick() -> None:
        if left:
            raise error(left.pop(0))
        seen.append(not runner.ticker._settled)
        original()

    monkeypatch.setattr(runner.ticker, "tick", tick)
    return seen


def test_shards_gained_during_a_tick_cause_another_tick_at_once(
    runner: Runner,
    start_in_thread: StartInThread,
    settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings.DCRON_TICK = timedelta(seconds=3600)
    ticks: list[None] = []

    def tick() -> None:
        ticks.append(None)
        if len(ticks) == 1:
            runner._gained_shards.set()

    monkeypatch.setattr(runner.ticker, "tick", tick)
    start_in_thread(lambda: wait_until(lambda: len(ticks) >= 2) and terminate(), runner)
    assert runner.run() == EXIT_OK


def test_node_waits_for_an_unreachable_database(
    runner: Runner,
    start_in_thread: StartInThread,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    seen = failing_ticks(runner, monkeypatch, *["connection refused"] * 3)
    start_in_thread(lambda: wait_until(lambda: len(seen) >= 2) and terminate(), runner)
    assert runner.run() == EXIT_OK
    assert events(caplog, "database_unreachable", "database_back") == [
        "database_unreachable",
        "database_back",
    ]
    assert logged(caplog, "database_unreachable", "connection refused", node="a")
    assert logged(caplog, "database_back", "=3", node="a")
    assert seen[0] is True
    assert seen[1] is False


def test_node_survives_a_database_outage_of_days(
    runner: Runner, start_in_thread: StartInThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner._backoff._unreachable = 50_000
    monkeypatch.setattr(backoff, "LONGEST_PAUSE", 0.01)
    seen = failing_ticks(runner, monkeypatch, "connection refused", "connection refused")
    start_in_thread(lambda: wait_until(lambda: len(seen) >= 1) and terminate(), runner)
    assert runner.run() == EXIT_OK


def test_node_waits_for_a_read_only_database(
    runner: Runner,
    start_in_thread: StartInThread,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    seen = failing_ticks(runner, monkeypatch, "read-only transaction", error=InternalError)
    start_in_thread(lambda: wait_until(lambda: len(seen) >= 1) and terminate(), runner)
    assert runner.run() == EXIT_OK
    assert logged(caplog, "database_unreachable", "read-only transaction", node="a")


def test_node_logs_an_integrity_error_and_continues(
    runner: Runner,
    start_in_thread: StartInThread,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    seen = failing_ticks(runner, monkeypatch, "a job was deleted meanwhile", error=IntegrityError)
    start_in_thread(lambda: wait_until(lambda: len(seen) >= 1) and terminate(), runner)
    assert runner.run() == EXIT_OK
    assert logged(caplog, "tick_failed", "a job was deleted meanwhile", node="a")
    assert "Traceback" in caplog.text
    assert events(caplog, "database_unreachable") == []
    assert seen[0] is True


@pytest.mark.parametrize(
    "message",
    [
        "deadlock detected",
        "(1213, 'Deadlock found when trying to get lock; try restarting transaction')",
        "(1205, 'Lock wait timeout exceeded; try restarting transaction')",
        "database is locked",
        "could not serialize access due to concurrent update",
    ],
)
def test_lock_contention_is_not_treated_as_database_outage(
    runner: Runner,
    start_in_thread: StartInThread,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    message: str,
) -> None:
    seen = failing_ticks(runner, monkeypatch, message)
    start_in_thread(lambda: wait_until(lambda: len(seen) >= 1) and terminate(), runner)
    assert runner.run() == EXIT_OK
    assert events(caplog, "database_unreachable") == []
    assert logged(caplog, "contention", message, node="a")
    assert seen[0] is True


@pytest.mark.usefixtures("frequent_heartbeats")
def test_failed_heartbeats_are_logged_once(
    runner: Runner,
    start_in_thread: StartInThread,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    original, beats = runner.membership.beat, []
    runner.membership.register()
    monkeypatch.setattr(runner.membership, "register", lambda: None)

    def beat(*, agenda: int, connect: Callable[[], None]) -> bool:
        beats.append(agenda)
        if len(beats) < 3:
            raise OperationalError("gone")
        return original(agenda=agenda, connect=connect)

    monkeypatch.setattr(runner.membership, "beat", beat)
    start_in_thread(lambda: wait_until(lambda: len(beats) >= 4) and terminate(), runner)
    assert runner.run() == EXIT_OK
    assert len(logged(caplog, "heartbeat_missed", "gone", node="a")) == 1


@pytest.mark.usefixtures("frequent_heartbeats")
def test_successful_heartbeat_ends_the_backoff_of_the_tick(
    runner: Runner, start_in_thread: StartInThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = failing_ticks(runner, monkeypatch, "gone")
    monkeypatch.setattr(backoff.TickBackoff, "pause", 3600.0)
    original, beats = runner.membership.beat, []
    runner.membership.register()
    monkeypatch.setattr(runner.membership, "register", lambda: None)

    def beat(*, agenda: int, connect: Callable[[], None]) -> bool:
        wait_until(
            lambda: not runner.ticker._settled and runner._backoff._unreachable,
            what="a tick that failed",
        )
        beats.append(agenda)
        if len(beats) == 1:
            raise OperationalError("gone")
        return original(agenda=agenda, connect=connect)

    monkeypatch.setattr(runner.membership, "beat", beat)
    start_in_thread(lambda: wait_until(lambda: seen) and terminate(), runner)
    assert runner.run() == EXIT_OK


@pytest.mark.postgresql
@pytest.mark.mariadb
@pytest.mark.usefixtures("frequent_heartbeats")
def test_heartbeat_gives_up_when_the_nodes_row_is_locked(
    runner: Runner, start_in_thread: StartInThread, caplog: pytest.LogCaptureFixture
) -> None:

    def work() -> None:
        wait_until(lambda: runner._threads["heartbeat"].is_alive(), what="the node")
        with keeping_locked(Node.objects.all()):
            wait_until(lambda: events(caplog, "heartbeat_missed"), what="a heartbeat that gave up")
        terminate()

    start_in_thread(work, runner)
    assert runner.run() == EXIT_OK


def test_drain_without_the_database_leaves_runs_to_other_nodes(
    runner: Runner,
    dispatcher: MemoryDispatcher,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def gone(node: str) -> int:
        raise OperationalError("gone")

    monkeypatch.setattr(module, "return_pending", gone)
    assert runner.run(seconds=0.01) == EXIT_OK
    assert logged(caplog, "runs_not_returned", "gone", node="a")
    assert dispatcher.closed == [True]


def test_failed_drain_returns_a_failure_exit_code(
    dispatcher: MemoryDispatcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = runner_with(dispatcher)
    monkeypatch.setattr(dispatcher, "close", lambda wait: 1 / 0)
    assert runner.run(seconds=0.01) == EXIT_FAILED


def test_unreachable_database_at_start_raises_from_the_first_query(
    runner: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone() -> None:
        raise OperationalError("gone")

    monkeypatch.setattr(runner.membership, "register", gone)
    with pytest.raises(OperationalError):
        runner.run()
    assert not any(thread.is_alive() for thread in runner._threads.values())
