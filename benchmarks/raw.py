"""Measure how fast messages reach Redis, and the fastest rate that Redis accepts.

    python -m benchmarks.raw [--messages 10000]

``dispatcher`` publishes runs that were prepared ahead of time with django-dcron's dispatcher.
``kombu`` publishes them through kombu, in batches of 500. ``redis`` sends the same bytes with plain
redis-py, in pipelines of 500 LPUSH commands. All use one connection. They take turns, and the
result is the best of five rounds, because a limit is what an undisturbed machine reaches.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from benchmarks.arrivals import BROKER, QUEUE
from benchmarks.command import run
from benchmarks.testbed import Testbed

ROUNDS = 5
BATCH = 500


def measure(testbed: Testbed, messages: int) -> dict[str, Any]:
    import redis
    from django.conf import settings

    from django_dcron.dispatch import redis_queue
    from django_dcron.dispatch.celery import CeleryDispatcher

    client = redis.Redis(unix_socket_path=str(settings.REDIS_SOCKET), db=BROKER)
    direct, by_kombu = CeleryDispatcher(), CeleryDispatcher()
    known = redis_queue.KNOWN_VERSIONS
    redis_queue.KNOWN_VERSIONS = frozenset()  # so that this dispatcher leaves all to kombu
    by_kombu.publish([by_kombu.prepare(run) for run in _runs(1)])
    redis_queue.KNOWN_VERSIONS = known
    direct.publish([direct.prepare(run) for run in _runs(1)])

    seconds: dict[str, list[float]] = {"dispatcher": [], "kombu": [], "redis": []}
    size = 0
    for _ in range(ROUNDS):
        runs = _runs(messages)
        for name, dispatcher in (("kombu", by_kombu), ("dispatcher", direct)):
            prepared = [dispatcher.prepare(run) for run in runs]
            client.delete(QUEUE)
            seconds[name].append(_time(_publish, dispatcher, prepared))
            assert client.llen(QUEUE) == messages
        raw = client.lrange(QUEUE, 0, -1)
        size = len(raw[0])
        client.delete(QUEUE)
        seconds["redis"].append(_time(_push, client, raw))
    rates = {name: messages / min(rounds) for name, rounds in seconds.items()}
    return {
        "messages": messages,
        "bytes": size,
        **rates,
        "dispatcher_to_redis": rates["dispatcher"] / rates["redis"],
    }


def _runs(number: int) -> list[Any]:
    from django_dcron.dispatch.base import DueRun
    from django_dcron.models.run import new_run_id

    now = datetime.now(UTC)
    return [
        DueRun(new_run_id(), 1, now, n, f"job-{n}", "tests.app.tasks.ok") for n in range(number)
    ]


def _publish(dispatcher: Any, prepared: list[Any]) -> None:
    for start in range(0, len(prepared), dispatcher.batch_size):
        dispatcher.publish(prepared[start : start + dispatcher.batch_size])


def _push(client: Any, messages: list[bytes]) -> None:
    for start in range(0, len(messages), BATCH):
        with client.pipeline(transaction=False) as pipeline:
            for message in messages[start : start + BATCH]:
                pipeline.lpush(QUEUE, message)
            pipeline.execute()


def _time(work: Callable[..., None], *args: Any) -> float:
    began = time.perf_counter()
    work(*args)
    return time.perf_counter() - began


if __name__ == "__main__":
    run(__doc__, measure, messages=10_000)
