"""Test how a worker handles the message of a run that isn't in its database."""

import logging
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest
from celery.app.task import Context
from celery.exceptions import Reject
from celery.worker.request import Request
from kombu import Connection

from django_dcron import tasks
from django_dcron.db.now import database_now
from django_dcron.dispatch import DispatchFailed, DueRun
from django_dcron.dispatch.celery import CeleryDispatcher
from django_dcron.dispatch.messages import NODE_HEADER
from django_dcron.execution.beat_tasks import BeatTasks
from django_dcron.execution.unknown_runs import UnknownRunLog, UnknownRuns
from tests.celery_app import app
from tests.factories import make_node

pytestmark = pytest.mark.django_db

RUN = uuid4()


class Broker:
    """A broker that accepts returned messages or raises the error that the test sets."""

    def __init__(self) -> None:
        self.headers: list[dict[str, Any]] = []
        self.error: Exception | None = None

    def publish_again(self, request: Any, headers: dict[str, Any]) -> None:
        if self.error:
            raise self.error
        self.headers.append(headers)


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Broker:
    broker = Broker()
    monkeypatch.setattr(tasks, "_dispatcher_for", lambda app: broker)
    monkeypatch.setattr(tasks, "unknown_run_log", UnknownRunLog())
    caplog.set_level(logging.DEBUG, "django_dcron.runs")
    return broker


def deliver(headers: dict[str, Any] | None = None, redelivered: bool = False) -> None:
    request = SimpleNamespace(headers=headers, delivery_info={"redelivered": redelivered})
    tasks._return_to_queue(SimpleNamespace(app=None, request=request), RUN, 1, "w")  # type: ignore[arg-type]


def levels(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [
        record.levelname for record in caplog.records if vars(record).get("event") == "unknown_run"
    ]


def test_message_is_returned_a_limited_number_of_times(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    headers: dict[str, Any] = {"dcron_job": "nightly"}
    for _ in range(tasks.MAX_RETURNS):
        with pytest.raises(tasks.ForeignRun) as raised:
            deliver(headers)
        assert not raised.value.dropped
        headers = broker.headers[-1]
    with pytest.raises(tasks.ForeignRun) as raised:
        deliver(headers)
    assert raised.value.dropped
    assert len(broker.headers) == tasks.MAX_RETURNS
    assert headers == {"dcron_job": "nightly", tasks.RETURNS_HEADER: tasks.MAX_RETURNS}
    assert levels(caplog) == ["WARNING", *["DEBUG"] * tasks.MAX_RETURNS]


def test_message_of_a_deleted_run_is_dropped_quietly(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    make_node("n")
    deliver({NODE_HEADER: "n-1"})
    assert (broker.headers, levels(caplog)) == ([], ["DEBUG"])
    with pytest.raises(tasks.ForeignRun):
        deliver({NODE_HEADER: "n-of-another-database"})
    assert levels(caplog) == ["DEBUG", "WARNING"]


def test_message_is_requeued_once_if_it_cannot_be_published(broker: Broker) -> None:
    broker.error = DispatchFailed("no permission")
    with pytest.raises(Reject) as raised:
        deliver()
    assert raised.value.requeue
    with pytest.raises(tasks.ForeignRun) as dropped:
        deliver(redelivered=True)
    assert dropped.value.dropped


def test_worker_reports_unknown_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = UnknownRuns(monotonic=lambda: 1.0)
    monkeypatch.setattr(tasks, "unknown_runs", memory)
    monkeypatch.setattr(tasks, "beat_tasks", BeatTasks())
    memory.add(str(RUN), dropped=True)
    assert tasks.report_state(None) == [{"run": str(RUN), "age": 0.0, "dropped": True}]


def test_message_is_published_again_unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    """The message goes through a queue of kombu's memory transport twice."""
    monkeypatch.setattr(app, "connection_for_write", lambda: Connection("memory://"))
    dispatcher = CeleryDispatcher(app)
    dispatcher.node = "n-1"
    due = DueRun(
        RUN,
        3,
        database_now("default"),
        1,
        "nightly",
        "tests.app.tasks.ok",
        queue="late",
        priority=7,
    )
    try:
        dispatcher.publish([dispatcher.prepare(due)])
        first = received("late")
        request = Context(Request(first, app=app, task=tasks.execute_run).request_dict)
        headers = request.headers
        assert headers == {"dcron_job": "nightly", NODE_HEADER: "n-1"}
        dispatcher.publish_again(request, {**headers, tasks.RETURNS_HEADER: 1})
        second = received("late")
    finally:
        dispatcher.close()
    differing = {"root_id", "origin"}
    assert {name: value for name, value in second.headers.items() if name not in differing} == {
        **{name: value for name, value in first.headers.items() if name not in differing},
        tasks.RETURNS_HEADER: 1,
    }
    assert second.payload == first.payload
    for name in ("priority", "delivery_mode", "correlation_id", "reply_to"):
        assert second.properties.get(name) == first.properties.get(name), name


def received(queue: str) -> Any:
    with Connection("memory://") as connection, connection.channel() as channel:
        message = channel.basic_get(queue, no_ack=True)
        assert message is not None
        return message
