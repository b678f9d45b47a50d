"""Messages in Redis are those of kombu, whichever way they are published."""

import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any
from uuid import UUID

import kombu
import pytest
from celery import Celery
from django.conf import settings
from kombu import Exchange, Queue
from kombu.transport import redis as kombu_redis
from kombu.transport.virtual import base as kombu_virtual

from django_dcron.dispatch import DispatchFailed, celery, redis_queue
from django_dcron.dispatch.base import DueRun
from django_dcron.dispatch.celery import CeleryDispatcher
from tests import services
from tests.scheduler.stand_ins import START
from tests.waiting import wait_until

TAG = "the-delivery-tag"


def due(number: int = 1, **fields: Any) -> DueRun:
    given = {"run_id": UUID(int=number), "attempt": 1, "due_at": START, "job_id": number}
    names = {"job_name": f"job {number}", "target": "tests.app.tasks.ok"}
    return DueRun(**{**given, **names, **fields})


@pytest.fixture
def make_app(redis_server: services.Server) -> Iterator[Callable[..., Celery]]:
    apps = []

    def make(**conf: Any) -> Celery:
        app = Celery("queues", broker=settings.CELERY_BROKER_URL, set_as_current=False)
        app.conf.update(conf)
        apps.append(app)
        return app

    yield make
    for app in apps:
        app.close()


@pytest.fixture
def appended(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of messages of each call that bypassed kombu."""
    numbers = []
    append = redis_queue.RedisQueues.append

    def count(queues: redis_queue.RedisQueues, messages: Any) -> None:
        numbers.append(len(messages))
        append(queues, messages)

    monkeypatch.setattr(redis_queue.RedisQueues, "append", count)
    return numbers


@contextmanager
def publishing_by_kombu() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(redis_queue, "KNOWN_VERSIONS", frozenset())
        yield


def publish(app: Celery, *runs: DueRun, node: str = "") -> None:
    dispatcher = CeleryDispatcher(app)
    dispatcher.node = node
    try:
        dispatcher.publish([dispatcher.prepare(run) for run in runs])
    finally:
        dispatcher.close()


def contents(app: Celery) -> dict[str, Any]:
    """Return everything in the app's Redis database except times, and empty it."""
    with app.connection_for_read() as connection:
        # ``conn_or_acquire`` would hide a key prefix.
        client = kombu_redis.redis.Redis(connection_pool=connection.default_channel.pool)
        found: dict[str, Any] = {}
        for key in client.scan_iter():
            is_list = client.type(key) == b"list"
            value = client.lrange(key, 0, -1) if is_list else [client.dump(key)]
            found[key.decode()] = (value, client.pttl(key) > 0)
        client.flushdb()
    found.pop("_kombu.binding_deadlines", None)
    return found


def in_any_order(found: dict[str, Any]) -> dict[str, Any]:
    return {key: (sorted(value), expires) for key, (value, expires) in found.items()}


NOT_APPENDED: dict[str, dict[str, Any]] = {
    "another body encoding": {"broker_transport_options": {"body_encoding": "utf-8"}},
    "a client that repeats": {"broker_transport_options": {"retry_on_timeout": True}},
    "a named exchange": {
        "task_queues": [Queue("q", Exchange("news", type="topic"), routing_key="news.#")],
        "task_routes": {"*": {"exchange": "news", "routing_key": "news.now", "queue": "q"}},
    },
    "an expiring queue": {
        "task_queues": [Queue("q", expires=3600)],
        "task_default_queue": "q",
    },
    "an expiring queue by argument": {
        "task_queues": [Queue("q", queue_arguments={"x-expires": 3_600_000})],
        "task_default_queue": "q",
    },
    "compression": {"task_routes": {"*": {"queue": "q", "compression": "gzip"}}},
    "expiration": {"task_routes": {"*": {"queue": "q", "expiration": 60}}},
    "a priority that is no number": {"task_routes": {"*": {"queue": "q", "priority": "7"}}},
}
APPENDED: dict[str, dict[str, Any]] = {
    "defaults": {},
    "a default queue": {"task_default_queue": "späte Aufträge"},
    "a route": {"task_routes": {"*": {"queue": "q", "priority": 4, "delivery_mode": 1}}},
    "a named delivery mode": {"task_routes": {"*": {"queue": "q", "delivery_mode": "transient"}}},
    "other priorities": {"broker_transport_options": {"priority_steps": list(range(10))}},
    "another separator": {"broker_transport_options": {"sep": ":"}},
    "a key prefix": {"broker_transport_options": {"global_keyprefix": "of-a-tenant:"}},
    "pickle": {"task_serializer": "pickle"},
    "a queue with arguments": {
        "task_queues": [Queue("q", auto_delete=True, queue_arguments={"x-max-priority": 3})],
        "task_default_queue": "q",
    },
}
RUNS = [
    due(1),
    due(2, job_name="Zeitplan „täglich“ 每日 \\ \" '", attempt=12),
    due(3, queue="of-the-job"),
    due(4, timeout=timedelta(seconds=90)),
    *(due(10 + priority, priority=priority) for priority in range(10)),
    due(5),
]


@pytest.mark.parametrize("name", [*APPENDED, *NOT_APPENDED])
def test_redis_contains_what_kombu_publishes(
    make_app: Callable[..., Celery],
    appended: list[int],
    monkeypatch: pytest.MonkeyPatch,
    name: str,
) -> None:
    monkeypatch.setattr(kombu_virtual, "uuid", lambda: TAG)
    monkeypatch.setattr(celery, "new_delivery_tag", lambda: TAG)
    app = make_app(**(APPENDED | NOT_APPENDED)[name])
    with publishing_by_kombu():
        publish(app, *RUNS, node="node-1")
    expected = contents(app)
    assert not appended
    assert sum(len(value) for value, _ in expected.values()) >= len(RUNS)

    publish(app, *RUNS, node="node-1")

    found = contents(app)
    if name in APPENDED:
        assert found == expected
        assert sum(appended) == len(RUNS)
    else:
        assert in_any_order(found) == in_any_order(expected)
        assert sum(appended) < len(RUNS), "messages with options that only kombu knows"


def test_installed_kombu_is_known() -> None:
    assert redis_queue.version_of_kombu() in redis_queue.KNOWN_VERSIONS


@pytest.mark.parametrize(
    ("url", "known"),
    [
        ("redis://localhost", True),
        ("rediss://localhost", True),
        ("redis+socket:///tmp/redis.sock", True),
        ("sentinel://localhost", False),
        ("amqp://", False),
        ("memory://", False),
    ],
)
def test_only_kombus_redis_transport_is_known(url: str, known: bool) -> None:
    assert redis_queue.is_known_broker(kombu.Connection(url)) is known


@pytest.mark.parametrize(
    ("owner", "method"),
    [
        *((kombu.Producer, name) for name in redis_queue.PRODUCER_METHODS),
        *((kombu_redis.Channel, name) for name in redis_queue.CHANNEL_METHODS),
    ],
)
def test_methods_that_an_instrumentation_replaced_are_called(
    make_app: Callable[..., Celery], monkeypatch: pytest.MonkeyPatch, owner: type, method: str
) -> None:
    app = make_app()
    dispatcher = CeleryDispatcher(app)
    dispatcher.publish([dispatcher.prepare(due())])
    original, calls = inspect.getattr_static(owner, method), []

    def instrumented(*args: Any, **kwargs: Any) -> Any:
        calls.append(method)
        return original(*args, **kwargs)

    monkeypatch.setattr(owner, method, instrumented)
    dispatcher.publish([dispatcher.prepare(due(2))])
    dispatcher.close()
    assert calls
    ((texts, _),) = (value for key, value in contents(app).items() if key == "celery")
    assert len(texts) == 2


def test_each_delivery_has_its_own_tag(make_app: Callable[..., Celery]) -> None:
    app = make_app()
    dispatcher = CeleryDispatcher(app)
    prepared = [dispatcher.prepare(due(number)) for number in range(3)]
    for _ in range(2):
        dispatcher.publish(prepared)
    dispatcher.close()
    with app.connection_for_read() as connection:
        queue = Queue("celery")(connection.default_channel)
        messages = [queue.get(no_ack=True) for _ in range(6)]
    ids = [message.headers["id"] for message in messages]
    assert ids == 2 * [f"{UUID(int=number)}.1" for number in range(3)]
    assert len({message.delivery_tag for message in messages}) == 6


def test_unacknowledged_message_returns_to_its_list(make_app: Callable[..., Celery]) -> None:
    app = make_app()
    publish(app, due(priority=6))
    for attempt in range(3):
        with app.connection_for_read() as connection:
            channel = connection.default_channel
            message = Queue("celery")(channel).get()
            assert message.headers["id"] == f"{UUID(int=1)}.1"
            assert [tag.decode() for tag in channel.client.hkeys("unacked")] == [
                message.delivery_tag
            ]
            if attempt == 0:
                message.requeue()
            if attempt == 2:
                message.ack()
                assert not channel.client.exists("unacked", "unacked_index")
    assert all(key.startswith("_kombu.binding") for key in contents(app))


# --- errors -------------------------------------------------------------------------------------

FAULTS: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "full": (
        lambda client: client.config_set("maxmemory", 1),
        lambda client: client.config_set("maxmemory", 0),
    ),
    "replica": (
        lambda client: client.replicaof("127.0.0.1", 1),
        lambda client: client.replicaof("no", "one"),
    ),
    "no permission": (
        lambda client: client.execute_command("ACL", "SETUSER", "default", "-lpush"),
        lambda client: client.execute_command("ACL", "SETUSER", "default", "+lpush"),
    ),
    "password": (
        lambda client: (
            client.config_set("requirepass", "secret"),
            client.client_kill_filter(_type="normal", skipme=True),
        ),
        lambda client: client.config_set("requirepass", ""),
    ),
    "wrong type": (
        lambda client: (client.delete("celery"), client.set("celery", "a text")),
        lambda client: client.delete("celery"),
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_errors_of_redis_are_those_of_kombu(make_app: Callable[..., Celery], fault: str) -> None:
    app = make_app()
    break_redis, repair_redis = FAULTS[fault]
    raised: list[Exception] = []

    def publish_during_the_fault() -> None:
        dispatcher = CeleryDispatcher(app)
        dispatcher.publish([dispatcher.prepare(due())])
        with app.connection_for_read() as connection:
            client = connection.default_channel.client
            break_redis(client)
            try:
                with pytest.raises(Exception) as error:  # noqa: PT011 (the two are compared)
                    dispatcher.publish([dispatcher.prepare(due(number)) for number in range(3)])
                raised.append(error.value)
            finally:
                repair_redis(client)
                dispatcher.close()

    with publishing_by_kombu():
        publish_during_the_fault()
    publish_during_the_fault()

    by_kombu, appending = raised
    assert type(appending) is type(by_kombu)
    assert type(appending.__cause__) is type(by_kombu.__cause__)
    assert isinstance(appending, DispatchFailed) == (fault != "wrong type")


# --- a real worker ------------------------------------------------------------------------------


def test_worker_executes_thousands_of_appended_messages_once(
    make_app: Callable[..., Celery], appended: list[int]
) -> None:
    app = make_app()
    runs = [due(number, priority=number % 4) for number in range(3000)]
    publish(app, *runs)
    assert sum(appended) == len(runs)
    command = [sys.executable, "-m", "celery", "-A", "tests.dispatch.counting_worker", "worker"]
    options = ["--pool", "solo", "--without-gossip", "--without-mingle", "--without-heartbeat"]
    worker = services.Process("counting-worker", [*command, *options])
    worker.start()
    try:
        with app.connection_for_read() as connection:
            client = connection.default_channel.client
            wait_until(lambda: client.llen("executed") >= len(runs), 120)
            wait_until(lambda: not client.exists("unacked", "unacked_index"))
            assert client.keys("celery*") == []
            executed = [each.decode() for each in client.lrange("executed", 0, -1)]
    finally:
        worker.stop()
    assert sorted(executed) == sorted(f"{run.run_id}.1" for run in runs)
