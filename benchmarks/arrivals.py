"""When messages arrived at the broker, read there: the same for everybody who publishes.

The length of the queue's list in Redis, sampled about every millisecond, says by when the k-th message had arrived; the
messages themselves, read afterwards, say whose they are. A message's time is that of the first sample that counts it, so
a figure is too late by up to a sample's distance, never too early. All clocks are this machine's.
"""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from tests.services import Process

QUEUE = "celery"
BROKER = 1
"""Redis' database number."""


class Arrival(NamedTuple):
    message: dict[str, Any]
    at: float


class Queue:
    """The list in Redis that every contestant publishes to. Nobody consumes meanwhile."""

    def __init__(self) -> None:
        import redis
        from django.conf import settings

        self._redis = redis.Redis(unix_socket_path=str(settings.REDIS_SOCKET), db=BROKER)
        self._samples: list[tuple[float, int]] = []

    def empty(self) -> None:
        """All of Redis: locks and schedules, too."""
        self._redis.flushall()
        self._samples = []

    def watch(self, expected: int, until: float, publisher: Process) -> int:
        """Sample until so many have arrived, the clock says ``until`` or nobody publishes. Returns how many there are."""
        length = 0
        while length < expected and time.time() < until and publisher.running:
            now_long = self._redis.llen(QUEUE)
            if now_long > length:
                length = now_long
                self._samples.append((time.time(), length))
            time.sleep(0.001)
        return length

    def arrivals(self) -> Iterator[Arrival]:
        """The messages, oldest first, each with the time of the first sample that counts it."""
        newest_first = self._redis.lrange(QUEUE, 0, -1)  # kombu pushes at the left
        oldest_first = reversed(newest_first)
        counted = 0
        for at, length in self._samples:
            for _ in range(length - counted):
                yield Arrival(json.loads(next(oldest_first)), at)
            counted = length


def job_of(message: dict[str, Any]) -> str:
    """Whose message it is: django-dcron says so in a header, the other contestants' tasks have it as their argument."""
    job = message["headers"].get("dcron_job")
    if job is None:
        (job,), *_ = json.loads(base64.b64decode(message["body"]))
    return str(job)
