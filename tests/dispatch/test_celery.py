"""Dispatching runs to Celery. The tests read the messages back from a real Redis."""

import inspect
import json
import os
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from datetime import timedelta
from typing import Any
from uuid import UUID

import amqp
import pytest
from celery import Celery, signals
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.core.management import CommandError, call_command
from kombu import Connection, Exchange, Message, Queue
from kombu.exceptions import EncodeError
from kombu.transport import memory
from pytest_django import Settings
from redis.exceptions import ResponseError

from django_dcron import targets
from django_dcron.dispatch import (
    DispatchFailed,
    Undeliverable,
    broker_connection,
    celery_setup,
    make_dispatcher,
    redis_queue,
    routes,
)
from django_dcron.dispatch import celery as module
from django_dcron.dispatch.base import DueRun
from django_dcron.dispatch.broker_errors import means_refusal, means_unreachable
from django_dcron.dispatch.celery import CeleryDispatcher
from django_dcron.dispatch.messages import TASK
from django_dcron.dispatch.remote_control import REVOKE
from django_dcron.scheduler import backlog
from django_dcron.scheduler.agenda import Agenda
from tests import services
from tests.dispatch.conftest import publish_runs
from tests.logs import logged
from tests.scheduler.stand_ins import START, StillClock, SystemClock, due_run
from tests.silent_proxy import SilentProxy
from tests.waiting import TIMEOUT

OK = "tests.app.tasks.ok"


@pytest.fixture
def app(redis_server: services.Server) -> Iterator[Celery]:
    """A Celery app whose configuration only this test uses."""
    app = Celery("dispatch", broker=settings.CELERY_BROKER_URL, set_as_current=False)
    app.conf.task_routes = {OK: {"queue": "of-the-task"}}
    yield app
    app.close()


def run_of(target: str = OK, queue: str = "", **fields: Any) -> DueRun:
    given = {"run_id": UUID(int=7), "attempt": 2, "due_at": START, "job_id": 1, "job_name": "a job"}
    return DueRun(**{**given, **fields}, target=target, queue=queue)  # type: ignore[arg-type]


def received(app: Celery, queue: str) -> list[Message]:
    """Take all messages from ``queue`` and return them."""
    messages = []
    with app.connection_for_read() as connection:
        bound = Queue(queue)(connection.default_channel)
        while message := bound.get(no_ack=True):
            messages.append(message)
    return messages


def test_message_is_a_celery_task_with_the_facts_of_the_run(
    app: Celery, dispatcher: CeleryDispatcher
) -> None:
    publish_runs(dispatcher, run_of(timeout=timedelta(seconds=1.5)))
    (message,) = received(app, "of-the-task")
    headers = message.headers
    assert (headers["task"], headers["id"]) == (TASK, f"{UUID(int=7)}.2")
    assert (headers["shadow"], headers["dcron_job"]) == ("a job", "a job")
    assert (headers["eta"], headers["expires"], headers["retries"]) == (None, None, 0)
    assert headers["timelimit"] == [3612, 3612], (
        "django-dcron enforces the timeout; Celery's limits are an hour later"
    )
    assert headers["ignore_result"] is True
    args, kwargs, _ = json.loads(message.body)
    assert (args, kwargs) == ([str(UUID(int=7)), 2], {})
    assert (message.content_type, message.content_encoding) == ("application/json", "utf-8")
    assert message.properties["delivery_mode"] == 2, "the message survives a restart of the broker"


def test_message_has_no_time_limit_without_timeout(
    app: Celery, dispatcher: CeleryDispatcher
) -> None:
    publish_runs(dispatcher, run_of())
    (message,) = received(app, "of-the-task")
    assert message.headers["timelimit"] == [None, None]


@pytest.mark.parametrize(
    ("target", "queue", "expected"),
    [
        (OK, "", "of-the-task"),
        (OK, "of-the-job", "of-the-job"),
        ("tests.app.tasks.echo", "", "celery"),
        ("command:clearsessions", "", "celery"),
        ("gone.since.the.deploy", "", "celery"),
        ("gone.since.the.deploy", "of-the-job", "of-the-job"),
    ],
)
def test_queue_is_that_of_the_job_the_target_or_the_default(
    app: Celery, dispatcher: CeleryDispatcher, target: str, queue: str, expected: str
) -> None:
    publish_runs(dispatcher, run_of(target, queue))
    assert len(received(app, expected)) == 1


def test_target_without_route_uses_the_route_of_the_execute_task(app: Celery) -> None:
    app.conf.task_routes = {TASK: "dcron"}
    dispatcher = CeleryDispatcher(app)
    publish_runs(dispatcher, run_of("command:clearsessions"))
    assert len(received(app, "dcron")) == 1


def test_options_of_the_task_override_its_route_but_not_the_job(app: Celery) -> None:
    """Celery merges the options of ``@shared_task`` in the same order."""
    targets.get(OK)  # imports the task
    task: Any = app.tasks[OK]  # each app has its own
    task.queue, task.priority = "reports", 7
    app.conf.task_routes = {OK: {"queue": "of-the-route", "priority": 3, "delivery_mode": 1}}
    dispatcher = CeleryDispatcher(app)
    assert dispatcher.queue_of(OK) == "reports"
    publish_runs(dispatcher, run_of(), run_of(priority=2), run_of(queue="mine"))
    priorities = {message.properties["priority"] for message in received(app, "reports")}
    assert priorities == {7, 2}
    (message,) = received(app, "mine")
    assert (message.properties["priority"], message.properties["delivery_mode"]) == (7, 1)


def test_route_with_an_exchange_is_used_unless_the_job_sets_a_queue(app: Celery) -> None:
    topic = Exchange("news", type="topic")
    app.conf.task_queues = [
        Queue("sport", topic, routing_key="news.#"),
        Queue("celery"),
        Queue("mine"),
    ]
    app.conf.task_routes = {OK: {"exchange": "news", "routing_key": "news.today", "queue": "sport"}}
    dispatcher = CeleryDispatcher(app)
    publish_runs(dispatcher, run_of(), run_of(queue="mine"))
    assert len(received(app, "sport")) == 1
    assert len(received(app, "mine")) == 1, "the job's queue overrides the target's route"


def test_unknown_queue_is_undeliverable_if_queues_are_not_created(app: Celery) -> None:
    app.conf.task_queues = [Queue("celery")]
    app.conf.task_create_missing_queues = False
    dispatcher = CeleryDispatcher(app)
    with pytest.raises(Undeliverable, match=r"'nowhere'.* Add it to task_queues"):
        dispatcher.prepare(run_of(queue="nowhere"))
    with pytest.raises(Undeliverable, match=r"'of-the-task'.* Add it to task_queues"):
        dispatcher.prepare(run_of())


@pytest.mark.parametrize("task_routes", [{}, {OK: {"priority": 3}}], ids=["none", "without queue"])
def test_missing_default_queue_is_undeliverable_unless_the_job_sets_a_queue(
    app: Celery, task_routes: dict[str, Any]
) -> None:
    app.conf.task_queues = [Queue("mine")]
    app.conf.task_create_missing_queues = False
    app.conf.task_routes = task_routes
    dispatcher = CeleryDispatcher(app)
    assert dispatcher.prepare(run_of(queue="mine")).route.queue.name == "mine"
    with pytest.raises(Undeliverable, match=r"'celery'.* Add it to task_queues"):
        dispatcher.prepare(run_of())


def test_message_has_the_priority_of_the_job(app: Celery, dispatcher: CeleryDispatcher) -> None:
    publish_runs(dispatcher, run_of(priority=0), run_of(priority=9), run_of())
    priorities = [message.properties["priority"] for message in received(app, "of-the-task")]
    assert priorities == [0, 0, 9], "on Redis, 0 is the highest priority and the default"


@pytest.mark.parametrize(
    "listener", [None, signals.before_task_publish, signals.after_task_publish]
)
def test_publish_signals_are_sent_to_listeners(
    app: Celery, dispatcher: CeleryDispatcher, listener: Any
) -> None:
    """The message is the same with and without a listener."""
    heard = []

    def listen(sender: str, **details: Any) -> None:
        heard.append((sender, details["routing_key"], details["headers"]["shadow"]))

    if listener is not None:
        listener.connect(listen)
    try:
        publish_runs(dispatcher, run_of(priority=3, timeout=timedelta(seconds=5)))
    finally:
        if listener is not None:
            listener.disconnect(listen)
    assert heard == ([(TASK, "of-the-task", "a job")] if listener is not None else [])
    (message,) = received(app, "of-the-task")
    assert message.headers["dcron_job"] == "a job"
    assert message.properties["priority"] == 3
    assert message.headers["timelimit"] == [3615, 3615]
    assert json.loads(message.body)[0] == [str(UUID(int=7)), 2]


def test_sent_events_are_sent_if_enabled(app: Celery, dispatcher: CeleryDispatcher) -> None:
    app.conf.task_send_sent_event = True
    assert dispatcher._celery_must_send()
    publish_runs(dispatcher, run_of())
    assert len(received(app, "of-the-task")) == 1


@pytest.mark.parametrize("by_kombu", [False, True])
def test_batch_is_sent_in_few_requests(
    app: Celery,
    dispatcher: CeleryDispatcher,
    monkeypatch: pytest.MonkeyPatch,
    by_kombu: bool,
) -> None:
    if by_kombu:
        monkeypatch.setattr(redis_queue, "KNOWN_VERSIONS", frozenset())
    publish_runs(dispatcher, run_of())
    with app.connection_for_read() as connection:
        client = connection.default_channel.client
        client.config_resetstat()
        publish_runs(dispatcher, *(due_run(f"{n}") for n in range(1000)))
        stats = client.info("commandstats")
    requests = sum(
        stats.get(f"cmdstat_{name}", {"calls": 0})["calls"]
        for name in ("multi", "evalsha", "sadd", "smembers")
    )
    assert stats["cmdstat_lpush"]["calls"] == (1000 if by_kombu else 2)
    assert requests < 50, stats
    assert len(received(app, "celery")) == 1000


def test_transport_without_batches_gets_single_messages(
    app: Celery, dispatcher: CeleryDispatcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_queue, "KNOWN_VERSIONS", frozenset())
    monkeypatch.setattr(module, "_supports_batches", lambda producer: False)
    publish_runs(dispatcher, run_of(), run_of())
    assert len(received(app, "of-the-task")) == 2


@pytest.mark.parametrize(
    ("broker", "size"), [("redis://", 2000), ("amqp://", 2000), ("memory://", 100)]
)
def test_batches_are_smaller_if_each_message_may_be_sent_alone(broker: str, size: int) -> None:
    """With Amazon SQS, 2,000 messages would take about a minute, and the thread would hang."""
    app = Celery("sizes", broker=broker, set_as_current=False)
    assert CeleryDispatcher(app).batch_size == size


# --- connecting ahead ---------------------------------------------------------------------------


def commands_to_publish(app: Celery, dispatcher: CeleryDispatcher) -> set[str]:
    """Publish a run, and return the commands that Redis received."""
    item = dispatcher.prepare(run_of())
    with app.connection_for_read() as connection:
        client = connection.default_channel.client
        client.config_resetstat()
        dispatcher.publish([item])
        commands = {name.removeprefix("cmdstat_") for name in client.info("commandstats")}
    return commands - {"config", "config|resetstat", "info"}


def test_run_needs_one_command_after_connecting_ahead(
    app: Celery, dispatcher: CeleryDispatcher
) -> None:
    dispatcher.connect_ahead(dispatcher.prepare(run_of()))
    assert commands_to_publish(app, dispatcher) == {"lpush"}
    assert len(received(app, "of-the-task")) == 1


def test_idle_connection_that_was_cut_is_replaced_ahead(
    app: Celery, dispatcher: CeleryDispatcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cut_and_connect_ahead() -> None:
        with app.connection_for_read() as connection:
            connection.default_channel.client.client_kill_filter(_type="normal", skipme=True)
        dispatcher.connect_ahead(dispatcher.prepare(run_of()))

    publish_runs(dispatcher, run_of())
    cut_and_connect_ahead()
    assert "select" in commands_to_publish(app, dispatcher), "it was in use and wasn't checked"
    monkeypatch.setattr(broker_connection, "IDLE_AFTER", 0)
    cut_and_connect_ahead()
    assert commands_to_publish(app, dispatcher) == {"lpush"}


def test_connecting_ahead_to_an_unreachable_broker_is_silent(
    app: Celery,
    dispatcher: CeleryDispatcher,
    redis_server: services.Server,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(broker_connection, "IDLE_AFTER", 0)
    for option in broker_connection.TIMEOUT_OPTIONS["redis"]:
        monkeypatch.setitem(broker_connection.TIMEOUT_OPTIONS["redis"], option, 0.2)
    item = dispatcher.prepare(run_of())
    for stop, start in (
        (redis_server.suspend, redis_server.resume),
        (redis_server.kill, redis_server.start),
    ):
        stop()
        dispatcher.connect_ahead(item)
        start()
        publish_runs(dispatcher, run_of())
        stop()
        dispatcher.connect_ahead(item)
        start()
    assert not caplog.records


def test_connecting_ahead_does_not_wait_for_another_thread(dispatcher: CeleryDispatcher) -> None:
    with dispatcher._connection.lock:
        dispatcher.connect_ahead(dispatcher.prepare(run_of()))
    assert dispatcher._connection.producer is None


# --- unreachable broker -------------------------------------------------------------------------


def test_publish_fails_fast_until_the_broker_is_restarted(
    app: Celery, dispatcher: CeleryDispatcher, redis_server: services.Server
) -> None:
    publish_runs(dispatcher, run_of())
    redis_server.kill()
    for _ in range(3):  # first on the broken connection, then without one
        began = time.monotonic()
        with pytest.raises(DispatchFailed) as failed:
            publish_runs(dispatcher, run_of())
        assert time.monotonic() - began < 2
        assert failed.value.__cause__ is not None
        assert str(failed.value).startswith(type(failed.value.__cause__).__name__)
    redis_server.start()
    publish_runs(dispatcher, run_of())
    assert len(received(app, "of-the-task")) == 1


def test_broker_restart_between_two_batches_loses_no_run(
    app: Celery, dispatcher: CeleryDispatcher, redis_server: services.Server
) -> None:
    """The queue's binding was lost, too. A new connection declares it again."""
    publish_runs(dispatcher, run_of())
    redis_server.kill()
    redis_server.start()
    publish_runs(dispatcher, run_of())
    assert len(received(app, "of-the-task")) == 1


def test_publish_succeeds_after_the_broker_was_flushed(
    app: Celery, dispatcher: CeleryDispatcher, redis_server: services.Server
) -> None:
    publish_runs(dispatcher, run_of())
    with app.connection_for_read() as connection:
        connection.default_channel.client.flushall()
    publish_runs(dispatcher, run_of())
    assert len(received(app, "of-the-task")) == 1


def test_idle_connection_that_was_cut_is_replaced_silently(
    app: Celery,
    dispatcher: CeleryDispatcher,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for _ in range(2):
        publish_runs(dispatcher, run_of())
        with app.connection_for_read() as connection:
            connection.default_channel.client.client_kill_filter(_type="normal", skipme=True)

    def cut(
        *args: Any, **options: Any
    ) -> None:  # redis-py reconnects automatically, but most other drivers raise this
        raise ConnectionResetError

    monkeypatch.setattr(dispatcher._connection.redis_queues, "append", cut)
    publish_runs(dispatcher, run_of())
    assert len(received(app, "of-the-task")) == 3
    assert not caplog.records


def test_publish_reconnects_after_lost_responses(
    redis_server: services.Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new connection works, so the same call dispatches the run."""
    for option in broker_connection.TIMEOUT_OPTIONS["redis"]:
        monkeypatch.setitem(broker_connection.TIMEOUT_OPTIONS["redis"], option, 0.5)
    proxy = SilentProxy(redis_server.answers_at)
    app = Celery("far", broker=f"redis://127.0.0.1:{proxy.port}/1", set_as_current=False)
    dispatcher = CeleryDispatcher(app)
    try:
        publish_runs(dispatcher, run_of(queue="far"))
        proxy.fall_silent()
        publish_runs(dispatcher, run_of(queue="far"))
        assert len(received(app, "far")) == 2
    finally:
        dispatcher.close()
        app.close()
        proxy.close()


def test_publish_fails_while_the_broker_is_suspended(
    app: Celery,
    dispatcher: CeleryDispatcher,
    redis_server: services.Server,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for option in broker_connection.TIMEOUT_OPTIONS["redis"]:
        monkeypatch.setitem(broker_connection.TIMEOUT_OPTIONS["redis"], option, 0.2)
    publish_runs(dispatcher, run_of())
    for _ in range(2):  # first on an open connection, then without one
        redis_server.suspend()
        failed: list[DispatchFailed] = []

        def publish(failed: list[DispatchFailed] = failed) -> None:
            with pytest.raises(DispatchFailed, match="Timeout") as info:
                publish_runs(dispatcher, run_of())
            failed.append(info.value)

        thread = threading.Thread(target=publish, daemon=True)
        thread.start()
        thread.join(TIMEOUT)
        assert failed, "publish still waits for a broker that doesn't reply"
    redis_server.resume()
    publish_runs(dispatcher, run_of())
    assert received(app, "of-the-task")


def test_timeouts_of_the_project_take_precedence(app: Celery, dispatcher: CeleryDispatcher) -> None:
    app.conf.broker_transport_options = {"socket_timeout": 77, "priority_steps": [0, 5]}
    publish_runs(dispatcher, run_of())
    options = dispatcher._connection.producer.connection.transport_options
    assert options == {
        "socket_timeout": 77,
        "socket_connect_timeout": broker_connection.TIMEOUT,
        "priority_steps": [0, 5],
    }
    assert app.conf.broker_transport_options == {"socket_timeout": 77, "priority_steps": [0, 5]}
    assert app.connection_for_write().transport_options == app.conf.broker_transport_options


def test_timeouts_complete_the_nested_options_of_the_project(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The driver of Amazon SQS isn't installed."""
    timeouts = broker_connection.TIMEOUT_OPTIONS["sqs"]
    monkeypatch.setitem(broker_connection.TIMEOUT_OPTIONS, "memory", timeouts)
    app = Celery("nested", broker="memory://", set_as_current=False)
    app.conf.broker_transport_options = {"region": "a", "client-config": {"read_timeout": 77}}
    options = broker_connection.new_broker_connection(app).transport_options
    merged = {**timeouts["client-config"], "read_timeout": 77}
    assert options == {"region": "a", "client-config": merged}
    assert app.conf.broker_transport_options["client-config"] == {"read_timeout": 77}
    app.conf.broker_transport_options = {"client-config": None}
    options = broker_connection.new_broker_connection(app).transport_options
    assert options == {"client-config": None}
    app.close()


def test_timeout_options_exist_in_each_driver(dispatcher: CeleryDispatcher) -> None:
    names = {
        Connection(url).get_transport_cls().driver_name
        for url in ("redis://", "rediss://", "sentinel://")
    }
    names.add(Connection("amqp://").get_transport_cls().driver_name)
    assert names | {"sqs"} == set(broker_connection.TIMEOUT_OPTIONS)  # its driver isn't installed
    accepted = inspect.signature(amqp.Connection).parameters
    assert set(broker_connection.TIMEOUT_OPTIONS["py-amqp"]) <= set(accepted)


def test_broker_that_refuses_all_writes_counts_as_unreachable(
    app: Celery, dispatcher: CeleryDispatcher
) -> None:
    """A full Redis doesn't reject single runs: all of them wait."""
    publish_runs(dispatcher, run_of())
    with app.connection_for_read() as connection:
        client = connection.default_channel.client
        client.config_set("maxmemory", 1)
        try:
            with pytest.raises(DispatchFailed, match="OutOfMemoryError"):
                publish_runs(dispatcher, run_of())
        finally:
            client.config_set("maxmemory", 0)
        client.replicaof("127.0.0.1", 1)
        try:
            with pytest.raises(DispatchFailed, match="ReadOnlyError"):
                publish_runs(dispatcher, run_of())
        finally:
            client.replicaof("no", "one")
    publish_runs(dispatcher, run_of())
    assert len(received(app, "of-the-task")) == 2


def test_addresses_and_errors_contain_no_password(app: Celery) -> None:
    app = Celery("away", broker="redis://:secret@localhost:1/3", set_as_current=False)
    dispatcher = CeleryDispatcher(app)
    assert dispatcher.address == "redis://:**@localhost:1/3"
    with pytest.raises(DispatchFailed) as failed:
        publish_runs(dispatcher, run_of())
    assert "secret" not in str(failed.value)


# --- revoking -----------------------------------------------------------------------------------


def commands(app: Celery, *revoked: tuple[UUID, int, str]) -> list[dict[str, Any]]:
    """The remote control commands that workers get when these attempts are revoked."""
    heard: list[dict[str, Any]] = []
    with app.connection_for_read() as connection:
        queue = app.control.mailbox.get_queue("w@host")(connection.default_channel)
        queue.declare()
        dispatcher = CeleryDispatcher(app)
        with connection.Consumer(
            queue, callbacks=[lambda body, message: heard.append(body)], no_ack=True
        ):
            with suppress(TimeoutError):
                connection.drain_events(timeout=0.1)  # from here on, Redis knows the subscriber
            for each in revoked:
                dispatcher.revoke(*each)
            while len(heard) < len(revoked):
                connection.drain_events(timeout=10)
        dispatcher.close()
    return heard


def test_revoke_notifies_all_workers_or_the_executing_one(app: Celery) -> None:
    run_id = UUID(int=7)
    to_all, to_one, to_threads = commands(
        app, (run_id, 1, ""), (run_id, 2, "w@host/17"), (run_id, 3, "w@host/x/threads")
    )
    assert to_all["method"] == to_one["method"] == REVOKE
    assert to_all["arguments"] == {"task_id": f"{run_id}.1", "pid": None}
    assert to_all["destination"] is None
    assert to_one["arguments"] == {"task_id": f"{run_id}.2", "pid": 17}
    assert to_one["destination"] == ["w@host"]
    assert to_threads["arguments"]["pid"] is None


def test_revoke_does_nothing_without_remote_control(
    app: Celery, redis_server: services.Server
) -> None:
    app.conf.worker_enable_remote_control = False
    redis_server.kill()
    CeleryDispatcher(app).revoke(UUID(int=7), 1)


@pytest.mark.parametrize("trouble", ["kill", "suspend"])
def test_revoke_does_not_wait_for_an_unreachable_broker(
    app: Celery,
    dispatcher: CeleryDispatcher,
    redis_server: services.Server,
    monkeypatch: pytest.MonkeyPatch,
    trouble: str,
) -> None:
    for option in broker_connection.TIMEOUT_OPTIONS["redis"]:
        monkeypatch.setitem(broker_connection.TIMEOUT_OPTIONS["redis"], option, 0.2)
    monkeypatch.setattr(module, "TIMEOUT", 0.2)
    publish_runs(dispatcher, run_of())
    getattr(redis_server, trouble)()
    for locked in (False, True):  # whether another thread that waits for the broker holds the lock
        failed: list[DispatchFailed] = []

        def revoke(failed: list[DispatchFailed] = failed) -> None:
            with pytest.raises(DispatchFailed) as info:
                dispatcher.revoke(UUID(int=7), 1, "w@host/17")
            failed.append(info.value)

        thread = threading.Thread(target=revoke, daemon=True)
        with dispatcher._connection.lock if locked else nullcontext():
            thread.start()
            thread.join(TIMEOUT)
        assert failed, "revoke still waits"


# --- messages that are refused -----------------------------------------------------------------


@pytest.fixture
def bad_queue(app: Celery) -> str:
    """The name of a queue whose key in Redis has another type."""
    with app.connection_for_read() as connection:
        connection.default_channel.client.hset("occupied", "tag", "message")
    return "occupied"


def test_invalid_queue_is_undeliverable_with_the_reason(
    dispatcher: CeleryDispatcher, bad_queue: str
) -> None:
    for _ in range(2):
        with pytest.raises(Undeliverable) as refused:
            publish_runs(dispatcher, run_of(queue=bad_queue))
        reason = str(refused.value)
        assert reason.startswith(
            "the broker rejects the message, queue 'occupied': ResponseError: "
        )
        assert "WRONGTYPE" in reason


def test_queue_named_like_an_internal_key_is_undeliverable(
    app: Celery, dispatcher: CeleryDispatcher
) -> None:
    """A message would turn the key into a list, and every worker would exit with ``WRONGTYPE``."""
    with pytest.raises(Undeliverable, match="'unacked'"):
        publish_runs(dispatcher, run_of(queue="unacked"))
    with app.connection_for_read() as connection:
        assert connection.default_channel.client.type("unacked") != b"list"


def test_invalid_queue_does_not_block_other_runs(
    app: Celery, dispatcher: CeleryDispatcher, bad_queue: str, caplog: pytest.LogCaptureFixture
) -> None:
    agenda = Agenda(dispatcher, SystemClock())
    runs = [run_of(run_id=UUID(int=n), queue=bad_queue if n % 3 == 1 else "good") for n in range(9)]
    for batch in (runs[:1], runs[1:2], runs[2:]):
        agenda.add(batch)
        agenda.publish_due()
    assert len(agenda) == 0
    assert not agenda.broker_unreachable
    good = [run for run in runs if run.queue == "good"]
    assert agenda.take_dispatched() == good
    refused = agenda.take_refused()
    assert [run for run, _ in refused] == [run for run in runs if run.queue == bad_queue]
    assert all("WRONGTYPE" in reason for _, reason in refused)
    assert {json.loads(message.body)[0][0] for message in received(app, "good")} == {
        str(run.run_id) for run in good
    }
    assert not caplog.records


def test_error_of_the_driver_is_attributed_to_its_run(
    app: Celery, dispatcher: CeleryDispatcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """py-amqp packs a name's length into one byte. A longer name raises a ``struct.error``."""
    declare = Queue.declare

    def packed(queue: Queue, *args: Any, **options: Any) -> Any:
        struct.pack("B", len(queue.name))
        return declare(queue, *args, **options)

    monkeypatch.setattr(Queue, "declare", packed)
    with pytest.raises(Undeliverable, match=r"error: (ubyte format|'B' format)"):
        publish_runs(dispatcher, run_of(queue="q" * 256), run_of())
    publish_runs(dispatcher, run_of())
    assert len(received(app, "of-the-task")) == 1


@pytest.mark.parametrize("options", [{"expiration": "soon"}, {"compression": "nonsense"}])
def test_invalid_route_options_make_the_run_undeliverable(
    app: Celery, options: dict[str, Any]
) -> None:
    app.conf.task_routes = {OK: {"queue": "q", **options}}
    dispatcher = CeleryDispatcher(app)
    with pytest.raises(Undeliverable):
        publish_runs(dispatcher, run_of())


@pytest.mark.parametrize(
    ("error", "is_outage"),
    [
        (amqp.exceptions.PreconditionFailed("inequivalent arg 'x-max-priority' for queue"), False),
        (amqp.exceptions.AccessRefused("no access to the queue"), False),
        (amqp.exceptions.FrameSyntaxError("table"), False),
        (amqp.exceptions.ConnectionForced("shutdown"), True),
        (amqp.exceptions.Blocked("memory"), True),
        (TimeoutError("timed out"), True),
        (ConnectionResetError(), True),
        (struct.error("ubyte format requires 0 <= number <= 255"), False),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else str(value),
)
def test_amqp_errors_are_classified_as_refusal_or_outage(error: Exception, is_outage: bool) -> None:
    assert means_unreachable(error, Connection("amqp://")) is is_outage


@pytest.mark.parametrize(
    ("error", "is_outage"),
    [
        ("max daily request limit exceeded. Limit: 10000, Usage: 10000.", True),
        ("max requests limit exceeded. Limit: 500000, Usage: 500000.", True),
        ("MISCONF Redis is configured to save RDB snapshots, but can't persist on disk.", True),
        ("max request size exceeded. Limit: 1048576 bytes, Actual: 2097152 bytes", False),
        ("WRONGTYPE Operation against a key holding the wrong kind of value", False),
    ],
)
def test_replies_of_redis_are_classified_as_refusal_or_outage(error: str, is_outage: bool) -> None:
    assert means_unreachable(ResponseError(error), Connection("redis://")) is is_outage


class ClientError(Exception):
    """Like the class of the same name of Amazon's library, kombu doesn't list it."""


@pytest.mark.parametrize(
    ("broker", "error", "is_refusal"),
    [
        ("memory://", ClientError("An error occurred (ExpiredToken)"), False),
        ("memory://", ResponseError("an error of another driver"), False),
        ("memory://", EncodeError("the message can't be encoded"), True),
        ("memory://", struct.error("ubyte format requires 0 <= number <= 255"), True),
        ("memory://", KeyError("the name of a compression"), True),
        ("amqp://", AttributeError("an error of a tracing library"), False),
        ("amqp://", amqp.exceptions.AccessRefused("no access to the queue"), True),
        ("amqp://", ClientError("an error of a tracing library"), False),
        ("redis://", ResponseError("WRONGTYPE Operation against a key"), True),
        ("redis://", ClientError("an error of a tracing library"), False),
    ],
)
def test_only_errors_about_a_queue_or_message_are_refusals(
    broker: str, error: Exception, is_refusal: bool
) -> None:
    assert means_refusal(error, Connection(broker)) is is_refusal


def test_runs_wait_visibly_after_an_error_that_is_not_about_them(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def expired(*args: object, **options: object) -> None:
        raise ClientError("An error occurred (ExpiredToken)")

    app = Celery("expired", broker="memory://", set_as_current=False)
    dispatcher, clock = CeleryDispatcher(app), StillClock()
    agenda = Agenda(dispatcher, clock)
    runs = [run_of(run_id=UUID(int=number), queue="expired") for number in range(3)]
    agenda.add(runs)
    with monkeypatch.context() as broken:
        broken.setattr(memory.Channel, "_put", expired)
        for _ in range(5):
            agenda.publish_due()
            clock.advance(backlog.LONGEST_PAUSE)
    assert (len(agenda), agenda.take_refused(), agenda.take_dispatched()) == (3, [], [])
    assert not agenda.broker_unreachable
    assert len(logged(caplog, "dispatch_delayed", "queue=expired", "(ExpiredToken)")) == 1
    assert logged(caplog, "dispatch_delayed", agenda=3)
    agenda.publish_due()
    assert len(agenda) == 0
    assert {run.run_id for run in agenda.take_dispatched()} == {run.run_id for run in runs}
    dispatcher.close()
    app.close()


# --- routes -------------------------------------------------------------------------------------


def test_route_is_looked_up_again_after_its_lifetime(
    app: Celery, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def router(name: str, *details: Any, **options: Any) -> dict[str, str]:
        asked.append(name)
        return {"queue": f"q{len(asked)}"}

    now = 1000.0
    monkeypatch.setattr(routes, "monotonic", lambda: now)
    app.conf.task_routes = (router,)
    dispatcher = CeleryDispatcher(app)
    for passed, queue in ((0.0, "q1"), (routes.ROUTE_LIFE, "q1"), (routes.ROUTE_LIFE + 1, "q2")):
        now = 1000.0 + passed
        assert dispatcher.prepare(run_of()).route.queue.name == queue
    assert asked == [OK, OK]


@pytest.mark.parametrize("queue", ["", "mine"])
def test_route_of_the_projects_router_is_not_changed(app: Celery, queue: str) -> None:
    table = {OK: {"queue": "shop", "routing_key": "shop.today", "priority": 3}}
    given = []

    def router(name: str, args: Any, kwargs: Any, options: Any, **more: Any) -> Any:
        given.append(options)
        return table.get(name)

    app.conf.task_routes = (router,)
    dispatcher = CeleryDispatcher(app)
    for _ in range(2):
        route = dispatcher._routes._look_up(app, OK, queue)
        assert (route.queue.name, route.options) == (queue or "shop", {"priority": 3})
    assert table == {OK: {"queue": "shop", "routing_key": "shop.today", "priority": 3}}
    assert given == [{"queue": app.amqp.queues["mine"]} if queue else {}] * 2


def test_error_of_the_projects_router_is_raised_unchanged(app: Celery) -> None:
    def router(*details: Any, **options: Any) -> dict[str, str]:
        return {}["nothing"]

    app.conf.task_routes = (router,)
    with pytest.raises(KeyError, match="nothing"):
        CeleryDispatcher(app).prepare(run_of())


def test_only_message_options_of_a_route_are_used(app: Celery) -> None:
    delaying = {
        "countdown": 60,
        "expires": 1,
        "time_limit": 1,
        "serializer": "yaml",
        "headers": {"task": "x"},
    }
    app.conf.task_routes = {
        OK: {"queue": "q", "priority": 3, "delivery_mode": 1, "team": "blue", **delaying}
    }
    dispatcher = CeleryDispatcher(app)
    publish_runs(dispatcher, run_of())
    (message,) = received(app, "q")
    assert (message.properties["priority"], message.properties["delivery_mode"]) == (3, 1)
    assert (message.headers["task"], message.headers["expires"]) == (TASK, None)
    assert "team" not in message.properties


# --- closing ------------------------------------------------------------------------------------


def test_dispatcher_can_be_used_after_close(app: Celery, dispatcher: CeleryDispatcher) -> None:
    publish_runs(dispatcher, run_of())
    dispatcher.close()
    dispatcher.close()
    publish_runs(dispatcher, run_of())
    assert len(received(app, "of-the-task")) == 2
    assert dispatcher.take_unstarted() == []


# --- threads and processes ----------------------------------------------------------------------


def test_several_threads_can_share_a_dispatcher(app: Celery, dispatcher: CeleryDispatcher) -> None:
    failures = []

    def work() -> None:
        try:
            for _ in range(20):
                publish_runs(dispatcher, run_of())
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT)
    assert not failures
    assert len(received(app, "of-the-task")) == 100


def test_forked_process_opens_its_own_connection(app: Celery, dispatcher: CeleryDispatcher) -> None:
    publish_runs(dispatcher, run_of())
    parents = dispatcher._connection.producer
    with dispatcher._connection.lock:  # like a publishing thread, which doesn't exist in the child
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                publish_runs(dispatcher, run_of())
                code = 0 if dispatcher._connection.producer is not parents else 2
            finally:
                os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert dispatcher._connection.producer is parents
    publish_runs(dispatcher, run_of())
    assert len(received(app, "of-the-task")) == 3


# --- selection ----------------------------------------------------------------------------------


def test_dispatcher_is_chosen_by_name_or_path() -> None:
    assert isinstance(make_dispatcher("celery", print), CeleryDispatcher)
    path = "tests.scheduler.stand_ins.MemoryDispatcher"
    assert type(make_dispatcher(path, print)).__name__ == "MemoryDispatcher"


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("redsi://:secret@localhost/1", "No such transport: redsi"),
        ("redis://:sec#ret@localhost/1", "the URL can't be read"),
    ],
)
def test_invalid_broker_url_is_refused_at_the_start(
    monkeypatch: pytest.MonkeyPatch, url: str, problem: str
) -> None:
    app = Celery("wrong", broker=url, set_as_current=False)
    monkeypatch.setattr(celery_setup, "current_app", app)
    with pytest.raises(ImproperlyConfigured, match=f" {problem}") as unusable:
        make_dispatcher("celery", print)
    assert "sec" not in str(unusable.value)
    with pytest.raises(CommandError, match=f" {problem}"):
        call_command("runcron", once=True)
    dispatcher = CeleryDispatcher(app)
    for request in (lambda: publish_runs(dispatcher, run_of()), dispatcher.ask_workers):
        with pytest.raises(DispatchFailed) as failed:
            request()
        assert "sec" not in str(failed.value)
    assert dispatcher.address == "(invalid broker URL)"
    dispatcher.close()


def test_celery_app_of_the_project_is_found(
    monkeypatch: pytest.MonkeyPatch, settings: Settings
) -> None:
    assert CeleryDispatcher().app.main == "tests"
    assert celery_setup.has_app()
    monkeypatch.setattr(celery_setup, "current_app", Celery("default", set_as_current=False))
    assert not celery_setup.has_app()
