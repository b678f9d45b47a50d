"""Signals as bytes, and a wait that ends at a signal, a call or a deadline."""

import multiprocessing
import os
import signal
import threading
from multiprocessing.process import BaseProcess

import pytest

from django_dcron.scheduler.signal_pipe import SignalPipe
from tests.waiting import TIMEOUT


def test_wait_returns_the_signal_number_and_restores_the_handler() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with SignalPipe() as signals:
        os.kill(os.getpid(), signal.SIGTERM)
        assert signals.wait(TIMEOUT) == signal.SIGTERM
        os.kill(os.getpid(), signal.SIGINT)
        assert signals.wait(TIMEOUT) == signal.SIGINT
    assert signal.getsignal(signal.SIGTERM) is before
    assert signal.set_wakeup_fd(-1) == -1


def test_signal_delivered_to_another_thread_ends_the_wait() -> None:
    """A signal may reach any thread. Without the pipe, it wouldn't end the main thread's wait."""
    with SignalPipe() as signals:
        sender = threading.Timer(
            0.05, lambda: signal.pthread_kill(threading.get_ident(), signal.SIGTERM)
        )
        sender.start()
        assert signals.wait(TIMEOUT) == signal.SIGTERM
        sender.join()


def test_other_signals_are_left_to_the_project() -> None:
    heard = []
    before = signal.signal(signal.SIGUSR2, lambda number, frame: heard.append(number))
    try:
        with SignalPipe() as signals:
            os.kill(os.getpid(), signal.SIGUSR2)
            assert signals.wait(0.05) is None
            os.kill(os.getpid(), signal.SIGUSR2)
            os.kill(os.getpid(), signal.SIGTERM)
            assert signals.wait(TIMEOUT) == signal.SIGTERM
    finally:
        signal.signal(signal.SIGUSR2, before)
    assert heard == [signal.SIGUSR2, signal.SIGUSR2]


def test_wait_returns_none_at_its_deadline() -> None:
    with SignalPipe() as signals:
        assert signals.wait(0.01) is None


def test_another_thread_can_end_the_wait() -> None:
    with SignalPipe() as signals:
        waker = threading.Timer(0.01, signals.wake)
        waker.start()
        assert signals.wait(TIMEOUT) is None
        waker.join()


def test_wake_after_close_writes_nothing() -> None:
    with SignalPipe() as signals:
        pass
    reader, writer = os.pipe()  # reuses the numbers of the closed descriptors
    signals.wake()
    os.set_blocking(reader, False)
    with pytest.raises(BlockingIOError):  # nothing was written to it
        os.read(reader, 1)
    os.close(reader)
    os.close(writer)


def test_no_handler_is_installed_outside_the_main_thread() -> None:
    before = signal.getsignal(signal.SIGTERM)
    seen = []

    def work() -> None:
        with SignalPipe() as signals:
            seen.append(signal.getsignal(signal.SIGTERM))
            signals.wake()
            assert signals.wait(TIMEOUT) is None

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(TIMEOUT)
    assert seen == [before]


def _ended_by(number: int) -> int | None:
    """Fork a process from a thread, signal it at once, and return its exit code."""
    started: list[BaseProcess] = []

    def start() -> None:
        child = multiprocessing.get_context("fork").Process(target=signal.pause)
        child.start()
        os.kill(child.pid or 0, number)
        started.append(child)

    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
    (child,) = started
    child.join(TIMEOUT)
    child.kill()
    return child.exitcode


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_forked_child_of_a_job_has_default_signal_handling(number: signal.Signals) -> None:
    """With --embedded, jobs may use multiprocessing, which stops its processes with SIGTERM."""
    before = signal.signal(number, signal.SIG_DFL)
    try:
        with SignalPipe() as signals:
            assert {_ended_by(number) for _ in range(5)} == {-number}
            assert signals.wait(0.05) is None, "the node isn't asked to stop"
            os.kill(os.getpid(), number)
            assert signals.wait(TIMEOUT) == number, "and it still receives signals"
        assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == set()
    finally:
        signal.signal(number, before)
