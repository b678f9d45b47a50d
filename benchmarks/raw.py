"""Measure how fast this machine can send messages to Redis at all.

    python -m benchmarks.raw [--messages 10000]

The messages are prepared by django-dcron's dispatcher. ``kombu`` publishes them in batches of 500
over one connection. ``redis`` sends the same bytes with LPUSH in pipelines of 500. The result is
the best of five rounds, because a limit is what an undisturbed machine reaches.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from benchmarks.arrivals import BROKER, QUEUE
from benchmarks.command import run
from benchmarks.place import Place

ROUNDS = 5
BATCH = 500


def measure(place: Place, messages: int) -> dict[str, Any]:
    import redis
    from django.conf import settings

    client = redis.Redis(unix_socket_path=str(settings.REDIS_SOCKET), db=BROKER)
    prepared, publish = _kombu(messages)
    kombu = _best(lambda: publish(prepared), client)
    raw = [client.lindex(QUEUE, n) for n in range(messages)]
    pipeline = _best(lambda: _push(client, raw), client)
    return {
        "messages": messages,
        "bytes": len(raw[0]),
        "kombu": messages / kombu,
        "redis": messages / pipeline,
    }


def _kombu(messages: int) -> tuple[list[Any], Callable[[list[Any]], None]]:
    from django_dcron.dispatch.base import DueRun
    from django_dcron.dispatch.celery import CeleryDispatcher
    from django_dcron.models.run import new_run_id

    dispatcher, now = CeleryDispatcher(), datetime.now(UTC)
    prepared = [
        dispatcher.prepare(DueRun(new_run_id(), 1, now, n, f"job-{n}", "tests.app.tasks.ok"))
        for n in range(messages)
    ]
    return prepared, dispatcher.publish


def _push(client: Any, messages: list[bytes]) -> None:
    for start in range(0, len(messages), BATCH):
        with client.pipeline(transaction=False) as pipeline:
            for message in messages[start : start + BATCH]:
                pipeline.lpush(QUEUE, message)
            pipeline.execute()


def _best(publish: Callable[[], None], client: Any) -> float:
    """Return the seconds of the fastest round. The messages of the last round stay in the queue."""
    seconds = []
    for _ in range(ROUNDS):
        client.delete(QUEUE)
        began = time.perf_counter()
        publish()
        seconds.append(time.perf_counter() - began)
    return min(seconds)


if __name__ == "__main__":
    run(__doc__, measure, messages=10_000)
