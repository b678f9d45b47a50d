"""Workers that lost their broker try to reconnect every few seconds."""

import socket
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery, signals
from celery.worker.consumer import Consumer
from kombu import Connection
from kombu.utils import functional

from django_dcron.dispatch import worker_reconnect
from django_dcron.dispatch.broker_connection import TIMEOUT
from django_dcron.dispatch.worker_reconnect import (
    AMQP_REPLY_TIMEOUT,
    LONGEST_PAUSE,
    MORE_TRIES,
    REPLY_TIMEOUT,
    SILENCE,
    TRANSPORT_OPTIONS,
    PromptReconnect,
)
from django_dcron.scheduler import backlog
from tests import services
from tests.fault_proxy import FaultProxy
from tests.silent_proxy import SilentProxy


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Record the pauses, in seconds, instead of sleeping."""
    seconds: list[float] = []
    monkeypatch.setattr(functional, "sleep", seconds.append)
    return seconds


def worker_app(broker: str) -> Celery:
    """Return an app like that of a worker that has loaded the task."""
    app = Celery(broker=broker, set_as_current=False)
    worker_reconnect.set_transport_options(app)
    return app


def consumer(broker: str = "redis+socket:///nowhere/redis.sock", **settings: Any) -> Any:
    """Return the part of Celery's consumer that connects, in a prepared worker."""
    app = worker_app(broker)
    app.conf.update({"broker_connection_retry_on_startup": True} | settings)
    made = Consumer.__new__(Consumer)
    made.app, made.first_connection_attempt, made.broker_connection_retry_attempt = app, True, 0
    PromptReconnect(made)
    return made


def test_reconnect_pauses_are_short_and_worker_gives_up_no_earlier(slept: list[float]) -> None:
    retries = 4
    with pytest.raises(Exception, match=r"nowhere|No such file"):
        consumer(broker_connection_max_retries=retries).connection_for_read()
    # Each pause ends with a fraction of a second.
    tries = sum(1 for seconds in slept if seconds < 1)
    assert tries == retries * MORE_TRIES
    celerys_patience = sum(min(2.0 * (number + 1), 30.0) for number in range(retries))
    assert celerys_patience <= sum(slept) <= tries * LONGEST_PAUSE
    assert LONGEST_PAUSE <= 5


def test_every_worker_that_loads_the_task_has_the_bootstep() -> None:
    app = Celery(set_as_current=False)
    signals.celeryd_init.send(
        sender="worker@host", instance=SimpleNamespace(app=app), conf=app.conf, options={}
    )
    assert PromptReconnect in app.steps["consumer"]
    connection: Any = app.connection_for_write("redis://127.0.0.1/0")
    assert connection.transport_options["socket_timeout"] == REPLY_TIMEOUT


def test_successful_connection_causes_no_pause(slept: list[float]) -> None:
    connection = worker_reconnect._with_short_pauses(Connection("memory://"))
    assert connection.ensure_connection() is connection
    assert slept == []


def test_nodes_publish_again_within_five_seconds_of_lost_responses() -> None:
    """The time covers one attempt that waits in vain and the pause after it."""
    assert TIMEOUT + backlog.LONGEST_PAUSE_WITHOUT_BROKER <= 5


def seconds_of_silence(sock: socket.socket) -> tuple[int, float]:
    """Return after how many seconds the kernel ends the idle and the busy connection."""
    assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    idle, every, probes, busy = (
        sock.getsockopt(socket.IPPROTO_TCP, option)
        for option in (
            socket.TCP_KEEPIDLE,
            socket.TCP_KEEPINTVL,
            socket.TCP_KEEPCNT,
            socket.TCP_USER_TIMEOUT,
        )
    )
    return idle + every * probes, busy / 1000


@pytest.fixture
def redis_port(redis_server: services.Server) -> Iterator[int]:
    """A port of the server, which itself only has a Unix socket."""
    proxy = SilentProxy(redis_server.answers_at)
    yield proxy.port
    proxy.close()


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="an option of Linux")
def test_kernel_ends_a_silent_connection_to_redis(redis_port: int) -> None:
    with consumer(f"redis://127.0.0.1:{redis_port}/1").connection_for_read() as connection:
        pool = connection.default_channel.client.connection_pool
        assert seconds_of_silence(pool.get_connection()._sock) == (SILENCE, SILENCE)
    assert SILENCE <= 6


@pytest.mark.mariadb
@pytest.mark.slow
@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="an option of Linux")
def test_kernel_ends_a_silent_connection_to_rabbitmq(
    rabbitmq_server: services.RabbitmqServer,
) -> None:
    with consumer(rabbitmq_server.url).connection_for_read() as connection:
        assert seconds_of_silence(connection.connection.transport.sock) == (SILENCE, SILENCE)


def test_worker_limits_its_wait_for_redis_on_each_connection() -> None:
    app = worker_app("redis://127.0.0.1/0")
    with app.pool.acquire() as pooled:  # answers to remote control commands go this way
        connections: list[Any] = [app.connection_for_read(), app.connection_for_write(), pooled]
        timeouts = [each.transport_options["socket_timeout"] for each in connections]
    assert timeouts == [REPLY_TIMEOUT] * 3


@pytest.mark.mariadb
@pytest.mark.slow
def test_worker_closes_a_dead_connection_to_rabbitmq_behind_a_proxy(
    rabbitmq_server: services.RabbitmqServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the limit, the test doesn't end."""
    options = TRANSPORT_OPTIONS["py-amqp"]
    assert options["read_timeout"] == AMQP_REPLY_TIMEOUT
    monkeypatch.setitem(options, "read_timeout", 0.1)
    proxy = FaultProxy(("127.0.0.1", rabbitmq_server.port))
    app = worker_app(f"amqp://guest:guest@127.0.0.1:{proxy.port}//")
    for connect in (app.connection_for_read, app.connection_for_write):
        connection: Any = connect()
        assert connection.default_channel.is_open
        proxy.half_open()
        connection.release()
    proxy.close()


def test_options_of_the_project_take_precedence() -> None:
    project_options = {"socket_keepalive": False}
    app = worker_app("redis://127.0.0.1/0")
    connection: Any = app.connection_for_read(transport_options=project_options)
    assert connection.transport_options.items() >= project_options.items()
    assert connection.transport_options["socket_timeout"] == REPLY_TIMEOUT
