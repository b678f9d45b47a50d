"""Workers that lost their broker try to reconnect every few seconds."""

from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery, signals
from celery.worker.consumer import Consumer
from kombu import Connection
from kombu.utils import functional

from django_dcron.dispatch import worker_reconnect
from django_dcron.dispatch.celery import TIMEOUT
from django_dcron.dispatch.worker_reconnect import LONGEST_PAUSE, MORE_TRIES, PromptReconnect
from django_dcron.scheduler import backlog


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Record the pauses, in seconds, instead of sleeping."""
    seconds: list[float] = []
    monkeypatch.setattr(functional, "sleep", seconds.append)
    return seconds


def consumer(**settings: Any) -> Any:
    """The connecting part of Celery's consumer, with the bootstep under test."""
    app = Celery(broker="redis+socket:///nowhere/redis.sock", set_as_current=False)
    app.conf.update({"broker_connection_retry_on_startup": True} | settings)
    made = Consumer.__new__(Consumer)
    made.app, made.first_connection_attempt, made.broker_connection_retry_attempt = app, True, 0
    PromptReconnect(made)
    return made


def test_reconnect_pauses_are_short_and_patience_is_unchanged(slept: list[float]) -> None:
    retries = 4
    with pytest.raises(Exception, match=r"nowhere|No such file"):
        consumer(broker_connection_max_retries=retries).connection_for_read()
    tries = sum(
        1 for seconds in slept if seconds < 1
    )  # each pause ends with a fraction of a second
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


def test_successful_connection_causes_no_pause(slept: list[float]) -> None:
    connection = worker_reconnect._with_short_pauses(Connection("memory://"))
    assert connection.ensure_connection() is connection
    assert slept == []


def test_nodes_publish_again_within_five_seconds_of_lost_responses() -> None:
    """The time covers one attempt that waits in vain and the pause after it."""
    assert TIMEOUT + backlog.LONGEST_PAUSE_WITHOUT_BROKER <= 5
