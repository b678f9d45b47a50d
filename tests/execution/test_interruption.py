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

TIMEOUT = 20.0


class Stop(BaseException):
    """The exception to raise."""


class SecondStop(BaseException):
    """A second exception, which must not be raised."""


def spin_for(seconds: float) -> None:
    """Execute Python code for this time. It ends by itself, so that a failing test doesn't hang."""
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
def handler_before() -> Iterator[None]:
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
def test_code_at_work_is_stopped(where: Callable[..., Any]) -> None:
    def work(at_work: threading.Event) -> None:
        at_work.set()
        spin_for(TIMEOUT)

    began = time.monotonic()
    raised, answers = where(lambda: interrupted_by_another_thread(Interruption(), work, Stop))
    assert (raised, answers) == ([Stop], [True])
    assert time.monotonic() - began < TIMEOUT


@everywhere
def test_only_the_first_of_two_is_raised(where: Callable[..., Any]) -> None:
    def work(at_work: threading.Event) -> None:
        at_work.set()
        spin_for(TIMEOUT)

    raised, answers = where(
        lambda: interrupted_by_another_thread(Interruption(), work, Stop, SecondStop)
    )
    assert (raised, answers) == ([Stop], [True, False])


def test_a_blocking_call_in_the_main_thread_is_ended() -> None:
    def work(at_work: threading.Event) -> None:
        at_work.set()
        threading.Event().wait(TIMEOUT)

    began = time.monotonic()
    raised, _ = interrupted_by_another_thread(Interruption(), work, Stop)
    assert raised == [Stop]
    assert time.monotonic() - began < TIMEOUT


@everywhere
def test_what_is_not_armed_is_not_interrupted(where: Callable[..., Any]) -> None:
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


def test_what_reaches_a_thread_that_has_just_finished_is_taken_back() -> None:
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
        return "goes on"

    assert in_thread(finish_as_it_comes) == "goes on"


def test_code_of_the_next_run_in_the_thread_is_left_alone() -> None:
    def two_runs() -> list[type[BaseException]]:
        first, second = Interruption(), Interruption()
        first.arm()
        first.disarm()
        return interrupted_by_another_thread(
            second, lambda at_work: (at_work.set(), spin_for(0.1))[1], *()
        )[0] or ([Stop] if first.interrupt(Stop) else [])

    assert in_main(two_runs) == in_thread(two_runs) == []


def test_a_signal_that_comes_after_the_run_ends_nothing() -> None:
    """The signal is sent just before the code returns. By default, it would end the process."""
    signal.signal(SIGNAL, signal.SIG_DFL)
    interruption = Interruption()
    interruption.arm()
    interruption.disarm()
    signal.pthread_kill(threading.get_ident(), SIGNAL)
    spin_for(0.05)


def test_a_signal_of_another_sender_does_not_stop_the_run() -> None:
    interruption = Interruption()
    interruption.arm()
    signal.pthread_kill(threading.get_ident(), SIGNAL)
    spin_for(0.05)
    interruption.disarm()


def test_the_projects_own_use_of_the_signal_goes_on() -> None:
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
def test_interrupting_what_is_about_to_finish_is_all_or_nothing(
    where: Callable[..., Any], round_: int
) -> None:
    """At the end of a run, the exception is raised inside the run or not at all."""

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


def test_other_threads_are_not_slowed_down_for_ever() -> None:
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
