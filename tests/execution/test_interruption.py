"""Interrupting a job's code from another thread: once, and only while the code is at work."""

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest

from django_dcron.execution.interruption import SIGNAL, Interruption
from django_dcron.utils.threads import DcronThread
from tests.waiting import wait_until

TIMEOUT = 20.0


class Stop(BaseException):
    """The exception to raise."""


class SecondStop(BaseException):
    """A second exception, which must not be raised."""


def spin_for(seconds: float) -> None:
    """Execute Python code for this time. The limit keeps a failing test from hanging."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass


def in_main(work: Callable[[], Any]) -> Any:
    return work()


def in_thread(work: Callable[[], Any]) -> Any:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(work).result(2 * TIMEOUT)


everywhere = pytest.mark.parametrize("where", [in_main, in_thread])


@pytest.fixture(autouse=True)
def restored_handler() -> Iterator[None]:
    before = signal.getsignal(SIGNAL)
    yield
    signal.signal(SIGNAL, before)


def interrupted_by_another_thread(
    interruption: Interruption,
    work: Callable[[threading.Event], None],
    *exceptions: type[BaseException],
) -> tuple[list[type[BaseException]], list[bool]]:
    """Interrupt ``work`` from another thread once it sets its event.

    Return the exceptions that were raised and the results of ``interrupt``.
    """
    at_work = threading.Event()
    answers: list[bool] = []

    def interrupt() -> None:
        at_work.wait(TIMEOUT)
        answers.extend(interruption.interrupt(exception) for exception in exceptions)

    other = threading.Thread(target=interrupt)
    other.start()
    raised: list[type[BaseException]] = []
    try:
        interruption.arm()
        work(at_work)
    except BaseException as exception:
        raised.append(type(exception))
        spin_for(0.05)  # a second exception would be raised here
    finally:
        interruption.disarm()
        other.join()
    return raised, answers


@everywhere
def test_running_code_is_interrupted(where: Callable[..., Any]) -> None:
    def work(at_work: threading.Event) -> None:
        at_work.set()
        spin_for(TIMEOUT)

    began = time.monotonic()
    raised, answers = where(lambda: interrupted_by_another_thread(Interruption(), work, Stop))
    assert (raised, answers) == ([Stop], [True])
    assert time.monotonic() - began < TIMEOUT


@everywhere
def test_only_the_first_of_two_exceptions_is_raised(where: Callable[..., Any]) -> None:
    def work(at_work: threading.Event) -> None:
        at_work.set()
        spin_for(TIMEOUT)

    raised, answers = where(
        lambda: interrupted_by_another_thread(Interruption(), work, Stop, SecondStop)
    )
    assert (raised, answers) == ([Stop], [True, False])


@everywhere
def test_code_that_continues_can_be_interrupted_again(where: Callable[..., Any]) -> None:
    answers = []

    def work() -> None:
        interruption = Interruption()

        def interrupt(exception: type[BaseException], again: bool) -> None:
            answers.append(interruption.interrupt(exception, again=again))

        def work_until_interrupted(*how: Any) -> None:
            threading.Thread(target=interrupt, args=how).start()
            spin_for(TIMEOUT)

        interruption.arm()
        with pytest.raises(Stop):
            work_until_interrupted(Stop, False)
        with pytest.raises(SecondStop):
            work_until_interrupted(SecondStop, True)
        interruption.disarm()

    where(work)
    wait_until(lambda: answers == [True, True])


def test_main_thread_is_interrupted_even_if_no_thread_can_be_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    def work(at_work: threading.Event) -> None:
        at_work.set()
        spin_for(TIMEOUT)

    monkeypatch.setattr(DcronThread, "start", refuse)
    raised, answers = interrupted_by_another_thread(Interruption(), work, Stop)
    assert (raised, answers) == ([Stop], [True])


def test_blocking_call_in_the_main_thread_is_interrupted() -> None:
    def work(at_work: threading.Event) -> None:
        at_work.set()
        threading.Event().wait(TIMEOUT)

    began = time.monotonic()
    raised, _ = interrupted_by_another_thread(Interruption(), work, Stop)
    assert raised == [Stop]
    assert time.monotonic() - began < TIMEOUT


@everywhere
def test_disarmed_code_is_not_interrupted(where: Callable[..., Any]) -> None:
    def both_ends() -> tuple[bool, bool]:
        interruption = Interruption()
        before = interruption.interrupt(Stop)
        interruption.arm()
        interruption.disarm()
        interruption.disarm()
        after = interruption.interrupt(Stop)
        spin_for(0.05)
        return before, after

    assert where(both_ends) == (False, False)


def test_pending_exception_is_withdrawn_when_the_code_ends() -> None:
    def finish_as_it_comes() -> str:
        interruption = Interruption()
        interruption.arm()
        # The thread interrupts itself: the exception is raised at its next step, which is within
        # ``disarm``.
        try:
            interruption.interrupt(Stop)
            interruption.disarm()
        except Stop:
            interruption.disarm()
        spin_for(0.05)
        return "continued"

    assert in_thread(finish_as_it_comes) == "continued"


def test_next_run_in_the_thread_is_not_interrupted() -> None:
    def two_runs() -> list[bool]:
        first, second = Interruption(), Interruption()
        first.arm()
        first.disarm()
        answers: list[bool] = []
        late = threading.Thread(target=lambda: answers.append(first.interrupt(Stop)))
        second.arm()
        late.start()
        late.join(TIMEOUT)
        spin_for(0.05)  # an exception for the second run would be raised here
        second.disarm()
        return answers

    assert in_main(two_runs) == in_thread(two_runs) == [False]


def test_signal_after_the_run_does_not_end_the_process() -> None:
    """The signal is sent just before the code returns. By default, it would end the process."""
    signal.signal(SIGNAL, signal.SIG_DFL)
    interruption = Interruption()
    interruption.arm()
    interruption.disarm()
    signal.pthread_kill(threading.get_ident(), SIGNAL)
    spin_for(0.05)


def test_signal_of_another_sender_does_not_stop_the_run() -> None:
    interruption = Interruption()
    interruption.arm()
    signal.pthread_kill(threading.get_ident(), SIGNAL)
    spin_for(0.05)
    interruption.disarm()


def test_signal_handler_of_the_project_still_works() -> None:
    seen: list[int] = []
    signal.signal(SIGNAL, lambda number, frame: seen.append(number))
    interruption = Interruption()
    interruption.arm()
    signal.pthread_kill(threading.get_ident(), SIGNAL)
    spin_for(0.05)
    interruption.disarm()
    signal.pthread_kill(threading.get_ident(), SIGNAL)
    spin_for(0.05)
    assert seen == [SIGNAL, SIGNAL]


@pytest.mark.parametrize("round_", range(20))
@everywhere
def test_exception_is_raised_inside_the_run_or_not_at_all(
    where: Callable[..., Any], round_: int
) -> None:
    """The rounds differ in how soon the exception is requested: before or after the run's end."""

    def short() -> str:
        interruption = Interruption()
        done = threading.Event()

        def interrupt_soon() -> None:
            spin_for(round_ * 0.0001)
            interruption.interrupt(Stop)
            done.set()

        other = threading.Thread(target=interrupt_soon)
        other.start()
        try:
            try:
                interruption.arm()
                spin_for(0.001)
            finally:
                interruption.disarm()
        except Stop:
            interruption.disarm()
        while not done.is_set():
            pass
        spin_for(0.01)
        other.join()
        return "whole"

    assert where(short) == "whole"


def test_other_threads_keep_their_speed_after_an_interruption() -> None:
    """On CPython 3.11, all threads keep checking for an exception that was withdrawn with NULL.

    A traced thread then hangs.
    """

    def run_of(interrupted: bool) -> None:
        interruption = Interruption()
        interruption.arm()
        with suppress(Stop):
            if interrupted:
                interruption.interrupt(Stop)
        interruption.disarm()

    for interrupted in (False, True):
        in_thread(lambda interrupted=interrupted: run_of(interrupted))  # type: ignore[misc]
        traced = threading.Thread(
            target=lambda: (sys.settrace(lambda *_: None), spin_for(0.01)), daemon=True
        )
        traced.start()
        traced.join(TIMEOUT / 2)
        assert not traced.is_alive()
