"""An unreliable broker: a repeated message starts once, and a lost one is dispatched again."""

import json
import random
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from redis import Redis

from django_dcron.models import Attempt, Run
from tests import services
from tests.cluster.cluster import TIMEOUT, Cluster, shorter_durations
from tests.waiting import wait_until

pytestmark = [pytest.mark.chaos, pytest.mark.postgresql, pytest.mark.mariadb]

WIRE, DESTINATION = "wire", "celery"


class BadWire:
    """Relay messages from the nodes' queue to the workers', but lose, repeat and reorder some."""

    def __init__(self, server: services.Server):
        self.loses = True
        """Whether every third message is lost."""
        self.taken = self.repeated = 0
        self.lost: list[str] = []
        """The ids of the runs whose messages were lost."""
        self._redis = Redis(unix_socket_path=str(server.answers_at), db=1)
        self._held: list[bytes] = []
        self._cut = threading.Event()
        self._thread = threading.Thread(target=self._carry, name="wire")

    def _carry(self) -> None:
        while not self._cut.is_set():
            if item := self._redis.brpop([WIRE], timeout=0.2):
                self._pass_on(item[1])
            elif self._held:
                self._deliver(self._held.pop())

    def _pass_on(self, message: bytes) -> None:
        self.taken += 1
        if self.loses and self.taken % 3 == 0:
            attempt: str = json.loads(message)["headers"]["id"]
            self.lost.append(attempt.rpartition(".")[0])
            return
        self.repeated += 1
        self._deliver(message)
        if random.random() < 0.5:  # while the first delivery executes, or long after
            self._deliver(message)
            return
        self._held.append(message)
        random.shuffle(self._held)
        if len(self._held) > 10:
            self._deliver(self._held.pop())

    def _deliver(self, message: bytes) -> None:
        envelope = json.loads(message)
        # The broker numbers each delivery.
        envelope["properties"]["delivery_tag"] = str(uuid.uuid4())
        self._redis.lpush(DESTINATION, json.dumps(envelope))

    @contextmanager
    def carrying(self) -> Iterator["BadWire"]:
        self._thread.start()
        try:
            yield self
        finally:
            self._cut.set()
            self._thread.join()
            self._redis.close()


def test_lost_duplicate_and_reordered_messages_start_each_run_once(
    cluster: Cluster, redis_server: services.Server
) -> None:
    impatient = shorter_durations(REDELIVER_AFTER=2)
    with BadWire(redis_server).carrying() as wire:
        cluster.start(
            jobs=8, node_env=impatient, worker_env=impatient, queue=WIRE, kwargs={"seconds": 0.1}
        )
        dispatched = Run.objects.exclude(state__in=("pending", "waiting"))
        wait_until(
            lambda: len(set(wire.lost)) >= 10 and dispatched.count() >= 30,
            TIMEOUT,
            what="messages to be lost and runs to be dispatched",
            interval=0.2,
        )
        wire.loses = False
        cluster.account()
    assert set(dispatched.values_list("state", "attempt")) == {("succeeded", 1)}
    assert wire.repeated >= dispatched.count() >= 30
    assert dispatched.filter(pk__in=wire.lost).count() == len(set(wire.lost)) >= 10
    assert not Attempt.objects.exclude(outcome="succeeded").exists()
