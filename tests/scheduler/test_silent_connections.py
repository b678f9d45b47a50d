"""Silent database connections: the waiting thread gets an error within the lease and reconnects."""

import os
import socket
import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.db import OperationalError, connections
from pytest_django import Settings

from django_dcron.db import connection_sockets
from django_dcron.db.connection_sockets import limit_connecting, new_connection, notice_silence
from django_dcron.db.session_limits import WaitLimits
from django_dcron.execution.database_outage import wait_out
from django_dcron.locks import get_lock
from django_dcron.models import Node
from django_dcron.scheduler import silent_connections, watch, watchdog
from django_dcron.scheduler.runner import EXIT_OK, Runner
from django_dcron.scheduler.silent_connections import SilentConnections
from tests.factories import make_job
from tests.scheduler.stand_ins import MemoryDispatcher, StillClock
from tests.silent_proxy import SilentProxy, proxied
from tests.waiting import wait_until

pytestmark = [
    pytest.mark.postgresql,
    pytest.mark.mariadb,
    pytest.mark.django_db(transaction=True),
]

TIMEOUT = 60.0
SECOND = timedelta(seconds=1)


@pytest.fixture
def proxy(transactional_db: None) -> Iterator[SilentProxy]:
    with proxied() as proxy:
        yield proxy


class Asking:
    """A node's thread that sends a query to the database when the test says so."""

    def __init__(self, silent: SilentConnections, question: str = "SELECT 1") -> None:
        self.error: Exception | None = None
        self.session: int | None = None
        self._silent = silent
        self._question = question
        self._connected, self._go_on = threading.Event(), threading.Event()
        self.thread = threading.Thread(target=self._ask)
        self.thread.start()
        assert self._connected.wait(TIMEOUT)

    def ask(self) -> None:
        self._go_on.set()

    def _ask(self) -> None:
        self._silent.watch_this_thread("tick")
        connection = connections["default"]
        try:
            connection.ensure_connection()
            self.session = connection_sockets.session_of(connection)
            self._connected.set()
            assert self._go_on.wait(TIMEOUT)
            with connection.cursor() as cursor:
                cursor.execute(self._question)
        except OperationalError as error:
            self.error = error
        finally:
            self._silent.forget_this_thread()
            connection.close()

    @property
    def is_asking(self) -> bool:
        return silent_connections._database_call(self.thread.ident or 0) is not None

    @property
    def ended(self) -> bool:
        return not self.thread.is_alive()


@pytest.fixture
def clock() -> StillClock:
    return StillClock()


@pytest.fixture
def silent(clock: StillClock) -> SilentConnections:
    return SilentConnections("a", clock.monotonic)


def look(silent: SilentConnections, clock: StillClock, seconds: float) -> None:
    for _ in range(round(seconds / watchdog.LOOK_EVERY)):
        clock.advance(watchdog.LOOK_EVERY)
        silent.look()
    if silent._asking:
        silent._asking.join(TIMEOUT)
        assert not silent._asking.is_alive()


def test_a_connection_that_fell_silent_is_shut_once_a_new_one_is_answered(
    proxy: SilentProxy,
    silent: SilentConnections,
    clock: StillClock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    asking = Asking(silent)
    proxy.fall_silent()
    asking.ask()
    wait_until(lambda: asking.is_asking, TIMEOUT)
    look(silent, clock, 6)
    assert not asking.ended, "not before the lease is over"
    look(silent, clock, 2)
    asking.thread.join(TIMEOUT)
    assert isinstance(asking.error, OperationalError)
    assert [vars(record)["event"] for record in caplog.records] == ["connection_silent"]


def test_a_statement_that_the_server_is_at_work_on_is_left_alone(
    silent: SilentConnections, clock: StillClock, caplog: pytest.LogCaptureFixture
) -> None:
    postgresql = connections["default"].vendor == "postgresql"
    asking = Asking(silent, "SELECT pg_sleep(600)" if postgresql else "SELECT SLEEP(600)")
    asking.ask()
    asked = connections["default"]
    wait_until(lambda: connection_sockets.is_at_work(asking.session or 0, asked), TIMEOUT)
    look(silent, clock, 60)
    assert not asking.ended
    assert not caplog.records
    with asked.cursor() as cursor:
        cursor.execute(
            f"SELECT pg_terminate_backend({asking.session})"
            if postgresql
            else f"KILL {asking.session}"
        )
    asking.thread.join(TIMEOUT)
    assert asking.error


def test_while_the_database_answers_nobody_nothing_is_shut(
    proxy: SilentProxy,
    silent: SilentConnections,
    clock: StillClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The database stalls and may still answer."""

    def refuse(*given: Any) -> Any:
        raise OperationalError("no answer")

    asking = Asking(silent)
    proxy.fall_silent()
    asking.ask()
    wait_until(lambda: asking.is_asking, TIMEOUT)
    with monkeypatch.context() as patched:
        patched.setattr(silent_connections, "is_at_work", refuse)
        look(silent, clock, 60)
        assert not asking.ended
    look(silent, clock, 2)
    asking.thread.join(TIMEOUT)
    assert asking.error


def test_a_question_that_gets_no_answer_is_ended_as_well(
    proxy: SilentProxy,
    silent: SilentConnections,
    clock: StillClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise nothing would check connections any more."""
    is_at_work = connection_sockets.is_at_work

    def in_silence(*given: Any) -> bool:
        given[1].ensure_connection()
        proxy.fall_silent()
        return is_at_work(*given)

    asking = Asking(silent)
    proxy.fall_silent()
    asking.ask()
    wait_until(lambda: asking.is_asking, TIMEOUT)
    with monkeypatch.context() as patched:
        patched.setattr(silent_connections, "is_at_work", in_silence)
        clock.advance(watchdog.LOOK_EVERY)
        silent.look()
        for _ in range(4):
            clock.advance(watchdog.LOOK_EVERY)
            silent.look()
        wait_until(lambda: silent._asked_by, TIMEOUT, what="the question")
        first = silent._asking
        assert first is not None

        def ended() -> bool:
            clock.advance(watchdog.LOOK_EVERY)
            silent.look()
            return not first.is_alive()

        wait_until(ended, TIMEOUT, what="the question to be ended")
    wait_until(
        lambda: (look(silent, clock, 2), asking.ended)[1], TIMEOUT, what="the thread to go on"
    )
    assert asking.error


def test_a_suspended_process_shuts_nothing(
    proxy: SilentProxy, silent: SilentConnections, clock: StillClock
) -> None:
    asking = Asking(silent)
    proxy.fall_silent()
    asking.ask()
    wait_until(lambda: asking.is_asking, TIMEOUT)
    silent.look()
    clock.advance(3600)
    silent.look()
    assert silent._asking is None
    look(silent, clock, 8)
    asking.thread.join(TIMEOUT)


# --- a whole node -------------------------------------------------------------------------------


def test_a_node_whose_connections_all_fall_silent_goes_on(
    proxy: SilentProxy,
    settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    settings.DCRON_TICK, settings.DCRON_LEASE = 0.05 * SECOND, SECOND
    settings.DCRON_LOOK_AHEAD = SECOND
    for module in (watch, watchdog, silent_connections):
        monkeypatch.setattr(module, "LOOK_EVERY", 0.05)
    make_job()
    dispatcher = MemoryDispatcher()
    runner = Runner(name="a", namespace="", lock=get_lock("database"), dispatcher=dispatcher)
    codes: list[int] = []

    def live() -> None:
        codes.append(runner.run())
        connections.close_all()

    node = threading.Thread(target=live)
    node.start()
    try:
        wait_until(lambda: dispatcher.dispatched, TIMEOUT, what="a run dispatched")
        proxy.fall_silent()
        connections["default"].close()
        number = len(dispatcher.dispatched)
        wait_until(
            lambda: len(dispatcher.dispatched) > number + 3, TIMEOUT, what="the schedule to go on"
        )
        assert "connection_silent" in {vars(record).get("event") for record in caplog.records}
    finally:
        wait_until(lambda: runner._signals.wake() or not node.is_alive(), TIMEOUT)
    assert codes == [EXIT_OK]
    assert not Node.objects.exists()


# --- what is set on a connection ----------------------------------------------------------------


def option_of(connection: Any, level: int, name: int) -> int:
    number = connection_sockets.socket_of(connection)
    assert number is not None
    with socket.socket(fileno=os.dup(number)) as found:
        return found.getsockopt(level, name)


def test_the_kernel_looks_after_a_nodes_connection(proxy: SilentProxy) -> None:
    connection = new_connection("default", 6 * SECOND)
    try:
        connection.ensure_connection()
        notice_silence(connection, 6 * SECOND)
        assert option_of(connection, socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        assert option_of(connection, socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 6
        assert option_of(connection, socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 12_000
    finally:
        connection.close()


def test_the_kernel_looks_after_the_connection_of_a_workers_heartbeats(proxy: SilentProxy) -> None:
    """The same holds for every thread with a connection of its own."""
    connections["default"].close()
    limits = WaitLimits("default")
    limits.impose(lock=SECOND, silence=15 * SECOND)
    assert option_of(connections["default"], socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 15
    limits.lift()


def test_the_kernel_looks_after_the_connection_that_a_worker_starts_and_ends_runs_on(
    proxy: SilentProxy, settings: Settings
) -> None:
    settings.DCRON_RUN_LEASE = 9 * SECOND
    connection = connections["default"]
    before = connection.settings_dict
    try:
        for _ in range(2):  # also after an outage
            connection.close()
            wait_out(lambda: None, "a test", "default")
            assert option_of(connection, socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 9
            assert option_of(connection, socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 18_000
        assert connection.settings_dict["OPTIONS"]["connect_timeout"] == 9
    finally:
        connection.close()
        connection.settings_dict = before


def test_the_connection_of_a_nodes_thread_is_bounded_as_soon_as_it_is_made(
    proxy: SilentProxy, settings: Settings
) -> None:
    settings.DCRON_LEASE = 9 * SECOND
    connection = connections["default"]
    connection.close()
    before = connection.settings_dict
    silent = SilentConnections("node-a", StillClock().monotonic)
    try:
        silent.watch_this_thread("tick")
        connection.ensure_connection()
        assert option_of(connection, socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 9
        assert connection.settings_dict["OPTIONS"]["connect_timeout"] == 9
    finally:
        silent.forget_this_thread()
        connection.close()
        connection.settings_dict = before


@pytest.mark.parametrize(
    ("options", "timeout"),
    [({}, 6), ({"connect_timeout": 60}, 60), ({"pool": True}, None)],
    ids=["nothing said", "the project's own", "a pool's"],
)
def test_connecting_is_bounded_unless_the_project_says_otherwise(
    options: dict[str, Any], timeout: int | None
) -> None:
    connection = connections.create_connection("default")
    connection.settings_dict = connection.settings_dict | {"OPTIONS": options}
    limit_connecting(connection, 6 * SECOND)
    assert connection.settings_dict["OPTIONS"].get("connect_timeout") == timeout
    assert "connect_timeout" not in connections.settings["default"]["OPTIONS"], (
        "which all threads share"
    )
