"""The locks follow a failover of Redis that Sentinel decides."""

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from django.core.cache import caches
from pytest_django import Settings
from redis import Redis
from redis.exceptions import ConnectionError

from django_dcron.exceptions import LockUnavailable
from django_dcron.locks.redis import RedisLock
from tests import services
from tests.waiting import wait_until

LONG = timedelta(minutes=5)
CONFIG = """
port {port}
sentinel monitor dcron 127.0.0.1 {primary} 1
sentinel down-after-milliseconds dcron 500
sentinel failover-timeout dcron 1000
"""


def process(name: str, *command: object) -> services.Process:
    return services.Process(name, [services.REDIS_SERVER, *map(str, command)])


@pytest.fixture
def ports() -> dict[str, int]:
    names = ("primary", "replica", "sentinel")
    return dict(zip(names, services.free_ports(3), strict=True))


@pytest.fixture
def primary(tmp_path: Path, ports: dict[str, int]) -> Iterator[services.Process]:
    """Start a primary server, a replica and a Sentinel that knows both. Return the primary."""
    config = tmp_path / "sentinel.conf"
    config.write_text(CONFIG.format(port=ports["sentinel"], primary=ports["primary"]))
    options = ("--save", "", "--dir", tmp_path)
    primary = process("primary", "--port", ports["primary"], *options)
    of_primary = ("--replicaof", "127.0.0.1", ports["primary"])
    replica = process("replica", "--port", ports["replica"], *of_primary, *options)
    sentinel = process("sentinel", config, "--sentinel")
    started = [primary, replica, sentinel]
    try:
        for each in started:
            each.start()
        wait_until(lambda: knows_replica(ports["sentinel"]), what="Sentinel to find the replica")
        yield primary
    finally:
        services.stop_all(started)


def knows_replica(port: int) -> bool:
    try:
        found = Redis(port=port).sentinel_master("dcron")
    except ConnectionError:
        return False
    return bool(found["num-slaves"])


def test_locks_are_held_in_the_new_primary_after_a_failover(
    primary: services.Process, ports: dict[str, int], settings: Settings
) -> None:
    settings.DJANGO_REDIS_CONNECTION_FACTORY = "django_redis.pool.SentinelConnectionFactory"
    settings.CACHES = {
        "default": {
            "BACKEND": "django_redis.cache.RedisCache",
            "LOCATION": "redis://dcron/0",
            "OPTIONS": {
                "CLIENT_CLASS": "django_redis.client.SentinelClient",
                "SENTINELS": [("127.0.0.1", ports["sentinel"])],
            },
        }
    }
    lock = RedisLock()

    def holds() -> bool:
        try:
            return bool(lock.hold(["shard:1"], "a", LONG))
        except LockUnavailable:
            return False

    assert holds()
    primary.kill()
    wait_until(holds, what="the locks to be held in the new primary")
    assert Redis(port=ports["replica"]).keys("*lock:shard:1") != []
    caches["default"].close()
