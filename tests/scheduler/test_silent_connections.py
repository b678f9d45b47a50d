"""Silent database connections: the waiting thread gets an error within the lease and reconnects."""

import os
import socket
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.db import OperationalError, connections
from django.db.backends.base.base import BaseDatabaseWrapper
from pytest_django import Settings

from django_dcron.db import connection_sockets
from django_dcron.db.connection_sockets import enable_keepalive, new_connection, set_connect_timeout
from django_dcron.db.session_limits import WaitLimits
from django_dcron.execution.database_outage import retry_until_available
from django_dcron.locks import get_lock
from django_dcron.models import Node
from django_dcron.scheduler import health_monitor, silent_connections, watchdog
from django_dcron.scheduler.runner import EXIT_OK, Runner
from django_dcron.scheduler.silent_connections import SilentConnections
from tests.factories import make_job
from tests.scheduler.stand_ins import MemoryDispatcher, StillClock
from tests.silent_proxy import SilentProxy, proxied
from tests.waiting import TIMEOUT, wait_until

pytestmark = [
    pytest.mark.postgresql,
    pytest.mark.mariadb,
    pytest.mark.django_db(transaction=True),
]

SECOND = timedelta(seconds=1)


@pytest.fixture
def proxy(transactional_db: None) -> Iterator[SilentProxy]:
    with proxied() as proxy:
        yield proxy


Query = Callable[[BaseDatabaseWrapper], Iterator[None]]
"""A generator that sends its last statement after it has yielded."""


def statement(sql: str = "SELECT 1") -> Query:
    def query(connection: BaseDatabaseWrapper) -> Iterator[None]:
        yield
        with connection.cursor() as cursor:
            cursor.execute(sql)

    return query


SELECT_1 = statement()


def fetch_from_the_server(connection: BaseDatabaseWrapper) -> Iterator[None]:
    """On PostgreSQL, fetch from a server-side cursor. MariaDB's driver gets all rows at once."""
    with connection.chunked_cursor() as cursor:
        cursor.execute("SELECT 1")
        yield
        cursor.fetchmany(1)
        cursor.execute("SELECT 1")


def statement_of_the_driver(connection: BaseDatabaseWrapper) -> Iterator[None]:
    yield
    with connection.wrap_database_errors:
        connection.connection.cursor().execute("SELECT 1")


class QueryThread:
    """A node's thread that sends a query to the database when the test says so."""

    def __init__(self, silent: SilentConnections, query: Query = SELECT_1) -> None:
        self.error: Exception | None = None
        self.session: int | None = None
        self._silent = silent
        self._query = query
        self._connected, self._go_on = threading.Event(), threading.Event()
        self.thread = threading.Thread(target=self._query_server)
        self.thread.start()
        assert self._connected.wait(TIMEOUT)

    def send_query(self) -> None:
        self._go_on.set()

    def _query_server(self) -> None:
        self._silent.watch_this_thread("tick")
        connection = connections["default"]
        try:
            connection.ensure_connection()
            self.session = connection_sockets.session_id(connection)
            for _ in self._query(connection):
                self._connected.set()
                assert self._go_on.wait(TIMEOUT)
        except OperationalError as error:
            self.error = error
        finally:
            self._silent.forget_this_thread()
            connection.close()

    @property
    def is_querying(self) -> bool:
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


def watch(silent: SilentConnections, clock: StillClock, seconds: float) -> None:
    for _ in range(round(seconds / watchdog.CHECK_EVERY)):
        clock.advance(watchdog.CHECK_EVERY)
        silent.check()
    if silent._query_thread:
        silent._query_thread.join(TIMEOUT)
        assert not silent._query_thread.is_alive()


@pytest.mark.parametrize(
    "query",
    [SELECT_1, fetch_from_the_server, statement_of_the_driver],
    ids=["statement", "fetch", "driver"],
)
def test_silent_connection_is_shut_when_a_new_one_gets_answers(
    query: Query,
    proxy: SilentProxy,
    silent: SilentConnections,
    clock: StillClock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    client = QueryThread(silent, query)
    proxy.fall_silent()
    client.send_query()
    wait_until(lambda: client.is_querying, TIMEOUT)
    watch(silent, clock, 6)
    assert not client.ended, "not before the lease expires"
    watch(silent, clock, 2)
    client.thread.join(TIMEOUT)
    assert isinstance(client.error, OperationalError)
    assert [vars(record)["event"] for record in caplog.records] == ["connection_silent"]


def test_connection_with_a_running_statement_is_kept(
    silent: SilentConnections, clock: StillClock, caplog: pytest.LogCaptureFixture
) -> None:
    postgresql = connections["default"].vendor == "postgresql"
    sleep = "SELECT pg_sleep(600)" if postgresql else "SELECT SLEEP(600)"
    client = QueryThread(silent, statement(sleep))
    client.send_query()
    connection = connections["default"]
    wait_until(lambda: connection_sockets.is_executing(client.session or 0, connection), TIMEOUT)
    watch(silent, clock, 60)
    assert not client.ended
    assert not caplog.records
    with connection.cursor() as cursor:
        cursor.execute(
            f"SELECT pg_terminate_backend({client.session})"
            if postgresql
            else f"KILL {client.session}"
        )
    client.thread.join(TIMEOUT)
    assert client.error


def test_no_connection_is_closed_while_the_database_answers_no_connection(
    proxy: SilentProxy,
    silent: SilentConnections,
    clock: StillClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The database stalls and may still answer."""

    def refuse(session: int, connection: BaseDatabaseWrapper) -> bool:
        raise OperationalError("no answer")

    client = QueryThread(silent)
    proxy.fall_silent()
    client.send_query()
    wait_until(lambda: client.is_querying, TIMEOUT)
    with monkeypatch.context() as patched:
        patched.setattr(silent_connections, "is_executing", refuse)
        watch(silent, clock, 60)
        assert not client.ended
    watch(silent, clock, 2)
    client.thread.join(TIMEOUT)
    assert client.error


def test_check_that_gets_no_answer_is_ended(
    proxy: SilentProxy,
    silent: SilentConnections,
    clock: StillClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise nothing would check connections any more."""
    is_executing = connection_sockets.is_executing

    def check_in_silence(session: int, connection: BaseDatabaseWrapper) -> bool:
        connection.ensure_connection()
        proxy.fall_silent()
        return is_executing(session, connection)

    client = QueryThread(silent)
    proxy.fall_silent()
    client.send_query()
    wait_until(lambda: client.is_querying, TIMEOUT)
    with monkeypatch.context() as patched:
        patched.setattr(silent_connections, "is_executing", check_in_silence)
        clock.advance(watchdog.CHECK_EVERY)
        silent.check()
        for _ in range(4):
            clock.advance(watchdog.CHECK_EVERY)
            silent.check()
        wait_until(lambda: silent._query_socket, TIMEOUT, what="the check")
        first = silent._query_thread
        assert first is not None

        def ended() -> bool:
            clock.advance(watchdog.CHECK_EVERY)
            silent.check()
            return not first.is_alive()

        wait_until(ended, TIMEOUT, what="the check to be ended")
    wait_until(
        lambda: (watch(silent, clock, 2), client.ended)[1], TIMEOUT, what="the thread to continue"
    )
    assert client.error


def test_no_connection_is_shut_after_the_process_was_suspended(
    proxy: SilentProxy, silent: SilentConnections, clock: StillClock
) -> None:
    client = QueryThread(silent)
    proxy.fall_silent()
    client.send_query()
    wait_until(lambda: client.is_querying, TIMEOUT)
    silent.check()
    clock.advance(3600)
    silent.check()
    assert silent._query_thread is None
    watch(silent, clock, 8)
    client.thread.join(TIMEOUT)


def test_thread_that_connects_again_has_no_silent_connection(
    silent: SilentConnections, clock: StillClock, caplog: pytest.LogCaptureFixture
) -> None:
    """The descriptor of its closed connection may belong to another socket by now."""
    ours, theirs = socket.socketpair()
    descriptors: list[int] = []
    connecting, go_on = threading.Event(), threading.Event()

    def connect_slowly(parameters: Any) -> Any:
        connecting.set()
        go_on.wait(TIMEOUT)
        raise OperationalError("refused")

    def connect_again(connection: BaseDatabaseWrapper) -> Iterator[None]:
        yield
        descriptor = connection_sockets.socket_descriptor(connection)
        assert descriptor is not None
        connection.close()
        descriptors.append(os.dup2(ours.fileno(), descriptor))
        connection.get_new_connection = connect_slowly  # type: ignore[method-assign]
        connection.ensure_connection()

    client = QueryThread(silent, connect_again)
    client.send_query()
    assert connecting.wait(TIMEOUT)
    watch(silent, clock, 20)
    theirs.sendall(b"a")
    assert ours.recv(1) == b"a"
    assert not caplog.records
    go_on.set()
    client.thread.join(TIMEOUT)
    os.close(descriptors[0])
    ours.close()
    theirs.close()


# --- a whole node -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "chunks",
    [1, *(pytest.param(chunks, marks=pytest.mark.nightly) for chunks in range(2, 61))],
)
def test_node_continues_after_all_its_connections_fall_silent(
    chunks: int,
    proxy: SilentProxy,
    settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    settings.DCRON_TICK, settings.DCRON_LEASE = 0.05 * SECOND, SECOND
    settings.DCRON_LOOK_AHEAD = SECOND
    for module in (health_monitor, watchdog, silent_connections):
        monkeypatch.setattr(module, "CHECK_EVERY", 0.05)
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
        connections["default"].close()
        proxy.fall_silent_after(chunks)
        wait_until(lambda: not proxy.remaining, TIMEOUT, what="silence")
        number = len(dispatcher.dispatched)
        wait_until(
            lambda: len(dispatcher.dispatched) > number + 3,
            TIMEOUT,
            what="the schedule to continue",
        )
        assert "connection_silent" in {vars(record).get("event") for record in caplog.records}
    finally:
        wait_until(lambda: runner._signals.wake() or not node.is_alive(), TIMEOUT)
    assert codes == [EXIT_OK]
    assert not Node.objects.exists()


# --- options of a connection --------------------------------------------------------------------


def option_of(connection: Any, level: int, name: int) -> int:
    number = connection_sockets.socket_descriptor(connection)
    assert number is not None
    with socket.socket(fileno=os.dup(number)) as found:
        return found.getsockopt(level, name)


def test_node_connection_has_tcp_keepalive(proxy: SilentProxy) -> None:
    connection = new_connection("default", 6 * SECOND)
    try:
        connection.ensure_connection()
        enable_keepalive(connection, 6 * SECOND)
        assert option_of(connection, socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        assert option_of(connection, socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 6
        assert option_of(connection, socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 12_000
    finally:
        connection.close()


def test_heartbeat_connection_of_a_worker_has_tcp_keepalive(proxy: SilentProxy) -> None:
    """The same applies to every thread with its own connection."""
    connections["default"].close()
    limits = WaitLimits("default")
    limits.impose(lock=SECOND, silence=15 * SECOND)
    assert option_of(connections["default"], socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 15
    limits.lift()


def test_worker_connection_has_tcp_keepalive_and_connect_timeout(
    proxy: SilentProxy, settings: Settings
) -> None:
    settings.DCRON_RUN_LEASE = 9 * SECOND
    connection = connections["default"]
    before = connection.settings_dict
    try:
        for _ in range(2):  # also after an outage
            connection.close()
            retry_until_available(lambda: None, "a test", "default")
            assert option_of(connection, socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 9
            assert option_of(connection, socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 18_000
        assert connection.settings_dict["OPTIONS"]["connect_timeout"] == 9
    finally:
        connection.close()
        connection.settings_dict = before


def test_thread_connection_has_timeouts_from_the_start(
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
    ids=["default", "project option", "pool"],
)
def test_connect_timeout_is_set_unless_the_project_sets_it(
    options: dict[str, Any], timeout: int | None
) -> None:
    connection = connections.create_connection("default")
    connection.settings_dict = connection.settings_dict | {"OPTIONS": options}
    set_connect_timeout(connection, 6 * SECOND)
    assert connection.settings_dict["OPTIONS"].get("connect_timeout") == timeout
    assert "connect_timeout" not in connections.settings["default"]["OPTIONS"], (
        "all threads share these settings"
    )
