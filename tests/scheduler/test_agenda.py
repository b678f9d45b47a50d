"""The agenda, with a clock that only the test advances and a dispatcher in memory."""

import logging
import random
import threading
from collections.abc import Iterator, Sequence
from datetime import timedelta
from queue import Queue
from typing import cast
from unittest import mock
from uuid import uuid4

import pytest

from django_dcron.dispatch import DueRun
from django_dcron.dispatch.base import Undeliverable
from django_dcron.scheduler import agenda as module
from django_dcron.scheduler import backlog
from django_dcron.scheduler.agenda import Agenda
from tests.logs import events, logged
from tests.scheduler.stand_ins import (
    START,
    MemoryDispatcher,
    StillClock,
    SystemClock,
    due_run,
)
from tests.waiting import TIMEOUT, wait_until


@pytest.fixture
def clock() -> StillClock:
    return StillClock()


@pytest.fixture
def dispatcher() -> MemoryDispatcher:
    return MemoryDispatcher()


@pytest.fixture
def agenda(dispatcher: MemoryDispatcher, clock: StillClock) -> Agenda:
    return Agenda(dispatcher, clock)


@pytest.fixture
def running(dispatcher: MemoryDispatcher) -> Iterator[Agenda]:
    """An agenda whose thread runs by the real clock."""
    agenda = Agenda(dispatcher, SystemClock())
    thread = threading.Thread(target=agenda.run, daemon=True)
    thread.start()
    yield agenda
    agenda.stop()
    thread.join(TIMEOUT)
    assert not thread.is_alive()


def test_runs_are_dispatched_in_order_of_due_time(
    agenda: Agenda, dispatcher: MemoryDispatcher
) -> None:
    seconds = [n / 10 - 5 for n in range(50)]
    agenda.add(due_run(f"{at}", at) for at in random.Random(1).sample(seconds, 50))
    agenda.publish_due()
    assert dispatcher.names == [f"{at}" for at in seconds]


def test_runs_due_at_the_same_time_keep_their_order(
    agenda: Agenda, dispatcher: MemoryDispatcher
) -> None:
    agenda.add(due_run(name) for name in "abc")
    agenda.publish_due()
    assert dispatcher.names == ["a", "b", "c"]


def test_no_run_is_dispatched_early(
    agenda: Agenda, dispatcher: MemoryDispatcher, clock: StillClock
) -> None:
    agenda.add([due_run("now"), due_run("next", 0.001), due_run("later", 5)])
    agenda.publish_due()
    assert dispatcher.names == ["now"]
    clock.advance(0.001)
    agenda.publish_due()
    assert dispatcher.names == ["now", "next"]
    clock.advance(4.998)
    agenda.publish_due()
    assert dispatcher.names == ["now", "next"]
    assert len(agenda) == 1


def test_attempt_is_listed_once_until_marked(agenda: Agenda, dispatcher: MemoryDispatcher) -> None:
    run = due_run("a")
    agenda.add([run, run])
    agenda.add([run])
    agenda.publish_due()
    agenda.add([run])
    agenda.publish_due()
    assert dispatcher.names == ["a"]
    assert agenda.take_dispatched() == [run]
    agenda.add([run])  # taken, but not marked yet
    assert len(agenda) == 0
    agenda.forget([run])
    agenda.add([run])  # found pending again: a redelivery
    agenda.publish_due()
    assert dispatcher.names == ["a", "a"]


def test_next_attempt_is_a_separate_entry(agenda: Agenda, dispatcher: MemoryDispatcher) -> None:
    run_id = uuid4()
    agenda.add([due_run("first", run_id=run_id), due_run("second", attempt=2, run_id=run_id)])
    agenda.publish_due()
    assert dispatcher.names == ["first", "second"]


def test_marked_runs_are_forgotten(agenda: Agenda) -> None:
    """Otherwise the node's memory would grow without bound."""
    for _ in range(5):
        agenda.add(due_run("a") for _ in range(100))
        agenda.publish_due()
        agenda.forget(agenda.take_dispatched())
    assert not agenda._known
    assert not agenda._heap
    assert not agenda._dispatched


def test_unmarked_runs_are_retried_first(agenda: Agenda) -> None:
    first, second = due_run("first"), due_run("second")
    agenda.add([first])
    agenda.publish_due()
    taken = agenda.take_dispatched()
    agenda.add([second])
    agenda.publish_due()
    agenda.restore_dispatched(taken)
    assert agenda.take_dispatched() == [first, second]
    assert agenda.take_dispatched() == []


def test_undeliverable_run_is_refused_when_added(
    agenda: Agenda, dispatcher: MemoryDispatcher
) -> None:
    dispatcher.undeliverable, dispatcher.broken = {"lost"}, {"broken"}
    lost, broken = due_run("lost"), due_run("broken")
    refused = agenda.add([due_run("a"), lost, broken, due_run("b")])
    assert refused == [
        (lost, "no queue for lost"),
        (broken, "ZeroDivisionError: a router's own mistake"),
    ]
    agenda.publish_due()
    assert dispatcher.names == ["a", "b"]
    dispatcher.undeliverable = set()
    assert agenda.add([lost]) == []  # the agenda never recorded it as known


class UnreadableError(Exception):
    def __str__(self) -> str:
        raise KeyError("detail")


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (Undeliverable("no queue \ud800"), "no queue \ufffd"),
        (ValueError("a\0b"), "ValueError: a\ufffdb"),
        (UnreadableError(), "UnreadableError: (unreadable error message)"),
    ],
    ids=["surrogate", "nul", "unreadable"],
)
def test_reason_of_a_refused_run_can_be_stored(
    agenda: Agenda, dispatcher: MemoryDispatcher, error: Exception, reason: str
) -> None:
    """Otherwise the run would be refused again in each tick, or the thread would end."""
    dispatcher.publish = mock.Mock(side_effect=error)  # type: ignore[method-assign]
    agenda.add([due_run("a")])
    agenda.publish_due()
    assert [reason for _run, reason in agenda.take_refused()] == [reason]


def test_runs_are_published_in_batches_of_the_dispatchers_size(
    agenda: Agenda, dispatcher: MemoryDispatcher
) -> None:
    dispatcher.batch_size = 10
    agenda.add(due_run("a") for _ in range(25))
    agenda.publish_due()
    assert dispatcher.batches == [10, 10, 5]


def test_runs_are_kept_while_the_broker_is_unreachable(
    agenda: Agenda,
    dispatcher: MemoryDispatcher,
    clock: StillClock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "django_dcron.scheduler")
    agenda.add(due_run(name, at) for name, at in (("a", 0), ("b", 1), ("c", 2)))
    dispatcher.broker_unreachable = True
    for _ in range(3):
        agenda.publish_due()
        clock.advance(1)
    assert (len(agenda), dispatcher.names, agenda.take_dispatched()) == (3, [], [])
    assert (agenda.broker_unreachable, agenda.broker_error) == (True, "connection refused")
    dispatcher.broker_unreachable = False
    agenda.publish_due()
    assert agenda.broker_error == ""
    assert dispatcher.names == ["a", "b", "c"]
    assert [run.job_name for run in agenda.take_dispatched()] == ["a", "b", "c"]
    assert events(caplog) == ["broker_unreachable", "broker_back"]
    assert logged(caplog, "broker_unreachable", "memory://", "connection refused", agenda=1)
    assert logged(caplog, "broker_back", "memory://")


def test_pause_grows_while_the_broker_is_unreachable(
    agenda: Agenda, dispatcher: MemoryDispatcher
) -> None:
    agenda.add([due_run("a")])
    dispatcher.broker_unreachable = True
    pauses = [0.0]
    for _ in range(10):
        pauses.append(agenda._publish_due(pauses[-1]))
    assert pauses[1:4] == [0.1, 0.2, 0.4]
    assert pauses[-1] == backlog.LONGEST_PAUSE_WITHOUT_BROKER
    dispatcher.broker_unreachable = False
    assert agenda._publish_due(pauses[-1]) == 0


def test_unexpected_publish_error_is_attributed_to_its_run(
    agenda: Agenda, dispatcher: MemoryDispatcher, caplog: pytest.LogCaptureFixture
) -> None:
    runs = {name: due_run(name) for name in ("a", "faulty", "b", "lost", "c")}
    agenda.add(runs.values())
    dispatcher.poison, dispatcher.undeliverable = {"faulty"}, {"lost"}
    agenda.publish_due()
    assert dispatcher.names == ["a", "b", "c"]
    assert [run.job_name for run in agenda.take_dispatched()] == ["a", "b", "c"]
    assert not agenda.broker_unreachable
    # The run is known until it is taken, so it isn't dispatched again.
    assert agenda.add([runs["faulty"]]) == []
    assert len(agenda) == 0
    refused = [
        (runs["faulty"], "ZeroDivisionError: the driver fails for faulty"),
        (runs["lost"], "no queue for lost"),
    ]
    assert agenda.take_refused() == refused
    assert agenda.take_refused() == []
    (record,) = caplog.records
    assert record.exc_info, "an unexpected error is logged with its traceback"
    assert logged(caplog, "dispatch_failed", run=str(runs["faulty"].run_id), job="faulty")
    agenda.forget([runs["a"], runs["b"], runs["c"]])
    assert not agenda._known


def test_runs_are_kept_if_broker_fails_while_runs_are_published_singly(
    agenda: Agenda, dispatcher: MemoryDispatcher
) -> None:
    agenda.add(due_run(name) for name in ("a", "faulty", "b"))
    dispatcher.poison = {"faulty"}
    publish = dispatcher.publish

    def fail_third_batch(prepared: Sequence[DueRun]) -> None:
        dispatcher.broker_unreachable = len(dispatcher.batches) == 3
        publish(prepared)

    dispatcher.publish = fail_third_batch  # type: ignore[method-assign]
    agenda.publish_due()
    assert agenda.broker_unreachable
    assert (len(agenda), dispatcher.names, agenda.take_refused()) == (2, ["a"], [])
    agenda.publish_due()
    assert [run.job_name for run in agenda.take_dispatched()] == ["a", "b"]
    assert [run.job_name for run, _ in agenda.take_refused()] == ["faulty"]


def test_refused_runs_delay_only_runs_of_the_same_target(
    agenda: Agenda, dispatcher: MemoryDispatcher, clock: StillClock
) -> None:
    bad = [due_run(f"bad {n}", target="bad") for n in range(50)]
    good = [due_run(f"good {n}") for n in range(150)]
    agenda.add(run for n in range(50) for run in (bad[n], *good[3 * n : 3 * n + 3]))
    dispatcher.undeliverable = {run.job_name for run in bad}
    for _ in range(20):
        before = len(dispatcher.batches)
        agenda._publish_due(0)
        assert len(dispatcher.batches) <= before + 2, (
            "the thread reports its activity between passes"
        )
        clock.advance(0.001)
    agenda.add([due_run("late")])
    agenda._publish_due(0)
    assert dispatcher.names == [*(run.job_name for run in good), "late"]
    assert len(agenda) > 25, "some bad runs are not identified yet"
    agenda.publish_due()
    assert [run for run, _ in agenda.take_refused()] == bad
    assert len(dispatcher.batches) < 130
    assert not agenda._backlogs


def test_full_queue_delays_only_its_own_runs(
    agenda: Agenda,
    dispatcher: MemoryDispatcher,
    clock: StillClock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    dispatcher.room = {"full": 10}
    full = [due_run(f"full {n}", target="full") for n in range(100)]
    agenda.add([*full, due_run("a")])
    agenda.publish_due()
    delivered = agenda.take_dispatched()
    assert delivered == [*full[:10], dispatcher.dispatched[-1]]
    assert (len(agenda), agenda.take_refused(), agenda.broker_unreachable) == (90, [], False)
    tried = len(dispatcher.batches)
    for n in range(20):
        agenda.add([due_run(f"b{n}", n), due_run(f"new {n}", n, target="full")])
        agenda.publish_due()
        clock.advance(1)
    assert dispatcher.names[11:] == [f"b{n}" for n in range(20)], "each when it is due"
    assert sum(dispatcher.batches[tried:]) <= 20 + 15, "one at a time, at growing intervals"
    assert events(caplog) == ["dispatch_delayed"]
    assert logged(caplog, "dispatch_delayed", "target=full", "a queue is full", agenda=90)
    dispatcher.room["full"] = 1000
    clock.advance(backlog.LONGEST_PAUSE)
    tried = len(dispatcher.batches)
    agenda.publish_due()
    assert dispatcher.names[31:] == [
        *(f"full {n}" for n in range(10, 100)),
        *(f"new {n}" for n in range(20)),
    ]
    assert len(dispatcher.batches) - tried <= 8, "each batch is twice the size of the previous one"
    assert (len(agenda), agenda._backlogs) == (0, {})


def test_runs_are_kept_if_broker_fails_while_a_queue_is_full(
    agenda: Agenda, dispatcher: MemoryDispatcher, clock: StillClock
) -> None:
    dispatcher.room = {"full": 0}
    agenda.add(due_run(f"{n}", target="full") for n in range(3))
    agenda.publish_due()
    clock.advance(1)
    dispatcher.broker_unreachable = True
    agenda.publish_due()
    assert (len(agenda), agenda.broker_unreachable) == (3, True)
    dispatcher.broker_unreachable, dispatcher.room = False, {}
    agenda.publish_due()
    assert dispatcher.names == ["0", "1", "2"]
    assert (len(agenda), agenda._backlogs) == (0, {})


def test_nothing_is_published_when_no_run_is_due(
    agenda: Agenda, dispatcher: MemoryDispatcher
) -> None:
    agenda.broker_unreachable = True
    assert agenda._publish_due(0) == 0
    assert dispatcher.batches == []
    assert agenda.broker_unreachable, "an empty batch doesn't prove that the broker is reachable"


# --- the thread ---------------------------------------------------------------------------------


def due_from_now(name: str, seconds: float = 0.0) -> module.DueRun:
    """Return a run that is due ``seconds`` from now, by the real clock."""
    since_start = (SystemClock().now() - START).total_seconds()
    return due_run(name, since_start + seconds)


def test_thread_wakes_for_an_earlier_run(running: Agenda, dispatcher: MemoryDispatcher) -> None:
    later = due_from_now("later", 3600)
    running.add([later])
    running.add([due_from_now("soon", 0.05)])
    wait_until(lambda: dispatcher.names == ["soon"], what="the earlier run")
    assert dispatcher.dispatched[0].due_at <= SystemClock().now()
    assert len(running) == 1


def test_thread_follows_a_jump_of_the_clock(
    dispatcher: MemoryDispatcher, clock: StillClock
) -> None:
    """The monotonic clock, by which the thread waits, stands still while a machine is suspended."""
    rests: Queue[float | None] = Queue()
    agenda = Agenda(dispatcher, clock, on_activity=rests.put)
    agenda.add([due_run("a", 3600)])
    thread = threading.Thread(target=agenda.run, daemon=True)
    thread.start()
    assert rests.get(timeout=TIMEOUT) == 3600
    clock.instant += timedelta(hours=2)
    agenda.follow_clock()
    wait_until(lambda: dispatcher.names == ["a"], what="the run that is due by now")
    agenda.stop()
    thread.join(TIMEOUT)
    assert not thread.is_alive()


def test_thread_notifies_the_tick_of_dispatched_runs(dispatcher: MemoryDispatcher) -> None:
    notified = threading.Event()
    agenda = Agenda(dispatcher, SystemClock(), on_dispatched=notified.set)
    thread = threading.Thread(target=agenda.run, daemon=True)
    thread.start()
    run = due_from_now("a")
    agenda.add([run])
    assert notified.wait(TIMEOUT)
    assert agenda.take_dispatched() == [run]
    agenda.stop()
    thread.join(TIMEOUT)
    assert not thread.is_alive()


def test_thread_continues_when_the_broker_is_reachable_again(
    running: Agenda, dispatcher: MemoryDispatcher
) -> None:
    dispatcher.broker_unreachable = True
    running.add([due_from_now("a")])
    for _ in range(2):
        assert dispatcher.tried.acquire(timeout=TIMEOUT)
    running.add([due_from_now("b")])
    dispatcher.broker_unreachable = False
    wait_until(lambda: dispatcher.names == ["a", "b"], what="both runs")


def test_thread_survives_a_run_that_cannot_be_dispatched(
    running: Agenda, dispatcher: MemoryDispatcher
) -> None:
    dispatcher.poison = {"faulty"}
    running.add([due_from_now("faulty"), due_from_now("a")])
    wait_until(lambda: dispatcher.names == ["a"], what="the other run")
    running.add([due_from_now("b")])
    wait_until(lambda: dispatcher.names == ["a", "b"], what="a later run")


def test_thread_stops_while_the_broker_is_unreachable(dispatcher: MemoryDispatcher) -> None:
    dispatcher.broker_unreachable = True
    agenda = Agenda(dispatcher, SystemClock())
    thread = threading.Thread(target=agenda.run, daemon=True)
    thread.start()
    agenda.add([due_from_now("a")])
    assert dispatcher.tried.acquire(timeout=TIMEOUT)
    agenda.stop()
    thread.join(TIMEOUT)
    assert not thread.is_alive()
    assert len(agenda) == 1


class ConnectingDispatcher(MemoryDispatcher):
    """Records the runs for which the agenda connects ahead. It never opens a connection."""

    def __init__(self) -> None:
        super().__init__()
        self.connected_for: list[str] = []

    def connect_ahead(self, prepared: DueRun) -> None:
        self.connected_for.append(prepared.job_name)


@pytest.fixture
def agenda_and_pauses(
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[tuple[Agenda, Queue[float | None]]]:
    """An agenda whose thread connects an hour ahead, and the durations for which it rests."""
    monkeypatch.setattr(module, "CONNECT_AHEAD", 3600.0)
    pauses: Queue[float | None] = Queue()
    agenda = Agenda(ConnectingDispatcher(), SystemClock(), on_activity=pauses.put)
    thread = threading.Thread(target=agenda.run, daemon=True)
    thread.start()
    assert pauses.get(timeout=TIMEOUT) is None
    yield agenda, pauses
    agenda.stop()
    thread.join(TIMEOUT)
    assert not thread.is_alive()


def test_thread_connects_shortly_before_a_run_is_due(
    agenda_and_pauses: tuple[Agenda, Queue[float | None]],
) -> None:
    agenda, durations = agenda_and_pauses
    dispatcher = cast(ConnectingDispatcher, agenda._dispatcher)
    agenda.add([due_from_now("much later", 3 * 3600)])
    rest = durations.get(timeout=TIMEOUT)
    assert rest is not None
    assert 3600 < rest <= 2 * 3600, "until it has to connect"
    assert not dispatcher.connected_for

    agenda.add([due_from_now("later", 3000)])
    assert durations.get(timeout=TIMEOUT) == 0
    rest = durations.get(timeout=TIMEOUT)
    assert rest is not None
    assert 0 < rest <= 3000
    assert dispatcher.connected_for == ["later"]
    assert not dispatcher.batches


def test_thread_does_not_try_to_connect_in_a_busy_loop(
    agenda_and_pauses: tuple[Agenda, Queue[float | None]],
) -> None:
    agenda, durations = agenda_and_pauses
    dispatcher = cast(ConnectingDispatcher, agenda._dispatcher)
    for seconds in (3000, 2000, 1000):
        agenda.add([due_from_now(f"{seconds}", seconds)])
        wait_until(
            lambda seconds=seconds: 0 < (durations.get(timeout=TIMEOUT) or 0) <= seconds,  # type: ignore[misc]
            what="the rest until the run is due",
        )
    assert dispatcher.connected_for == ["3000"]


def test_only_publishing_connects_while_the_broker_is_unreachable(
    agenda_and_pauses: tuple[Agenda, Queue[float | None]],
) -> None:
    agenda, _ = agenda_and_pauses
    dispatcher = cast(ConnectingDispatcher, agenda._dispatcher)
    dispatcher.broker_unreachable = True
    agenda.add([due_from_now("now")])
    assert dispatcher.tried.acquire(timeout=TIMEOUT)
    agenda.add([due_from_now("soon", 60)])
    for _ in range(2):
        assert dispatcher.tried.acquire(timeout=TIMEOUT)
    assert not dispatcher.connected_for


def test_lag_is_that_of_the_oldest_due_run(
    agenda: Agenda, dispatcher: MemoryDispatcher, clock: StillClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert agenda.lag() == timedelta()
    agenda.add([due_run("later", 5), due_run("full", 1, target="full")])
    assert agenda.lag() == timedelta(), "nothing is due"
    clock.advance(3)
    assert agenda.lag() == timedelta(seconds=2)
    dispatcher.room["full"] = 0
    agenda.publish_due()
    assert (dispatcher.names, agenda.lag()) == ([], timedelta(seconds=2)), (
        "runs in a backlog count as well"
    )
    clock.advance(3)
    dispatcher.room.clear()
    seen: list[timedelta] = []
    monkeypatch.setattr(dispatcher, "publish", lambda prepared: seen.append(agenda.lag()))
    agenda.publish_due()
    assert seen == [timedelta(seconds=5)] * 2, (
        "the other run, and then the run that is being published"
    )
    assert agenda.lag() == timedelta()


def test_lag_grows_while_the_broker_is_unreachable(
    agenda: Agenda, dispatcher: MemoryDispatcher, clock: StillClock
) -> None:
    agenda.add([due_run("a")])
    dispatcher.broker_unreachable = True
    for seconds in (0, 7):
        clock.advance(seconds)
        agenda.publish_due()
        assert agenda.lag() == timedelta(seconds=seconds)


def test_length_and_lag_are_read_without_locking(agenda: Agenda, clock: StillClock) -> None:
    agenda.add([due_run("a")])
    clock.advance(1)
    read: list[object] = []
    with agenda._changed:  # like a thread that is suspended while it holds the lock
        reader = threading.Thread(
            target=lambda: read.extend((len(agenda), agenda.lag())), daemon=True
        )
        reader.start()
        reader.join(TIMEOUT)
    assert read == [1, timedelta(seconds=1)]
