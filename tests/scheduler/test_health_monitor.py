"""A node watches itself: hanging threads, an unreachable database, an unwritable health file."""

import json
import logging
import threading
from collections.abc import Callable, Collection, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db import OperationalError, connections
from pytest_django import Settings

from django_dcron.dispatch.base import DueRun
from django_dcron.exceptions import LockUnavailable
from django_dcron.locks import Lease, Lock, get_lock
from django_dcron.models import Job, LockLease, Node
from django_dcron.scheduler import health, health_monitor, watchdog
from django_dcron.scheduler.backoff import TickBackoff
from django_dcron.scheduler.health import HealthStatus
from django_dcron.scheduler.health_file import HealthFile, probe
from django_dcron.scheduler.runner import EXIT_OK, Runner
from tests.factories import make_idle_job, make_run
from tests.logs import events, logged
from tests.scheduler.stand_ins import MemoryDispatcher
from tests.waiting import TIMEOUT, wait_until

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def quick(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    settings.DCRON_TICK = timedelta(seconds=0.05)
    settings.DCRON_LEASE = timedelta(seconds=1)
    for module in (health_monitor, watchdog):
        monkeypatch.setattr(module, "CHECK_EVERY", 0.05)
    caplog.set_level(logging.INFO, "django_dcron.scheduler")


class LiveNode:
    """A node in threads of this process."""

    def __init__(
        self,
        name: str,
        dispatcher: MemoryDispatcher | None = None,
        lock: Lock | None = None,
        file: Path | None = None,
    ):
        self.runner = Runner(
            name=name,
            namespace="",
            lock=lock or get_lock("database"),
            dispatcher=dispatcher or MemoryDispatcher(),
            health_file=HealthFile(file) if file else None,
        )
        self.exit_code: int | None = None
        self._thread = threading.Thread(target=self._run, name=f"node-{name}")
        self._thread.start()

    def _run(self) -> None:
        try:
            self.exit_code = self.runner.run()
        finally:
            connections.close_all()

    @property
    def status(self) -> HealthStatus:
        return self.runner.health().status

    @property
    def shards(self) -> int:
        return len(self.runner.membership.shards)

    def stop(self) -> None:
        self.runner._signals.wake()
        self._thread.join(TIMEOUT)
        assert self.exit_code == EXIT_OK


Start = Callable[..., LiveNode]


@pytest.fixture
def start() -> Iterator[Start]:
    nodes: list[LiveNode] = []

    def started(name: str, **options: Any) -> LiveNode:
        nodes.append(LiveNode(name, **options))
        wait_until(lambda: Node.objects.filter(name=name).exists(), TIMEOUT, what=f"node {name}")
        wait_until(lambda: nodes[-1].runner._status.since, TIMEOUT, what=f"node {name} to run")
        return nodes[-1]

    yield started
    for node in nodes:
        node.stop()
    assert not Node.objects.exists()
    assert not LockLease.objects.held().exists()


def log_alternates(caplog: pytest.LogCaptureFixture, first: str, second: str, **about: str) -> bool:
    """Whether the log alternates between ``first`` and ``second``, once or several times."""
    records = [record.__dict__ for record in caplog.records]
    text = [record["event"] for record in records if about.items() <= record.items()]
    text = [event for event in text if event in (first, second)]
    return bool(text) and text == [first, second] * (len(text) // 2)


class UnreachableLock:
    """A lock whose server is unreachable."""

    def hold(self, names: Collection[str], holder: str, lease: timedelta) -> list[Lease]:
        raise LockUnavailable("no route to the lock")

    def release(self, names: Collection[str], holder: str) -> None:
        raise LockUnavailable("no route to the lock")

    def holders(self, names: Collection[str]) -> dict[str, str]:
        raise LockUnavailable("no route to the lock")


class Stuck(MemoryDispatcher):
    """A dispatcher that blocks the node's threads, like a project's router that waits."""

    def __init__(self) -> None:
        super().__init__()
        self.let_go = threading.Event()

    def prepare(self, run: DueRun) -> DueRun:
        assert self.let_go.wait(TIMEOUT)
        return super().prepare(run)


class StuckPublishing(Stuck):
    def prepare(self, run: DueRun) -> DueRun:
        return MemoryDispatcher.prepare(self, run)

    def publish(self, prepared: Any) -> None:
        assert self.let_go.wait(TIMEOUT)
        super().publish(prepared)


@pytest.mark.parametrize(
    ("kind", "thread", "where"),
    [(Stuck, "tick", "in prepare"), (StuckPublishing, "agenda", "in publish")],
)
@pytest.mark.parametrize("lock", [None, UnreachableLock()])
def test_shards_of_a_hanging_node_move_until_it_continues(
    start: Start,
    settings: Settings,
    caplog: pytest.LogCaptureFixture,
    kind: type[Stuck],
    thread: str,
    where: str,
    lock: Lock | None,
) -> None:
    settings.DCRON_HANG_AFTER = timedelta(seconds=1)
    stuck = kind()
    a = start("a", dispatcher=stuck, lock=lock)
    try:
        run = make_run(make_idle_job())
        wait_until(lambda: a.status == "unfit", TIMEOUT, what="the node to be unfit")
        assert a.runner.health().facts.hanging.keys() == {thread}
        healthy = MemoryDispatcher()
        b = start("b", dispatcher=healthy, lock=lock)
        wait_until(lambda: b.shards == 64, TIMEOUT, what="the other node to lead all shards")
        assert a.shards == 0
        assert a.runner.membership.degraded == (lock is not None)
        wait_until(lambda: healthy.dispatched, TIMEOUT, what="the other node to dispatch the run")
        assert [due.run_id for due in healthy.dispatched] == [run.pk]
        wait_until(lambda: b.status.fit, TIMEOUT, what="the other node to be fit")
        assert a.status == "unfit"
    finally:
        stuck.let_go.set()
    wait_until(lambda: 0 < a.shards < 64, TIMEOUT, what="the node to lead its share again")
    wait_until(lambda: a.shards + b.shards == 64, TIMEOUT, what="all shards to be led")
    wait_until(
        lambda: log_alternates(caplog, "unfit", "fit", node="a"),
        TIMEOUT,
        what="the node to be fit again",
    )
    wait_until(
        lambda: log_alternates(
            caplog, "thread_hangs", "thread_recovered", node="a", hanging=thread
        ),
        TIMEOUT,
    )
    hangs = logged(caplog, "thread_hangs", node="a", hanging=thread)[0]
    first = hangs.split("\nThread ")[1]
    assert first.startswith(f"dcron-{thread}:\n")
    assert where in first


def test_hanging_heartbeat_makes_the_node_unfit(
    start: Start,
    settings: Settings,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    a = start("a")
    let_go = threading.Event()
    original = a.runner.membership.beat

    def beat(*, agenda: int, connect: Callable[[], None]) -> bool:
        assert let_go.wait(TIMEOUT)
        return original(agenda=agenda)

    settings.DCRON_HANG_AFTER = timedelta(seconds=1)
    monkeypatch.setattr(a.runner.membership, "beat", beat)
    try:
        wait_until(lambda: a.status == "unfit", TIMEOUT, what="the node to be unfit")
        wait_until(lambda: a.shards == 0, TIMEOUT, what="its leases to expire")
    finally:
        let_go.set()
    wait_until(lambda: a.shards == 64, TIMEOUT, what="the node to lead again")
    wait_until(
        lambda: log_alternates(caplog, "unfit", "fit"), TIMEOUT, what="the node to be fit again"
    )
    wait_until(
        lambda: log_alternates(caplog, "thread_hangs", "thread_recovered", hanging="heartbeat"),
        TIMEOUT,
    )


def test_an_idle_node_does_not_hang(start: Start, settings: Settings) -> None:
    """The agenda has nothing to wait for, and ticks and heartbeats are far apart."""
    a = start("a")
    wait_until(lambda: a.shards == 64, TIMEOUT, what="the node to lead")
    settings.DCRON_TICK = settings.DCRON_LEASE = timedelta(seconds=60)
    settings.DCRON_HANG_AFTER = timedelta(seconds=0.3)
    settings.DCRON_DATABASE_GRACE = timedelta(seconds=0.3)
    first = a.runner.health().facts.tick_age
    wait_until(
        lambda: a.runner.health().facts.tick_age > first + 1,
        TIMEOUT,
        what="a second without a tick",
    )
    wait_until(lambda: a.status == "ok", TIMEOUT, what="the node to stay fit")


def test_node_in_database_backoff_does_not_hang(
    start: Start, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ticked() -> None:
        raise OperationalError("connection refused")

    a = start("a")
    monkeypatch.setattr(TickBackoff, "pause", 60.0)
    monkeypatch.setattr(a.runner.membership, "ticked", ticked)
    wait_until(lambda: a.status == "degraded", TIMEOUT, what="a failed tick")
    settings.DCRON_HANG_AFTER = timedelta(seconds=0.3)
    first = a.runner.health().facts.tick_age
    wait_until(
        lambda: a.runner.health().facts.tick_age > first + 1,
        TIMEOUT,
        what="a second without a tick",
    )
    wait_until(lambda: a.status == "degraded", TIMEOUT, what="the node to stay fit")


@pytest.mark.parametrize(
    ("message", "before", "reason"),
    [
        ("connection refused", "degraded", "the database has been unusable since "),
        ("database is locked", "ok", "no tick has succeeded for "),
    ],
)
def test_node_is_unfit_if_ticks_fail_for_longer_than_the_grace(
    start: Start,
    settings: Settings,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    message: str,
    before: str,
    reason: str,
) -> None:
    a = start("a")
    is_failing = threading.Event()
    original = a.runner.membership.ticked

    def ticked() -> None:
        if is_failing.is_set():
            raise OperationalError(message)
        original()

    monkeypatch.setattr(a.runner.membership, "ticked", ticked)
    is_failing.set()
    wait_until(
        lambda: a.runner.health().facts.database_error == message, TIMEOUT, what="a failed tick"
    )
    wait_until(lambda: a.status == before, TIMEOUT, what=before)
    settings.DCRON_DATABASE_GRACE = timedelta(seconds=1)
    wait_until(lambda: a.status == "unfit", TIMEOUT, what="the node to be unfit")
    assert any(
        text.startswith(reason) and text.endswith(f": {message}")
        for text in a.runner.health().reasons
    )
    assert not a.runner.health().facts.hanging
    is_failing.clear()
    wait_until(
        lambda: log_alternates(caplog, "unfit", "fit"), TIMEOUT, what="the node to be fit again"
    )
    wait_until(
        lambda: a.runner.health().facts.database_error == "",
        TIMEOUT,
        what="the error to be cleared",
    )


def test_health_file_exists_from_start_to_end_of_the_drain(start: Start, tmp_path: Path) -> None:
    path = tmp_path / "health.json"
    closing, may_close = threading.Event(), threading.Event()

    class Slow(MemoryDispatcher):
        def close(self, wait: bool = True) -> None:
            closing.set()
            assert may_close.wait(TIMEOUT)

    a = start("a", file=path, dispatcher=Slow())
    wait_until(lambda: probe(path) == (True, "a is ok"), TIMEOUT, what="the file")
    wait_until(
        lambda: json.loads(path.read_text())["shards"] == 64, TIMEOUT, what="the number of shards"
    )
    assert json.loads(path.read_text())["id"] == Node.objects.get().id
    stopping = threading.Thread(target=a.stop)
    stopping.start()
    assert closing.wait(TIMEOUT)
    assert not a.runner.watchdog._threads, "stopped threads can't hang"
    wait_until(lambda: probe(path) == (True, "a is draining"), TIMEOUT, what="the node to drain")
    may_close.set()
    stopping.join(TIMEOUT)
    assert not list(tmp_path.iterdir())


@pytest.fixture
def stall_database(
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Callable[[Runner, str], threading.Event]]:
    """Return a function that makes one part of a runner's membership wait for the database.

    The wait lasts until the returned event is set.
    """
    answers = threading.Event()

    def stalled(runner: Runner, part: str) -> threading.Event:
        original = getattr(runner.membership, part)

        def waits(execute: Callable[..., Any], *query: Any) -> Any:
            assert answers.wait(TIMEOUT)
            return execute(*query)

        def asks(**options: Any) -> Any:
            with connections["default"].execute_wrapper(waits):
                return original(**options)

        monkeypatch.setattr(runner.membership, part, asks)
        return answers

    yield stalled
    answers.set()


Stall = Callable[[Runner, str], threading.Event]


def test_node_with_stalled_database_loses_shards_before_it_is_unfit(
    start: Start, settings: Settings, stall_database: Stall, caplog: pytest.LogCaptureFixture
) -> None:
    settings.DCRON_HANG_AFTER = timedelta(seconds=1)
    a = start("a")
    wait_until(lambda: a.shards == 64, TIMEOUT, what="the node to lead")
    stall_database(a.runner, "beat")
    answers = stall_database(a.runner, "ticked")
    try:
        wait_until(
            lambda: len(a.runner.health().facts.waiting) == 2, TIMEOUT, what="both threads to wait"
        )
        assert a.status == "degraded"
        assert a.runner.health().facts.hanging == {}
        b = start("b")
        wait_until(lambda: b.shards == 64, TIMEOUT, what="the other node to lead all shards")
        assert a.shards == 0
        settings.DCRON_DATABASE_GRACE = timedelta(seconds=1)
        wait_until(
            lambda: logged(caplog, "unfit", node="a"),
            TIMEOUT,
            what="the node to be unfit",
        )
        both = {"tick", "heartbeat"}
        wait_until(
            lambda: a.runner.health().facts.hanging.keys() == both,
            TIMEOUT,
            what="both threads to hang",
        )
    finally:
        answers.set()
    wait_until(lambda: 0 < a.shards < 64, TIMEOUT, what="the node to lead its share again")
    wait_until(
        lambda: log_alternates(caplog, "unfit", "fit", node="a"),
        TIMEOUT,
        what="the node to be fit again",
    )


def test_node_releases_shards_if_only_the_tick_connection_hangs(
    start: Start, settings: Settings, stall_database: Stall
) -> None:
    settings.DCRON_HANG_AFTER = timedelta(seconds=1)
    a, b = start("a"), start("b")
    wait_until(lambda: 0 < b.shards < 64, TIMEOUT, what="both nodes to lead")
    answers = stall_database(a.runner, "ticked")
    try:
        wait_until(lambda: a.status == "unfit", TIMEOUT, what="the node to be unfit")
        assert a.runner.health().facts.hanging.keys() == {"tick"}
        wait_until(lambda: b.shards == 64, TIMEOUT, what="the other node to lead all shards")
    finally:
        answers.set()
    wait_until(lambda: a.status.fit, TIMEOUT, what="the node to be fit again")


def test_health_file_exists_while_a_starting_node_waits_for_database(
    settings: Settings, stall_database: Stall, tmp_path: Path
) -> None:
    path = tmp_path / "health.json"
    runner = Runner(
        name="a",
        namespace="",
        lock=get_lock("database"),
        dispatcher=MemoryDispatcher(),
        health_file=HealthFile(path),
    )
    answers = stall_database(runner, "register")

    def run() -> None:
        try:
            runner.run(seconds=0.01)
        finally:
            connections.close_all()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        wait_until(lambda: probe(path) == (True, "a is starting"), TIMEOUT, what="the file")
        settings.DCRON_DATABASE_GRACE = timedelta(seconds=0.5)
        unfit = "a is unfit: no tick has succeeded for "
        wait_until(
            lambda: probe(path).reason.startswith(unfit),
            TIMEOUT,
            what="the end of the grace period",
        )
    finally:
        answers.set()
        thread.join(TIMEOUT)
    assert not list(tmp_path.iterdir())


def test_failed_start_leaves_no_health_file(tmp_path: Path) -> None:
    runner = Runner(
        name="a",
        namespace="",
        lock=get_lock("database"),
        dispatcher=MemoryDispatcher(),
        health_file=HealthFile(tmp_path / "health.json"),
    )

    def prepare() -> None:
        wait_until((tmp_path / "health.json").exists, TIMEOUT, what="the file")
        raise OperationalError("connection refused")

    with pytest.raises(OperationalError, match="connection refused"):
        runner.run(prepare=prepare)
    assert not list(tmp_path.iterdir())


def test_hanging_health_monitor_is_reported_when_health_is_read(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The health monitor hangs on a disk that doesn't answer, so it can't watch other threads."""
    monkeypatch.setattr(health, "CHECK_EXPIRES_AFTER", 1.0)
    let_go = threading.Event()
    a = start("a", file=tmp_path / "health.json")
    wait_until(lambda: a.runner.health().ready, TIMEOUT, what="the node to be ready")
    with monkeypatch.context() as stuck:
        stuck.setattr(HealthFile, "write", lambda *content: let_go.wait(TIMEOUT))
        wait_until(
            lambda: not a.runner.health().alive,
            TIMEOUT,
            what="the hanging health monitor to be noticed",
        )
        assert any(
            text.startswith("the health monitor hangs: ") for text in a.runner.health().reasons
        )
    let_go.set()
    wait_until(lambda: a.runner.health().alive, TIMEOUT, what="the health monitor to continue")


def test_nodes_that_share_a_health_file_log_it_once(
    start: Start, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "health.json"
    for name in "ab":
        start(name, file=path)
    for name in "ab":
        wait_until(
            lambda name=name: logged(caplog, "health_file_shared", node=name, path=str(path)),
            TIMEOUT,
            what="the warning",
        )
    assert len(logged(caplog, "health_file_shared")) == 2


def test_unwritable_health_file_is_logged_once(
    start: Start, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    directory = tmp_path / "not" / "yet"
    dispatcher = MemoryDispatcher()
    start("a", file=directory / "health.json", dispatcher=dispatcher)
    failed, restored = "health_file_failed", "health_file_restored"
    wait_until(lambda: events(caplog, failed), TIMEOUT, what="the warning")
    make_run(make_idle_job())
    wait_until(lambda: dispatcher.dispatched, TIMEOUT, what="a run dispatched")
    directory.mkdir(parents=True)
    wait_until(lambda: events(caplog, restored), TIMEOUT)
    assert probe(directory / "health.json").fit
    assert events(caplog, failed, restored) == [failed, restored]
    assert Job.objects.count() == 1
