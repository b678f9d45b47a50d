"""Workers recognize the messages of the real beat, and remember their tasks."""

from typing import Any
from unittest.mock import Mock

import pytest
from celery import Celery
from celery.beat import ScheduleEntry, Scheduler
from celery.signals import before_task_publish
from kombu.transport.memory import Transport

from django_dcron import tasks
from django_dcron.execution.beat_tasks import HEADER, BeatSender, BeatTasks


def report() -> None:
    """A task."""


@pytest.fixture
def app() -> Any:
    made = Celery("beat-test", broker="memory://", set_as_current=False)
    made.task(name="shop.report")(report)
    yield made
    Transport.global_state.clear()


def headers_of_messages(app: Celery, send: Any) -> list[dict[str, Any]]:
    with app.connection_for_write() as connection:
        channel = connection.default_channel
        send()
        found = []
        while (message := channel.basic_get("celery")) is not None:
            found.append(dict(message.headers))
    return found


def test_messages_of_beat_are_recognized_and_those_of_code_are_not(
    app: Celery, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tasks, "beat_sender", BeatSender())
    tasks._mark_messages_of_beat()
    memory = BeatTasks()
    scheduler = Scheduler(app, lazy=True)
    entry = ScheduleEntry("nightly", "shop.report", schedule=60, app=app)
    try:
        (sent,) = headers_of_messages(app, lambda: scheduler.apply_async(entry))
    finally:
        before_task_publish.disconnect(tasks._mark)
    (called,) = headers_of_messages(app, lambda: app.send_task("shop.report"))
    memory.remember(called, {})
    assert memory.report() == []
    memory.remember(sent | {"retries": 1}, {})
    memory.remember(sent, {"redelivered": True})
    assert memory.report() == []
    memory.remember(sent, {})
    assert [each["task"] for each in memory.report()] == ["shop.report"]


def test_only_the_thread_of_beat_marks_messages() -> None:
    sender, headers = BeatSender(), {}
    sender.mark(headers)
    sender.mark(None)
    assert headers == {}
    sender.begin()
    sender.mark(headers)
    assert headers == {HEADER: True}


def test_worker_remembers_the_latest_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(100))
    memory = BeatTasks(size=2, monotonic=lambda: float(next(clock)))
    monkeypatch.setattr(tasks, "beat_tasks", memory)
    for task in ("a", "b", "a", "c"):
        request = Mock(request_dict={"task": task, HEADER: True}, delivery_info={})
        tasks._remember_beat_tasks(request=request)
    assert tasks.report_state(None)[-2:] == [{"task": "a", "age": 2.0}, {"task": "c", "age": 1.0}]
