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

NODE_QUEUE, WORKER_QUEUE = "from-nodes", "celery"


class UnreliableRelay:
    """Relay messages from the nodes' queue to the workers', but lose, repeat and reorder some."""

    def __init__(self, server: services.Server):
        self.loses = True
        """Whether every third message is lost."""
        self.received = self.repeated = 0
        self.lost: list[str] = []
        """The ids of the runs whose messages were lost."""
        self._redis = Redis(unix_socket_path=str(server.answers_at), db=1)
        self._held: list[bytes] = []
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="relay")

    def _run(self) -> None:
        while not self._stopped.is_set():
            if item := self._redis.brpop([NODE_QUEUE], timeout=0.2):
                self._relay(item[1])
            elif self._held:
                self._deliver(self._held.pop())

    def _relay(self, message: bytes) -> None:
        self.received += 1
        if self.loses and self.received % 3 == 0:
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
        self._redis.lpush(WORKER_QUEUE, json.dumps(envelope))

    @contextmanager
    def running(self) -> Iterator["UnreliableRelay"]:
        self._thread.start()
        try:
            yield self
        finally:
            self._stopped.set()
            self._thread.join()
            self._redis.close()


def test_lost_duplicate_and_reordered_messages_start_each_run_once(
    cluster: Cluster, redis_server: services.Server
) -> None:
    impatient = shorter_durations(REDELIVER_AFTER=2)
    with UnreliableRelay(redis_server).running() as relay:
        cluster.start(
            jobs=8,
            node_env=impatient,
            worker_env=impatient,
            queue=NODE_QUEUE,
            kwargs={"seconds": 0.1},
        )
        dispatched = Run.objects.exclude(state__in=("pending", "waiting"))
        wait_until(
            lambda: len(set(relay.lost)) >= 10 and dispatched.count() >= 30,
            TIMEOUT,
            what="messages to be lost and runs to be dispatched",
            interval=0.2,
        )
        relay.loses = False
        cluster.account()
    assert set(dispatched.values_list("state", "attempt")) == {("succeeded", 1)}
    assert relay.repeated >= dispatched.count() >= 30
    assert dispatched.filter(pk__in=relay.lost).count() == len(set(relay.lost)) >= 10
    assert not Attempt.objects.exclude(outcome="succeeded").exists()
