"""Dispatching runs to Celery on RabbitMQ, which confirms accepted messages.

These tests need system packages. They run together with the tests on a database that needs system
packages anyway, but not in ``make test``.
"""

from collections.abc import Iterator
from datetime import timedelta
from types import SimpleNamespace
from uuid import uuid4

import pytest
from celery import Celery
from kombu import Exchange, Queue

from django_dcron.dispatch import DispatchFailed, Undeliverable, broker_connection
from django_dcron.dispatch.base import DueRun, PartlyPublished
from django_dcron.dispatch.celery import CeleryDispatcher
from django_dcron.scheduler import backlog
from django_dcron.scheduler.agenda import Agenda
from tests import services
from tests.dispatch.conftest import publish_runs
from tests.scheduler.stand_ins import START, StillClock

pytestmark = [pytest.mark.mariadb, pytest.mark.slow]

OK = "tests.app.tasks.ok"


@pytest.fixture
def app(rabbitmq_server: services.RabbitmqServer) -> Iterator[Celery]:
    app = Celery("dispatch", broker=rabbitmq_server.url, set_as_current=False)
    app.conf.task_default_queue = f"queue-{uuid4()}"
    yield app
    app.close()


def due_run(**fields: str) -> DueRun:
    given = {
        "run_id": uuid4(),
        "attempt": 1,
        "due_at": START,
        "job_id": 1,
        "job_name": "a job",
        "target": OK,
    }
    return DueRun(**given | fields)  # type: ignore[arg-type]


def received(app: Celery, name: str = "") -> list[str]:
    """Take all messages from the queue and return their ids."""
    ids = []
    with app.connection_for_read() as connection:
        queue = Queue(name or app.conf.task_default_queue)(connection.default_channel)
        while message := queue.get(no_ack=True):
            ids.append(message.headers["id"])
    return ids


def ids_of(runs: list[DueRun]) -> list[str]:
    return [f"{run.run_id}.1" for run in runs]


def test_dispatched_runs_survive_a_broker_restart(
    app: Celery, dispatcher: CeleryDispatcher, rabbitmq_server: services.RabbitmqServer
) -> None:
    runs = [due_run() for _ in range(600)]
    publish_runs(dispatcher, *runs)
    rabbitmq_server.kill()
    with pytest.raises(DispatchFailed):
        publish_runs(dispatcher, due_run())
    rabbitmq_server.start()
    last = due_run()
    publish_runs(dispatcher, last)
    assert received(app) == ids_of([*runs, last])


def test_message_of_an_unknown_run_is_published_again(
    app: Celery, dispatcher: CeleryDispatcher
) -> None:
    """A worker that doesn't know the run publishes it again. No worker answers a node here."""
    run = due_run()
    queue = app.conf.task_default_queue
    app.amqp.queues.add(
        Queue(
            queue,
            Exchange(queue),
            queue,
            queue_arguments={"x-max-length": 1, "x-overflow": "reject-publish"},
        )
    )
    publish_runs(dispatcher, run)
    request = SimpleNamespace(
        id=f"{run.run_id}.1",
        args=[str(run.run_id), 1],
        shadow=run.job_name,
        timelimit=[None, None],
        delivery_info={"exchange": "", "routing_key": queue, "priority": None},
    )
    with pytest.raises(DispatchFailed, match=f"'{queue}'"):
        dispatcher.publish_again(request, {})
    assert received(app) == ids_of([run])
    dispatcher.publish_again(request, {"dcron_returns": 1})
    assert received(app) == ids_of([run])
    request.delivery_info["routing_key"] = f"gone-{uuid4()}"
    with pytest.raises(DispatchFailed, match="'gone-"):
        dispatcher.publish_again(request, {})
    assert dispatcher.ask_workers() == []


def test_publish_fails_while_the_broker_is_suspended(
    app: Celery,
    dispatcher: CeleryDispatcher,
    rabbitmq_server: services.RabbitmqServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(broker_connection, "TIMEOUT", 0.5)
    monkeypatch.setitem(
        broker_connection.TIMEOUT_OPTIONS, "py-amqp", {"read_timeout": 0.5, "write_timeout": 0.5}
    )
    publish_runs(dispatcher, due_run())
    rabbitmq_server.suspend()
    with pytest.raises(DispatchFailed, match="timed out"):
        publish_runs(dispatcher, due_run())
    rabbitmq_server.resume()
    monkeypatch.undo()
    last = due_run()
    publish_runs(dispatcher, last)
    assert received(app)[-1:] == ids_of([last])


def test_broker_short_of_memory_is_not_flooded(
    app: Celery,
    dispatcher: CeleryDispatcher,
    rabbitmq_server: services.RabbitmqServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The broker later reads its socket buffers: one message of each attempt, not the batch."""
    monkeypatch.setattr(broker_connection, "TIMEOUT", 0.5)
    runs = [due_run() for _ in range(50)]
    rabbitmq_server.control("set_vm_memory_high_watermark", "0.0000001")
    try:
        for _ in range(3):
            with pytest.raises(DispatchFailed):
                publish_runs(dispatcher, *runs)
    finally:
        rabbitmq_server.control("set_vm_memory_high_watermark", "0.4")
    monkeypatch.undo()
    publish_runs(dispatcher, *runs)
    arrived = received(app)
    assert set(arrived) == set(ids_of(runs))
    assert len(arrived) <= 50 + 3


def test_unknown_exchange_makes_only_its_run_undeliverable(app: Celery) -> None:
    app.conf.task_routes = {"tests.app.tasks.echo": {"exchange": "nowhere", "routing_key": "x"}}
    dispatcher = CeleryDispatcher(app)
    good, bad = due_run(), due_run(target="tests.app.tasks.echo")
    with pytest.raises(Undeliverable, match="'nowhere'"):
        publish_runs(dispatcher, good, bad)
    with pytest.raises(Undeliverable, match="'nowhere'"):
        publish_runs(dispatcher, bad)
    publish_runs(dispatcher, good)
    dispatcher.close()
    assert set(received(app)) == set(ids_of([good]))


@pytest.fixture
def full_queue(app: Celery) -> str:
    """The name of a queue with room for two messages."""
    name, default = f"full-{uuid4()}", app.conf.task_default_queue
    full = {"x-max-length": 2, "x-overflow": "reject-publish"}
    app.conf.task_queues = [
        Queue(name, Exchange(""), routing_key=name, queue_arguments=full),
        Queue(default, Exchange(""), routing_key=default),
    ]
    return name


@pytest.mark.parametrize(
    "options", [{}, {"confirm_publish": True}], ids=["default", "confirm_publish"]
)
@pytest.mark.parametrize("events", [False, True], ids=["no events", "events"])
def test_full_queue_delays_only_its_own_runs(
    app: Celery,
    dispatcher: CeleryDispatcher,
    full_queue: str,
    options: dict[str, bool],
    events: bool,
) -> None:
    app.conf.broker_transport_options = options
    app.conf.task_send_sent_event = events
    runs = [due_run(queue=full_queue if n % 2 else "") for n in range(100)]
    others, kept = runs[::2], runs[1::2]
    with pytest.raises(PartlyPublished, match=f"'{full_queue}'") as taken:
        publish_runs(dispatcher, *runs)
    assert [n for n in range(100) if n in taken.value.rejected] == list(range(5, 100, 2))
    for _ in range(2):
        with pytest.raises(PartlyPublished) as taken:
            publish_runs(dispatcher, kept[2])
        assert 0 in taken.value.rejected
    assert received(app) == ids_of(others)
    assert received(app, full_queue) == ids_of(kept[:2])
    publish_runs(dispatcher, kept[2])
    assert received(app, full_queue) == ids_of(kept[2:3])


def test_agenda_publishes_waiting_runs_when_the_queue_has_room(
    app: Celery, dispatcher: CeleryDispatcher, full_queue: str
) -> None:
    clock = StillClock()
    agenda = Agenda(dispatcher, clock)
    runs = [due_run(queue=full_queue) for _ in range(7)]
    agenda.add(runs)
    arrived: list[str] = []
    while len(arrived) < 7:
        agenda.publish_due()
        assert not agenda.broker_unreachable
        assert not agenda.take_refused()
        more = received(app, full_queue)
        assert more, "no run was published although the queue had room"
        arrived += more
        clock.instant += timedelta(seconds=backlog.LONGEST_PAUSE)
    assert arrived == ids_of(runs)
    assert agenda.take_dispatched() == runs


@pytest.mark.parametrize(
    "options", [{}, {"confirm_publish": True}], ids=["default", "confirm_publish"]
)
@pytest.mark.parametrize("events", [False, True], ids=["no events", "events"])
def test_deleted_queue_is_declared_again(
    app: Celery, dispatcher: CeleryDispatcher, options: dict[str, bool], events: bool
) -> None:
    """The queue was deleted or has expired. The broker confirms messages to it, but drops them."""
    app.conf.broker_transport_options = options
    app.conf.task_send_sent_event = events
    for _ in range(2):
        publish_runs(dispatcher, due_run())
        with app.connection_for_write() as connection:
            Queue(app.conf.task_default_queue)(connection.default_channel).delete()
        runs = [due_run() for _ in range(3)]
        publish_runs(dispatcher, *runs)
        assert received(app) == ids_of(runs)


def test_unroutable_run_is_retried(app: Celery, dispatcher: CeleryDispatcher) -> None:
    """The exchange has no binding yet."""
    with app.connection_for_write() as connection:
        Exchange("unbound", type="topic")(connection.default_channel).declare()
    app.conf.task_routes = {"tests.app.tasks.echo": {"exchange": "unbound", "routing_key": "x"}}
    good, unbound = due_run(), due_run(target="tests.app.tasks.echo")
    with pytest.raises(PartlyPublished) as taken:
        publish_runs(dispatcher, good, unbound)
    assert [n for n in range(2) if n in taken.value.rejected] == [1]
    assert received(app) == ids_of([good])


def test_sent_events_do_not_disturb_publisher_confirms(app: Celery) -> None:
    app.conf.task_send_sent_event = True
    dispatcher = CeleryDispatcher(app)
    runs = [due_run() for _ in range(20)]
    for run in runs:
        publish_runs(dispatcher, run)
    dispatcher.close()
    assert received(app) == ids_of(runs)


def test_confirm_publish_option_of_the_project_is_supported(app: Celery) -> None:
    app.conf.broker_transport_options = {"confirm_publish": True}
    dispatcher = CeleryDispatcher(app)
    runs = [due_run() for _ in range(3)]
    publish_runs(dispatcher, *runs)
    publish_runs(dispatcher, *runs)
    dispatcher.close()
    assert received(app) == ids_of(runs) * 2
