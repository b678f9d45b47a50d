"""Coroutines of many calls on one event loop: limited, and waited for or not started at the end."""

import asyncio
import threading
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.db import connections
from greenlet import greenlet

from django_dcron import targets
from django_dcron.dispatch import coroutine_threads
from django_dcron.dispatch.coroutine_threads import CoroutineThreads
from django_dcron.dispatch.thread import ThreadDispatcher
from django_dcron.execution.executor import execute
from django_dcron.models import Attempt
from django_dcron.policies.lifecycle import Outcome
from django_dcron.targets import cron
from tests.factories import make_idle_job, make_run
from tests.scheduler.stand_ins import due_run
from tests.waiting import TIMEOUT, wait_until


class Meeting:
    """A coroutine that waits until the test lets it go. Keeps how many were inside at once."""

    def __init__(self) -> None:
        self.inside = 0
        self.most = 0
        self.loops: set[asyncio.AbstractEventLoop] = set()
        self.may_end = threading.Event()

    async def attend(self) -> None:
        self.loops.add(asyncio.get_running_loop())
        self.inside += 1
        self.most = max(self.most, self.inside)
        while not self.may_end.is_set():
            await asyncio.sleep(0.01)
        self.inside -= 1

    def attend_from_thread(self) -> None:
        async_to_sync(self.attend)()


@pytest.fixture
def meeting() -> Meeting:
    return Meeting()


def test_coroutines_run_at_the_same_time_on_one_event_loop(meeting: Meeting) -> None:
    threads = CoroutineThreads(20)
    for _ in range(20):
        threads.submit(meeting.attend_from_thread)
    wait_until(lambda: meeting.inside == 20, what="all coroutines to start")
    meeting.may_end.set()
    threads.close()
    assert (len(meeting.loops), meeting.inside) == (1, 0)


def test_number_of_calls_at_once_is_limited(meeting: Meeting) -> None:
    threads = CoroutineThreads(3)
    calls = []
    for n in range(10):
        threads.submit(lambda n=n: (calls.append(n), meeting.attend_from_thread()))
    wait_until(lambda: meeting.inside == 3, what="three coroutines to start")
    meeting.may_end.set()
    threads.close()
    assert sorted(calls) == list(range(10))
    assert meeting.most == 3


def test_close_waits_for_calls_that_were_submitted_before() -> None:
    ended: list[int] = []
    threads = CoroutineThreads(2)
    for n in range(10):
        threads.submit(ended.append, n)
    threads.close()
    assert sorted(ended) == list(range(10))
    with pytest.raises(RuntimeError, match="shut down"):
        threads.submit(ended.append, 11)
    threads.close()


def test_close_without_waiting_starts_no_further_call(
    meeting: Meeting, caplog: pytest.LogCaptureFixture
) -> None:
    started: list[int] = []
    threads = CoroutineThreads(1)
    threads.submit(meeting.attend_from_thread)
    wait_until(lambda: meeting.inside == 1, what="the first call to start")
    for n in range(3):
        threads.submit(started.append, n)
    threads.close(wait=False)
    meeting.may_end.set()
    threads.close()
    assert (started, meeting.inside) == ([], 0)
    assert not caplog.records


def test_event_loop_survives_a_task_that_exits_the_process(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def create_exiting_task() -> None:
        async def leave() -> None:
            raise SystemExit(3)

        asyncio.get_running_loop().create_task(leave())
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    async def stop_loop() -> None:
        asyncio.get_running_loop().stop()

    ended: list[str] = []
    threads = CoroutineThreads(1)
    threads.submit(lambda: (async_to_sync(create_exiting_task)(), ended.append("exit")))
    threads.submit(lambda: (async_to_sync(stop_loop)(), ended.append("stop")))
    threads.submit(ended.append, "next")
    threads.close()
    assert ended == ["exit", "stop", "next"]
    (record,) = caplog.records
    assert vars(record)["event"] == "event_loop_restarted"
    assert "SystemExit(3)" in record.message


def test_code_that_blocks_the_event_loop_is_logged(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_end = threading.Event()

    async def block_the_loop() -> None:
        may_end.wait(TIMEOUT)

    monkeypatch.setattr(coroutine_threads, "CHECK_EVERY", 0.001)
    threads = CoroutineThreads(1)
    threads.submit(async_to_sync(block_the_loop))
    wait_until(lambda: "event loop blocked" in caplog.text, what="the warning")
    may_end.set()
    threads.close()
    assert "event_loop_blocked" in {vars(record)["event"] for record in caplog.records}


def test_call_that_gets_no_thread_is_logged(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: Any, **options: Any) -> None:
        raise RuntimeError("can't start new thread")

    threads = CoroutineThreads(1)
    with monkeypatch.context() as patched:
        patched.setattr(threads._pool, "submit", refuse)
        threads.submit(refuse)
        wait_until(lambda: caplog.records, what="a log line")
    threads.close()
    (record,) = caplog.records
    assert vars(record)["event"] == "coroutine_not_started"
    assert "can't start new thread" in record.message


def test_calls_have_no_context_of_the_caller() -> None:
    variable: ContextVar[str] = ContextVar("variable", default="default")
    found: list[str] = []
    threads = CoroutineThreads(1)
    variable.set("of the caller")
    threads.submit(lambda: found.append(variable.get()))
    threads.close()
    assert found == ["default"]


def test_close_before_the_first_call_starts_no_event_loop() -> None:
    before = threading.active_count()
    threads = CoroutineThreads(1)
    threads.close()
    assert threading.active_count() == before


# --- With the thread dispatcher -------------------------------------------------------------------


@pytest.fixture(autouse=True)
def registry() -> Iterator[None]:
    with targets.isolated_registry():
        yield


def declared(function: Any) -> str:
    cron("@never")(function)
    return targets.declarations()[-1].target


def test_coroutine_functions_run_while_all_threads_are_busy() -> None:
    async def fetch() -> None: ...

    executed = []
    may_end = threading.Event()

    def run(run_id: Any, attempt: int, *, worker: str) -> None:
        if run_id == blocking.run_id:
            assert may_end.wait(TIMEOUT)
        executed.append(run_id)

    blocking, coroutine = due_run("blocking"), due_run("fetch", target=declared(fetch))
    dispatcher = ThreadDispatcher(run, 1, 1)
    dispatcher.publish([blocking, coroutine])
    wait_until(lambda: executed, what="the coroutine's run to end")
    assert executed == [coroutine.run_id]
    assert dispatcher.executing() == ["blocking"]
    may_end.set()
    dispatcher.close()


def test_no_event_loop_starts_among_greenlets() -> None:
    """For example in a web server with gevent, whose requests the event loop would break."""

    async def fetch() -> None: ...

    threads = []

    def run(run_id: Any, attempt: int, *, worker: str) -> None:
        threads.append(threading.current_thread().name)

    dispatcher = ThreadDispatcher(run, 1, 1)
    greenlet(dispatcher.publish).switch([due_run("fetch", target=declared(fetch))])
    dispatcher.close()
    assert [name.startswith("dcron-run") for name in threads] == [True]


def test_unstarted_runs_of_coroutine_functions_can_be_taken_back_and_submitted_again() -> None:
    async def fetch() -> None: ...

    started = []
    may_end = threading.Event()

    def run(run_id: Any, attempt: int, *, worker: str) -> None:
        started.append(run_id)
        assert may_end.wait(TIMEOUT)

    target = declared(fetch)
    first, second = due_run("a", target=target), due_run("b", target=target)
    dispatcher = ThreadDispatcher(run, 1, 1)
    dispatcher.publish([first, second])
    wait_until(lambda: started, what="the first run to start")
    assert dispatcher.take_unstarted() == [second.key]
    dispatcher.publish([second])
    may_end.set()
    dispatcher.close()
    assert started == [first.run_id, second.run_id]


@pytest.mark.django_db(transaction=True)
def test_runs_of_a_coroutine_function_wait_together_and_keep_no_connection() -> None:
    meeting = Meeting()

    async def attend() -> str:
        await meeting.attend()
        return "met"

    job = make_idle_job(target=declared(attend), overlap_policy="allow")
    runs = [make_run(job, "queued") for _ in range(12)]
    open_connections = []

    def execute_and_note(*args: Any, **options: Any) -> None:
        execute(*args, **options)
        open_connections.append(connections["default"].connection is not None)

    dispatcher = ThreadDispatcher(execute_and_note, 1, 12)
    dispatcher.publish(
        [due_run(job.name, run_id=run.pk, target=job.target, attempt=run.attempt) for run in runs]
    )
    wait_until(lambda: meeting.inside == 12, what="all runs to wait")
    meeting.may_end.set()
    dispatcher.close()
    outcomes = list(Attempt.objects.values_list("outcome", "result"))
    assert outcomes == [(Outcome.SUCCEEDED, '"met"')] * 12
    assert len(meeting.loops) == 1
