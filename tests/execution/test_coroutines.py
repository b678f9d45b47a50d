"""A job's coroutine: interrupted while it waits, and ended before the attempt ends."""

import asyncio
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Coroutine
from datetime import timedelta
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.contrib.auth.models import User
from django.db import connection
from greenlet import greenlet

from django_dcron import current_run
from django_dcron.exceptions import PermanentFailure, RunCancelled, RunTimedOut
from django_dcron.execution import coroutines
from django_dcron.execution.coroutines import run_coroutine
from django_dcron.execution.executor import execute
from django_dcron.execution.interruption import Interruption
from django_dcron.models import Attempt
from django_dcron.policies.lifecycle import Outcome, State
from tests.execution.conftest import MakeTarget, RunFunction, attempt_of, state_of
from tests.execution.test_interruption import everywhere
from tests.execution.test_time_limit import in_main as work_in_main
from tests.execution.test_time_limit import in_thread as work_in_thread
from tests.execution.test_time_limit import job_with_timeout
from tests.factories import make_run
from tests.waiting import TIMEOUT

Where = Callable[[Callable[[], Any]], Any]


class Stop(Exception):
    """The exception of the interruption."""


def armed() -> Interruption:
    interruption = Interruption()
    interruption.arm()
    return interruption


def run(coroutine: Coroutine[Any, Any, Any]) -> Any:
    return run_coroutine(coroutine, armed())


async def wait_for_ever() -> None:
    await asyncio.Event().wait()


# --- Interruption ---------------------------------------------------------------------------------


@everywhere
def test_interruption_ends_the_coroutine_while_it_waits(where: Where) -> None:
    order: list[str] = []

    def work() -> None:
        interruption = armed()

        async def clean_up_at_the_end() -> None:
            threading.Thread(target=interruption.interrupt, args=[Stop]).start()
            try:
                await wait_for_ever()
            finally:
                await asyncio.sleep(0)
                order.append("cleaned up")

        try:
            with pytest.raises(Stop) as raised:
                run_coroutine(clean_up_at_the_end(), interruption)
        finally:
            interruption.disarm()
        order.append("ended")
        assert isinstance(raised.value.__cause__, asyncio.CancelledError)

    where(work)
    assert order == ["cleaned up", "ended"]


@everywhere
def test_interruption_before_the_coroutine_prevents_its_start(where: Where) -> None:
    started = []

    async def start() -> None:
        started.append(True)

    def interrupt_and_run(interruption: Interruption) -> None:
        threading.Thread(target=interruption.interrupt, args=[Stop]).start()
        while not interruption.used:
            pass
        run_coroutine(start(), interruption)

    def work() -> None:
        interruption = armed()
        try:
            with pytest.raises(Stop):  # either from the interruption or from the coroutine
                interrupt_and_run(interruption)
        finally:
            interruption.disarm()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # ``start()`` may never be awaited
        where(work)
    assert not started


def test_call_that_was_cancelled_before_its_start_does_not_start_the_coroutine() -> None:
    started = []

    async def start() -> None:
        started.append(True)

    interruption = armed()
    with interruption._lock:  # as ``interrupt`` does before it has reached this thread
        interruption._exception, interruption._used = Stop, True
    with pytest.raises(Stop):
        run_coroutine(start(), interruption)
    interruption.disarm()
    assert not started


def test_coroutine_that_catches_the_cancellation_may_return_a_result() -> None:
    interruption = armed()

    async def stubborn() -> str:
        threading.Thread(target=interruption.interrupt, args=[Stop]).start()
        try:
            await wait_for_ever()
        except asyncio.CancelledError:
            return "as far as it got"
        return "never"

    assert run_coroutine(stubborn(), interruption) == "as far as it got"
    interruption.disarm()


def test_coroutine_that_cancels_itself_raises_its_own_exception() -> None:
    async def give_up() -> None:
        raise asyncio.CancelledError("given up")

    with pytest.raises(asyncio.CancelledError, match="given up"):
        run(give_up())


def test_interruption_after_the_coroutine_raises_again_in_the_thread() -> None:
    interruption = armed()

    async def ok() -> str:
        return "ok"

    assert run_coroutine(ok(), interruption) == "ok"
    threading.Timer(0.1, interruption.interrupt, [Stop]).start()
    with pytest.raises(Stop):
        threading.Event().wait(TIMEOUT)
    interruption.disarm()


# --- Tasks and exceptions -------------------------------------------------------------------------


def test_tasks_that_the_coroutine_leaves_behind_are_cancelled_before_it_ends() -> None:
    ended = []

    async def note_end(name: str, inner: Coroutine[Any, Any, Any] | None = None) -> None:
        child = asyncio.create_task(inner) if inner else None
        try:
            await wait_for_ever()
        finally:
            ended.append(name)
        assert child

    async def leave_behind() -> str:
        child = asyncio.create_task(note_end("child", note_end("grandchild")))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return "done" if not child.done() else "too early"

    assert run(leave_behind()) == "done"
    assert sorted(ended) == ["child", "grandchild"]


def test_tasks_that_are_created_during_the_cleanup_are_cancelled_too() -> None:
    ended = []

    async def late() -> None:
        try:
            await wait_for_ever()
        finally:
            ended.append("late")

    async def create_at_the_end(tasks: list[Any]) -> None:
        try:
            await wait_for_ever()
        finally:
            tasks.append(asyncio.create_task(late()))
            await asyncio.sleep(0)

    async def leave_behind() -> None:
        tasks: list[Any] = []
        tasks.append(asyncio.create_task(create_at_the_end(tasks)))
        await asyncio.sleep(0)

    run(leave_behind())
    assert ended == ["late"]


def test_interruption_after_the_coroutine_s_end_keeps_its_result() -> None:
    """A task that it left behind is still being cleaned up."""
    interruption = armed()

    async def clean_up_slowly() -> None:
        try:
            await wait_for_ever()
        finally:
            threading.Thread(target=interruption.interrupt, args=[Stop]).start()
            await wait_for_ever()

    async def leave_behind() -> str:
        task = asyncio.create_task(clean_up_slowly())
        await asyncio.sleep(0)
        return "result" if not task.done() else "too early"

    assert run_coroutine(leave_behind(), interruption) == "result"
    interruption.disarm()


def test_job_that_replaces_the_task_factory_affects_no_later_run() -> None:
    async def replace() -> None:
        asyncio.get_running_loop().set_task_factory(None)

    async def find_factory() -> Any:
        return asyncio.get_running_loop().get_task_factory()

    loop_of_two_runs = asyncio.new_event_loop()
    for coroutine in (replace(), find_factory()):
        call = coroutines._Call(coroutine, armed())
        loop_of_two_runs.run_until_complete(call.run())
    loop_of_two_runs.close()
    assert call.result is coroutines._create_task


def test_exception_of_other_code_in_the_calling_thread_ends_the_coroutine_first() -> None:
    """For example, a signal handler of the project."""
    order = []

    async def clean_up() -> None:
        try:
            while True:  # a signal that arrives right before a wait doesn't end it
                signal.pthread_kill(main, signal.SIGUSR1)
                await asyncio.sleep(0.01)
        finally:
            order.append("cleaned up")

    def raise_once(signum: int, frame: Any) -> None:
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        raise Stop

    main = threading.get_ident()
    before = signal.signal(signal.SIGUSR1, raise_once)
    try:
        with pytest.raises(Stop):
            run(clean_up())
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert order == ["cleaned up"]


@pytest.mark.parametrize("exception", [SystemExit(3), KeyboardInterrupt(), ZeroDivisionError("x")])
def test_every_exception_is_raised_in_the_calling_thread(exception: BaseException) -> None:
    async def fail() -> None:
        raise exception

    with pytest.raises(type(exception)) as raised:
        run(fail())
    assert raised.value is exception


def test_synchronous_parts_run_in_the_calling_thread() -> None:
    async def thread_of_synchronous_code() -> int:
        return await sync_to_async(threading.get_ident)()

    assert run(thread_of_synchronous_code()) == threading.get_ident()


# --- A whole run ----------------------------------------------------------------------------------


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("where", [work_in_main, work_in_thread])
def test_coroutine_has_ended_when_its_timeout_is_recorded(
    make_target: MakeTarget, where: Callable[..., None]
) -> None:
    outcomes_at_the_end = []

    async def fetch() -> None:
        try:
            await wait_for_ever()
        finally:
            attempt = await Attempt.objects.aget()
            outcomes_at_the_end.append(attempt.outcome)

    run = make_run(job_with_timeout(make_target(fetch), max_attempts=2))
    where(lambda: execute(run.pk, 1, worker="w", timeout_exception=RunTimedOut))
    attempt = attempt_of(run)
    assert attempt.outcome == Outcome.TIMED_OUT
    assert attempt.exception_class.endswith("RunTimedOut")
    assert "in fetch" in attempt.traceback
    assert __file__ in attempt.raised_in, "asyncio is the caller or the callee of the job's code"
    assert outcomes_at_the_end == [""], "the code had ended before the outcome was recorded"
    assert state_of(run) == State.PENDING


@pytest.mark.django_db(transaction=True)
def test_cancelled_coroutine_counts_as_cancelled(run_function: RunFunction) -> None:
    async def cancel_itself() -> None:
        threading.Thread(target=current_run().cancel).start()
        await wait_for_ever()

    run, attempt = run_function(cancel_itself)
    assert (run.state, attempt.outcome) == (State.CANCELLED, Outcome.CANCELLED)
    assert attempt.exception_class.endswith(RunCancelled.__name__)


@pytest.mark.django_db(transaction=True)
def test_coroutine_does_not_start_in_a_greenlet_and_is_not_retried(
    run_function: RunFunction,
) -> None:
    """As in Celery's gevent and eventlet pools, where it would break the runs beside it."""
    started = []

    async def fetch() -> None:
        started.append(True)

    run, attempt = greenlet(run_function).switch(fetch, max_attempts=3)
    assert (run.state, attempt.outcome) == (State.FAILED, Outcome.FAILED)
    assert attempt.exception_class.endswith(PermanentFailure.__name__)
    assert "prefork" in attempt.message
    assert not started


@pytest.mark.django_db(transaction=True)
def test_coroutine_has_the_run_its_log_and_the_orm(run_function: RunFunction) -> None:
    async def count_users() -> list[Any]:
        sys.stdout.write("counting\n")
        current_run().progress(1, 2)
        await User.objects.acreate(username="ada")
        return [current_run().attempt, await User.objects.acount()]

    _, attempt = run_function(count_users, timeout=timedelta(minutes=5))
    assert (attempt.outcome, attempt.result) == (Outcome.SUCCEEDED, "[1, 1]")
    assert (attempt.log, attempt.progress_done) == ("counting\n", 1)


@pytest.mark.django_db(transaction=True)
def test_coroutine_in_the_project_s_thread_keeps_its_connection(run_function: RunFunction) -> None:
    connection.ensure_connection()
    before = connection.connection

    async def wait() -> None:
        await asyncio.sleep(0)

    run_function(wait)
    assert connection.connection is before
