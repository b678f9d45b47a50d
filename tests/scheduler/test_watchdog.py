"""The watchdog: which threads hang, which only rest, and what it tolerates after a suspension."""

import logging
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta

import pytest
from django.db import connection
from pytest_django import Settings

from django_dcron.scheduler.watchdog import CHECK_EVERY, Watchdog
from tests.logs import logged
from tests.scheduler.stand_ins import StillClock
from tests.waiting import TIMEOUT

LIMIT = 10.0


@pytest.fixture(autouse=True)
def limit(settings: Settings, caplog: pytest.LogCaptureFixture) -> None:
    settings.DCRON_HANG_AFTER = timedelta(seconds=LIMIT)
    caplog.set_level(logging.INFO, "django_dcron.scheduler")


@pytest.fixture
def clock() -> StillClock:
    return StillClock()


@pytest.fixture
def watchdog(clock: StillClock) -> Watchdog:
    return Watchdog("a", clock.monotonic)


def watch(watchdog: Watchdog, clock: StillClock, seconds: float) -> None:
    """Let time pass and run the watchdog at its usual interval."""
    for _ in range(round(seconds / CHECK_EVERY)):
        clock.advance(CHECK_EVERY)
        watchdog.check()


def test_thread_without_activity_hangs_and_is_logged_once(
    watchdog: Watchdog, clock: StillClock, caplog: pytest.LogCaptureFixture
) -> None:
    watchdog.record_activity("tick")
    watchdog.record_activity("agenda", rest=None)
    watch(watchdog, clock, LIMIT)
    assert watchdog.hanging == {}
    watch(watchdog, clock, 6.0)
    assert watchdog.hanging == {"tick": LIMIT + 6.0}
    assert [(record.levelno, record.__dict__["event"]) for record in caplog.records] == [
        (logging.ERROR, "thread_hangs")
    ]
    watchdog.record_activity("tick")
    watch(watchdog, clock, 2.0)
    assert watchdog.hanging == {}
    watch(watchdog, clock, LIMIT)
    assert [record.__dict__["event"] for record in caplog.records] == [
        "thread_hangs",
        "thread_recovered",
        "thread_hangs",
    ]
    assert logged(caplog, "thread_recovered", node="a", hanging="tick")


def test_thread_that_pauses_is_not_reported_as_hanging(
    watchdog: Watchdog, clock: StillClock
) -> None:
    watchdog.record_activity("tick", rest=100.0)
    watchdog.record_activity("agenda", rest=None)
    watchdog.record_activity("heartbeat", rest=-5.0)
    watch(watchdog, clock, LIMIT + 2.0)
    assert watchdog.hanging.keys() == {"heartbeat"}
    watch(watchdog, clock, 88.0 + LIMIT)
    assert watchdog.hanging.keys() == {"heartbeat"}
    watch(watchdog, clock, 2.0)
    assert watchdog.hanging.keys() == {"heartbeat", "tick"}
    watch(watchdog, clock, 10_000.0)
    assert "agenda" not in watchdog.hanging


def test_ended_thread_does_not_hang(watchdog: Watchdog, clock: StillClock) -> None:
    watchdog.record_activity("tick")
    watchdog.ended("tick")
    watchdog.ended("never began")
    watch(watchdog, clock, 100.0)
    assert watchdog.hanging == {}


def test_no_thread_hangs_after_the_process_was_suspended(
    watchdog: Watchdog, clock: StillClock, caplog: pytest.LogCaptureFixture
) -> None:
    watchdog.record_activity("tick")
    watchdog.record_event("ticked")
    for _ in range(2):
        clock.advance(3600.0)
        watchdog.check()
    assert watchdog.hanging == {}
    assert watchdog.age("ticked") == 4 * CHECK_EVERY
    assert not caplog.records
    watch(watchdog, clock, 4.0)
    assert watchdog.hanging.keys() == {"tick"}, "later silence counts"


def test_age_is_the_time_since_the_last_event(watchdog: Watchdog, clock: StillClock) -> None:
    watchdog.record_event("ticked")
    assert watchdog.age("ticked") == 0.0
    watch(watchdog, clock, 100.0)
    assert watchdog.age("ticked") == 100.0
    clock.advance(1.5)
    watchdog.record_event("ticked")
    clock.advance(0.5)
    watchdog.check()
    assert watchdog.age("ticked") == 0.5
    assert watchdog.hanging == {}, "an event isn't a thread"


@pytest.fixture
def blocked_threads(watchdog: Watchdog) -> Iterator[None]:
    """Two threads that block until the test ends. One of them has reported to the watchdog."""
    arrived, may_end = threading.Semaphore(0), threading.Event()

    def waits_forever() -> None:
        watchdog.record_activity("tick")
        arrived.release()
        may_end.wait(TIMEOUT)

    def blocks() -> None:
        arrived.release()
        may_end.wait(TIMEOUT)

    threads = [
        threading.Thread(target=blocks, name="a-bystander"),
        threading.Thread(target=waits_forever, name="dcron-tick"),
    ]
    for thread in threads:
        thread.start()
        assert arrived.acquire(timeout=TIMEOUT)
    yield
    may_end.set()
    for thread in threads:
        thread.join(TIMEOUT)


def test_stacks_of_all_threads_are_logged_hanging_thread_first(
    watchdog: Watchdog, clock: StillClock, blocked_threads: None, caplog: pytest.LogCaptureFixture
) -> None:
    watch(watchdog, clock, LIMIT + 2.0)
    (message,) = caplog.messages
    assert logged(caplog, "thread_hangs", "=12s", node="a", hanging="tick")
    assert message.split("\n")[1] == "Thread dcron-tick:"
    assert (
        message.index("in waits_forever")
        < message.index("Thread a-bystander:")
        < message.index("in blocks")
    )
    assert "in _judge" not in message, "the watchdog's own stack is omitted"


# --- a database that stalls ---------------------------------------------------------------------


@pytest.fixture
def answer_query(watchdog: Watchdog) -> Iterator[Callable[[], None]]:
    """A thread within a query. A call ends the query; then the thread reports and waits."""
    arrived, answered, may_end = threading.Semaphore(0), threading.Event(), threading.Event()

    def stall(execute: Callable[..., object], *query: object) -> object:
        watchdog.record_activity("tick")
        arrived.release()
        answered.wait(TIMEOUT)
        return execute(*query)

    def query_database() -> None:
        connection.ensure_connection()
        with connection.execute_wrapper(stall), connection.cursor() as cursor:
            cursor.execute("SELECT 1")
        watchdog.record_activity("tick")
        arrived.release()
        may_end.wait(TIMEOUT)
        connection.close()

    def answer() -> None:
        answered.set()
        assert arrived.acquire(timeout=TIMEOUT)

    thread = threading.Thread(target=query_database)
    thread.start()
    assert arrived.acquire(timeout=TIMEOUT)
    yield answer
    answered.set(), may_end.set()
    thread.join(TIMEOUT)


stalling = pytest.mark.django_db(transaction=True)
GRACE = 100.0


@pytest.fixture
def database_grace(settings: Settings) -> None:
    settings.DCRON_DATABASE_GRACE = timedelta(seconds=GRACE)


@stalling
def test_thread_waiting_for_a_stalled_database_hangs_after_the_grace(
    watchdog: Watchdog,
    clock: StillClock,
    database_grace: None,
    answer_query: Callable[[], None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    watchdog.record_event("heartbeat_written")
    watch(watchdog, clock, GRACE)
    assert (watchdog.hanging, watchdog.waiting) == ({}, {"tick": GRACE})
    watch(watchdog, clock, 2.0)
    assert (watchdog.hanging, watchdog.waiting) == ({"tick": GRACE + 2.0}, {})
    answer_query()
    watchdog.check()
    assert (watchdog.hanging, watchdog.waiting) == ({}, {})
    assert [record.__dict__["event"] for record in caplog.records] == [
        "thread_blocked",
        "thread_hangs",
        "thread_recovered",
    ]
    assert logged(caplog, "thread_blocked", "=12s", node="a", hanging="tick")
    watch(watchdog, clock, LIMIT + 2.0)
    assert watchdog.hanging.keys() == {"tick"}, "it probably waits for the database"


@stalling
def test_thread_hangs_in_a_query_if_the_database_answers_others(
    watchdog: Watchdog, clock: StillClock, database_grace: None, answer_query: Callable[[], None]
) -> None:
    """Its connection is cut off, or it waits for a lock."""
    watch(watchdog, clock, 4 * LIMIT)
    assert watchdog.waiting.keys() == {"tick"}
    watchdog.record_event("heartbeat_written")
    watch(watchdog, clock, 2.0)
    assert (watchdog.hanging.keys(), watchdog.waiting) == ({"tick"}, {})
    watch(watchdog, clock, 4 * LIMIT)
    assert (watchdog.hanging.keys(), watchdog.waiting) == ({"tick"}, {}), (
        "until it reports activity, whatever other threads do"
    )
