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
from pytest_django import Settings

from django_dcron.db.clock import SystemClock
from django_dcron.dispatch import (
    DispatchFailed,
    Undeliverable,
    celery_setup,
    make_dispatcher,
    routes,
)
from django_dcron.dispatch import celery as module
from django_dcron.dispatch.base import DueRun
from django_dcron.dispatch.broker_errors import means_unreachable
from django_dcron.dispatch.celery import TASK, CeleryDispatcher
from django_dcron.dispatch.remote_control import REVOKE
from django_dcron.scheduler.agenda import Agenda
from tests import services
from tests.scheduler.stand_ins import START, due_run
from tests.silent_proxy import SilentProxy

OK = "tests.app.tasks.ok"


@pytest.fixture
def app(redis_server: services.Server) -> Iterator[Celery]:
    """A Celery app whose configuration only this test uses."""
    app = Celery("dispatch", broker=settings.CELERY_BROKER_URL, set_as_current=False)
    app.conf.task_routes = {OK: {"queue": "of-the-task"}}
    yield app
    app.close()


@pytest.fixture
def dispatcher(app: Celery) -> Iterator[CeleryDispatcher]:
    dispatcher = CeleryDispatcher(app)
    yield dispatcher
    dispatcher.close()


def run_of(target: str = OK, queue: str = "", **fields: Any) -> DueRun:
    given = {"run_id": UUID(int=7), "attempt": 2, "due_at": START, "job_id": 1, "job_name": "a job"}
    return DueRun(**{**given, **fields}, target=target, queue=queue)  # type: ignore[arg-type]


def publish_runs(dispatcher: CeleryDispatcher, *runs: DueRun) -> None:
    dispatcher.publish([dispatcher.prepare(run) for run in runs])


def received(app: Celery, queue: str) -> list[Message]:
    """Take all messages from ``queue`` and return them."""
    messages = []
    with app.connection_for_read() as connection:
        bound = Queue(queue)(connection.default_channel)
        while message := bound.get(no_ack=True):
            messages.append(message)
    return messages


def test_the_message_is_a_task_that_says_what_it_is(
    app: Celery, dispatcher: CeleryDispatcher
) -> None:
    publish_runs(dispatcher, run_of(timeout=timedelta(seconds=1.5)))
    (message,) = received(app, "of-the-task")
    headers = message.headers
    assert (headers["task"], headers["id"]) == (TASK, f"{UUID(int=7)}.2")
    assert (headers["shadow"], headers["dcron_job"]) == ("a job", "a job")
    assert (headers["eta"], headers["expires"], headers["retries"]) == (None, None, 0)
    assert headers["timelimit"] == [3612, None], (
        "its timeout is ours to enforce, this is an hour behind"
    )
    assert headers["ignore_result"] is True
    args, kwargs, _ = json.loads(message.body)
    assert (args, kwargs) == ([str(UUID(int=7)), 2], {})
    assert (message.content_type, message.content_encoding) == ("application/json", "utf-8")
    assert message.properties["delivery_mode"] == 2, "a broker that restarts keeps it"


def test_no_timeout_is_no_limit(app: Celery, dispatcher: CeleryDispatcher) -> None:
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
def test_the_queue_is_the_jobs_or_the_targets_or_the_default(
    app: Celery, dispatcher: CeleryDispatcher, target: str, queue: str, expected: str
) -> None:
    publish_runs(dispatcher, run_of(target, queue))
    assert len(received(app, expected)) == 1


def test_what_has_no_route_of_its_own_goes_where_dcrons_task_does(app: Celery) -> None:
    app.conf.task_routes = {TASK: "dcron"}
    dispatcher = CeleryDispatcher(app)
    publish_runs(dispatcher, run_of("command:clearsessions"))
    assert len(received(app, "dcron")) == 1


def test_a_route_with_an_exchange_of_its_own(app: Celery) -> None:
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
    assert len(received(app, "mine")) == 1, (
        "the job's queue is the job's queue, whatever the target's route says"
    )


def test_a_queue_that_does_not_exist_where_none_may_be_made(app: Celery) -> None:
    app.conf.task_queues = [Queue("celery")]
    app.conf.task_create_missing_queues = False
    dispatcher = CeleryDispatcher(app)
    with pytest.raises(Undeliverable, match=r"'nowhere'.* task_queues"):
        dispatcher.prepare(run_of(queue="nowhere"))


def test_the_priority_is_the_jobs(app: Celery, dispatcher: CeleryDispatcher) -> None:
    publish_runs(dispatcher, run_of(priority=0), run_of(priority=9), run_of())
    priorities = [message.properties["priority"] for message in received(app, "of-the-task")]
    assert priorities == [0, 0, 9], "Redis: 0 is first, and what says nothing is 0"


@pytest.mark.parametrize(
    "listener", [None, signals.before_task_publish, signals.after_task_publish]
)
def test_publish_signals_are_sent_when_somebody_listens(
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
    assert message.headers["timelimit"] == [3615, None]
    assert json.loads(message.body)[0] == [str(UUID(int=7)), 2]


def test_sent_events_are_sent_where_the_project_wants_them(
    app: Celery, dispatcher: CeleryDispatcher
) -> None:
    app.conf.task_send_sent_event = True
    assert dispatcher._someone_listens()
    publish_runs(dispatcher, run_of())
    assert len(received(app, "of-the-task")) == 1


def test_a_batch_is_sent_in_few_requests(
    app: Celery, dispatcher: CeleryDispatcher, redis_server: services.Server
) -> None:
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
    assert stats["cmdstat_lpush"]["calls"] == 1000
    assert requests < 50, stats
    assert len(received(app, "celery")) == 1000


def test_a_transport_without_batches_gets_them_one_by_one(
    app: Celery, dispatcher: CeleryDispatcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_batches", lambda producer: False)
    publish_runs(dispatcher, run_of(), run_of())
    assert len(received(app, "of-the-task")) == 2


# --- the broker away ----------------------------------------------------------------------------


def test_a_broker_that_stops_is_noticed_at_once_and_used_again_when_it_is_back(
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


def test_a_restart_between_two_batches_loses_none(
    app: Celery, dispatcher: CeleryDispatcher, redis_server: services.Server
) -> None:
    """The queue's binding was lost, too. A new connection declares it again."""
    publish_runs(dispatcher, run_of())
    redis_server.kill()
    redis_server.start()
    publish_runs(dispatcher, run_of())
    assert len(received(app, "of-the-task")) == 1


def test_a_broker_that_flushed_its_queues_takes_runs_all_the_same(
    app: Celery, dispatcher: CeleryDispatcher, redis_server: services.Server
) -> None:
    publish_runs(dispatcher, run_of())
    with app.connection_for_read() as connection:
        connection.default_channel.client.flushall()
    publish_runs(dispatcher, run_of())
    assert len(received(app, "of-the-task")) == 1


def test_a_connection_cut_while_idle_is_made_anew_without_a_word(
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
    ) -> None:  # redis-py reconnects by itself, but most other drivers raise this
        raise ConnectionResetError

    monkeypatch.setattr(dispatcher._producer, "publish", cut)
    publish_runs(dispatcher, run_of())
    assert len(received(app, "of-the-task")) == 3
    assert not caplog.records


def test_answers_that_are_lost_cost_one_timeout(
    redis_server: services.Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new connection works, so the same call dispatches the run."""
    for option in module.TIMEOUT_OPTIONS["redis"]:
        monkeypatch.setitem(module.TIMEOUT_OPTIONS["redis"], option, 0.5)
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


def test_a_frozen_broker_is_away_and_back_when_it_thaws(
    app: Celery,
    dispatcher: CeleryDispatcher,
    redis_server: services.Server,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for option in module.TIMEOUT_OPTIONS["redis"]:
        monkeypatch.setitem(module.TIMEOUT_OPTIONS["redis"], option, 0.2)
    publish_runs(dispatcher, run_of())
    for _ in range(2):  # first on an open connection, then without one
        redis_server.freeze()
        failed: list[DispatchFailed] = []

        def publish(failed: list[DispatchFailed] = failed) -> None:
            with pytest.raises(DispatchFailed, match="Timeout") as info:
                publish_runs(dispatcher, run_of())
            failed.append(info.value)

        thread = threading.Thread(target=publish, daemon=True)
        thread.start()
        thread.join(15)
        assert failed, "it still waits for a broker that does not answer"
    redis_server.thaw()
    publish_runs(dispatcher, run_of())
    assert received(app, "of-the-task")


def test_the_projects_own_timeouts_win(app: Celery, dispatcher: CeleryDispatcher) -> None:
    app.conf.broker_transport_options = {"socket_timeout": 77, "priority_steps": [0, 5]}
    publish_runs(dispatcher, run_of())
    options = dispatcher._producer.connection.transport_options
    assert options == {
        "socket_timeout": 77,
        "socket_connect_timeout": module.TIMEOUT,
        "priority_steps": [0, 5],
    }
    assert app.conf.broker_transport_options == {"socket_timeout": 77, "priority_steps": [0, 5]}
    assert app.connection_for_write().transport_options == app.conf.broker_transport_options


def test_timeouts_are_named_as_each_driver_names_them(dispatcher: CeleryDispatcher) -> None:
    names = {
        Connection(url).get_transport_cls().driver_name
        for url in ("redis://", "rediss://", "sentinel://")
    }
    assert names | {Connection("amqp://").get_transport_cls().driver_name} == set(
        module.TIMEOUT_OPTIONS
    )
    accepted = inspect.signature(amqp.Connection).parameters
    assert set(module.TIMEOUT_OPTIONS["py-amqp"]) <= set(accepted)


def test_a_broker_that_can_take_nothing_now_is_away(
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


def test_addresses_and_errors_name_no_password(app: Celery) -> None:
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


def test_all_workers_are_notified_or_the_one_that_executes_it(app: Celery) -> None:
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


def test_without_remote_control_nobody_is_notified(
    app: Celery, redis_server: services.Server
) -> None:
    app.conf.worker_enable_remote_control = False
    redis_server.kill()
    CeleryDispatcher(app).revoke(UUID(int=7), 1)


@pytest.mark.parametrize("trouble", ["kill", "freeze"])
def test_a_broker_that_is_away_is_not_waited_for(
    app: Celery,
    dispatcher: CeleryDispatcher,
    redis_server: services.Server,
    monkeypatch: pytest.MonkeyPatch,
    trouble: str,
) -> None:
    for option in module.TIMEOUT_OPTIONS["redis"]:
        monkeypatch.setitem(module.TIMEOUT_OPTIONS["redis"], option, 0.2)
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
        with dispatcher._lock if locked else nullcontext():
            thread.start()
            thread.join(15)
        assert failed, "it still waits"


# --- what the broker refuses --------------------------------------------------------------------


@pytest.fixture
def bad_queue(app: Celery) -> str:
    """The name of a queue whose key in Redis has another type."""
    with app.connection_for_read() as connection:
        connection.default_channel.client.hset("occupied", "tag", "message")
    return "occupied"


def test_a_refused_queue_says_so_and_is_not_the_broker_away(
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


def test_a_queue_of_the_transports_own_keys_is_never_published_to(
    app: Celery, dispatcher: CeleryDispatcher
) -> None:
    """A message would turn the key into a list, and every worker would exit with ``WRONGTYPE``."""
    with pytest.raises(Undeliverable, match="'unacked'"):
        publish_runs(dispatcher, run_of(queue="unacked"))
    with app.connection_for_read() as connection:
        assert connection.default_channel.client.type("unacked") != b"list"


def test_one_bad_queue_stops_nothing_else(
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
    assert agenda.take_delivered() == good
    refused = agenda.take_refused()
    assert [run for run, _ in refused] == [run for run in runs if run.queue == bad_queue]
    assert all("WRONGTYPE" in reason for _, reason in refused)
    assert {json.loads(message.body)[0][0] for message in received(app, "good")} == {
        str(run.run_id) for run in good
    }
    assert not caplog.records


def test_an_error_of_the_driver_belongs_to_its_run(
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
def test_options_of_a_route_that_make_no_sense_are_not_the_broker_away(
    app: Celery, options: dict[str, Any]
) -> None:
    app.conf.task_routes = {OK: {"queue": "q", **options}}
    dispatcher = CeleryDispatcher(app)
    with pytest.raises(Undeliverable):
        publish_runs(dispatcher, run_of())


@pytest.mark.parametrize(
    ("error", "away"),
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
def test_what_amqp_says_tells_refusal_from_absence(error: Exception, away: bool) -> None:
    assert means_unreachable(error, Connection("amqp://")) is away


# --- routes -------------------------------------------------------------------------------------


def test_a_router_is_asked_again_after_a_while(
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


def test_of_a_routes_options_only_those_of_a_message_go_along(app: Celery) -> None:
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


def test_closing_it_leaves_it_usable(app: Celery, dispatcher: CeleryDispatcher) -> None:
    publish_runs(dispatcher, run_of())
    dispatcher.close()
    dispatcher.close()
    publish_runs(dispatcher, run_of())
    assert len(received(app, "of-the-task")) == 2
    assert dispatcher.take_back() == []


# --- threads and processes ----------------------------------------------------------------------


def test_several_threads_share_one(app: Celery, dispatcher: CeleryDispatcher) -> None:
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
        thread.join(30)
    assert not failures
    assert len(received(app, "of-the-task")) == 100


def test_a_forked_process_has_a_connection_of_its_own_even_if_another_thread_was_publishing(
    app: Celery, dispatcher: CeleryDispatcher
) -> None:
    publish_runs(dispatcher, run_of())
    parents = dispatcher._producer
    with dispatcher._lock:  # like a publishing thread, which doesn't exist in the child
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                publish_runs(dispatcher, run_of())
                code = 0 if dispatcher._producer is not parents else 2
            finally:
                os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert dispatcher._producer is parents
    publish_runs(dispatcher, run_of())
    assert len(received(app, "of-the-task")) == 3


# --- choosing one -------------------------------------------------------------------------------


def test_the_dispatcher_is_chosen_by_name_or_path() -> None:
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
def test_a_broker_url_of_no_use_is_reported_at_the_start_and_never_ends_a_node(
    monkeypatch: pytest.MonkeyPatch, url: str, problem: str
) -> None:
    app = Celery("wrong", broker=url, set_as_current=False)
    monkeypatch.setattr(celery_setup, "current_app", app)
    with pytest.raises(ImproperlyConfigured, match=f"^invalid broker URL: {problem}") as unusable:
        make_dispatcher("celery", print)
    assert "sec" not in str(unusable.value)
    with pytest.raises(CommandError, match=f"^can't start: invalid broker URL: {problem}"):
        call_command("runcron", once=True)
    dispatcher = CeleryDispatcher(app)
    with pytest.raises(DispatchFailed):
        publish_runs(dispatcher, run_of())
    assert dispatcher.address == "(its URL cannot be used)"
    dispatcher.close()


def test_the_projects_app_is_found(monkeypatch: pytest.MonkeyPatch, settings: Settings) -> None:
    assert CeleryDispatcher().app.main == "tests"
    assert celery_setup.has_app()
    monkeypatch.setattr(celery_setup, "current_app", Celery("default", set_as_current=False))
    assert not celery_setup.has_app()
