"""Code that blocks an event loop is reported once, with its stack."""

import asyncio
import threading
from collections.abc import Iterator

import pytest

from django_dcron.dispatch.event_loop_monitor import MAX_UNANSWERED, EventLoopMonitor
from tests.waiting import TIMEOUT


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


@pytest.fixture
def thread(loop: asyncio.AbstractEventLoop) -> Iterator[threading.Thread]:
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    yield thread
    loop.call_soon_threadsafe(loop.stop)
    thread.join()


def answer(loop: asyncio.AbstractEventLoop) -> None:
    """Wait until the event loop has run everything that it was asked to run."""
    answered = threading.Event()
    loop.call_soon_threadsafe(answered.set)
    assert answered.wait(TIMEOUT)


def test_blocking_code_is_reported_once_and_so_is_its_end(
    loop: asyncio.AbstractEventLoop, thread: threading.Thread, caplog: pytest.LogCaptureFixture
) -> None:
    monitor = EventLoopMonitor(loop, thread)
    caplog.set_level("INFO", logger="django_dcron.runs")
    may_end, blocked = threading.Event(), threading.Event()

    def block_the_loop() -> None:
        blocked.set()
        may_end.wait(TIMEOUT)

    for _ in range(MAX_UNANSWERED):
        monitor.check()
        answer(loop)
    assert not caplog.records

    loop.call_soon_threadsafe(block_the_loop)
    assert blocked.wait(TIMEOUT)
    for _ in range(MAX_UNANSWERED):
        monitor.check()  # the first one only asks
    assert not caplog.records
    monitor.check()
    monitor.check()
    (record,) = caplog.records
    assert (record.levelname, vars(record)["event"]) == ("WARNING", "event_loop_blocked")
    assert "block_the_loop" in record.getMessage()

    may_end.set()
    answer(loop)
    monitor.check()
    answer(loop)
    monitor.check()
    assert [vars(each)["event"] for each in caplog.records[1:]] == ["event_loop_responds"]
