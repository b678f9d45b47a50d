"""Measure when messages arrive at the broker, in the same way for every contestant.

The length of the queue's list in Redis, sampled about every millisecond, shows when the k-th
message had arrived. The messages, read afterwards, show their jobs. A message's time is that of the
first sample that counts it. A time can be too late by up to one sampling interval, but never too
early. All clocks are those of this machine.
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
    """The list in Redis that every contestant publishes to. Nobody consumes from it."""

    def __init__(self) -> None:
        import redis
        from django.conf import settings

        self._redis = redis.Redis(unix_socket_path=str(settings.REDIS_SOCKET), db=BROKER)
        self._samples: list[tuple[float, int]] = []

    def empty(self) -> None:
        """Delete everything in Redis, including locks and schedules."""
        self._redis.flushall()
        self._samples = []

    def watch(self, expected: int, until: float, publisher: Process) -> int:
        """Sample until ``expected`` messages have arrived, and return the number of messages.

        Stop early at the time ``until`` (a Unix timestamp), or when the publisher exits.
        """
        length = 0
        while length < expected and time.time() < until and publisher.running:
            current = self._redis.llen(QUEUE)
            if current > length:
                length = current
                self._samples.append((time.time(), length))
            time.sleep(0.001)
        return length

    def arrivals(self) -> Iterator[Arrival]:
        """Yield the messages, oldest first, each with the time of its first sample."""
        newest_first = self._redis.lrange(QUEUE, 0, -1)  # kombu pushes on the left
        oldest_first = reversed(newest_first)
        counted = 0
        for at, length in self._samples:
            for _ in range(length - counted):
                yield Arrival(json.loads(next(oldest_first)), at)
            counted = length


def job_of(message: dict[str, Any]) -> str:
    """Return the message's job.

    django-dcron sends it in a header, the other contestants as the task's argument.
    """
    job = message["headers"].get("dcron_job")
    if job is None:
        (job,), *_ = json.loads(base64.b64decode(message["body"]))
    return str(job)
