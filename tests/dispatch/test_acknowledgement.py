"""The order in which a worker's event loop acknowledges messages and sends the next ones."""

import os
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
from celery.signals import worker_ready
from celery.worker import state
from kombu.asynchronous import Hub, set_event_loop
from kombu.utils.eventio import WRITE

from django_dcron import tasks
from django_dcron.dispatch.acknowledgement import LONGEST_WAIT, DeferredAckRequest
from tests.celery_app import app

CHILD = -1
"""The process id of a child. No process has it."""
PIPE = 1000
"""The file number of the pipe to the child. The loop only looks up its callback."""
SENT, ACKNOWLEDGED = "next message sent", "acknowledged"


class Worker:
    """A worker's event loop, with a child that can always be written to."""

    def __init__(self) -> None:
        self.steps: list[str] = []
        self.waits: list[float] = []
        """The seconds that the loop was ready to wait for events."""
        self.hub = Hub()
        self.hub.poller = SimpleNamespace(
            poll=self._poll, register=lambda *a: None, unregister=lambda *a: None, close=list
        )
        self.hub.add(PIPE, self._send, WRITE)
        self._loop = self.hub.create_loop()

    def _poll(self, seconds: float) -> list[tuple[int, int]]:
        self.waits.append(seconds)
        return [(PIPE, WRITE)]

    def _send(self) -> None:
        self.steps.append(SENT)

    def iterate(self) -> None:
        next(self._loop)

    def request(self, pid: int = CHILD) -> DeferredAckRequest:
        message = SimpleNamespace(
            headers={"id": "1", "task": tasks.execute_run.name},
            body="",
            content_type="application/json",
            content_encoding="utf-8",
            payload=([], {}, {}),
            delivery_info={},
            properties={},
        )
        request = tasks.RunRequest(message, on_ack=self._acknowledge, app=app)  # type: ignore[arg-type]
        request.worker_pid = pid  # type: ignore[assignment]
        return request

    def _acknowledge(self, *args: Any) -> None:
        """Acknowledge in the next iteration, as Celery's consumer does."""
        self.hub.call_soon(self.steps.append, ACKNOWLEDGED)


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> Iterator[Worker]:
    for requests in ("reserved_requests", "active_requests"):
        monkeypatch.setattr(state, requests, set())
    worker = Worker()
    monkeypatch.setattr(DeferredAckRequest, "loop", worker.hub)
    yield worker
    worker.hub.close()


@pytest.fixture
def waiting(worker: Worker) -> Any:
    request = worker.request()
    state.reserved_requests.add(request)
    return request


def test_child_gets_its_next_message_before_the_acknowledgement(
    worker: Worker, waiting: Any
) -> None:
    worker.request().acknowledge()
    worker.iterate()
    worker.iterate()
    assert worker.steps[:2] == [SENT, ACKNOWLEDGED]
    # An event that never comes doesn't delay the acknowledgement.
    assert worker.waits[0] <= LONGEST_WAIT


@pytest.mark.parametrize("stop", ["should_stop", "should_terminate"])
def test_stopping_worker_acknowledges_at_once(
    worker: Worker, waiting: Any, stop: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state, stop, os.EX_OK)
    worker.request().acknowledge()
    worker.iterate()
    assert worker.steps[0] == ACKNOWLEDGED


def test_without_a_waiting_message_the_worker_acknowledges_at_once(worker: Worker) -> None:
    running = worker.request()
    state.reserved_requests.add(running)
    state.active_requests.add(running)
    worker.request().acknowledge()
    worker.iterate()
    assert worker.steps[0] == ACKNOWLEDGED


def test_threads_acknowledge_at_once(worker: Worker, waiting: Any) -> None:
    """A thread can't wait for an iteration of the loop, which runs in another thread."""
    worker.request(os.getpid()).acknowledge()
    worker.iterate()
    assert worker.steps[0] == ACKNOWLEDGED


def test_worker_without_an_event_loop_acknowledges_at_once(worker: Worker, waiting: Any) -> None:
    worker_ready.send(sender=mock.Mock(hub=None))
    request = worker.request()
    request.acknowledge()
    assert request.acknowledged


def test_loop_is_known_after_the_broker_connection_was_lost(worker: Worker, waiting: Any) -> None:
    """kombu then forgets the loop of the thread."""
    worker_ready.send(sender=mock.Mock(hub=worker.hub))
    set_event_loop(None)
    request = worker.request()
    request.acknowledge()
    assert not request.acknowledged


def test_message_is_acknowledged_once(worker: Worker, waiting: Any) -> None:
    request = worker.request()
    request.acknowledge()
    request.acknowledge()
    for _ in range(3):
        worker.iterate()
    assert worker.steps.count(ACKNOWLEDGED) == 1
