"""Cases that only the lock in Redis has: its keys, its scripts, its errors."""

import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from django_redis import get_redis_connection
from pytest_django import Settings
from redis import Redis
from redis.connection import parse_url
from redis.crc import key_slot

from django_dcron.exceptions import LockUnavailable
from django_dcron.locks.redis import RedisLock, _with_timeouts
from tests import services
from tests.waiting import wait_until

LONG = timedelta(minutes=5)
ALL = [f"shard:{number:02}" for number in range(64)]


@pytest.fixture
def redis(redis_server: services.Server) -> Redis:
    connection: Redis = get_redis_connection("default")
    return connection


@pytest.fixture
def lock(redis: Redis) -> RedisLock:
    return RedisLock()


def calls(redis: Redis) -> dict[str, int]:
    stats: dict[str, Any] = redis.info("commandstats")
    # Don't count the commands within scripts and the handshake of a connection.
    return {
        name: stat["calls"] for name, stat in stats.items() if "eval" in name or "script" in name
    }


def test_hold_sends_one_request_for_any_number_of_names(redis: Redis, lock: RedisLock) -> None:
    lock.hold(["1"], "a", LONG)  # loads the script into Redis
    redis.config_resetstat()
    assert len(lock.hold(ALL, "a", LONG)) == 64
    assert calls(redis) == {"cmdstat_evalsha": 1}


def test_scripts_are_reloaded_after_script_flush(redis: Redis, lock: RedisLock) -> None:
    for _ in range(2):
        redis.script_flush()
        assert lock.hold(["1"], "a", LONG)
        redis.script_flush()
        lock.release(["1"], "a")


def test_keys_live_for_the_lease_and_share_a_cluster_slot(redis: Redis, lock: RedisLock) -> None:
    lock.hold(ALL, "a", timedelta(seconds=100))
    keys: Any = redis.keys("*")
    assert sorted(keys) == sorted(f"{{dcron}}:lock:{name}".encode() for name in ALL)
    assert len({key_slot(key) for key in keys}) == 1
    assert all(99_000 < int(str(redis.pttl(key))) <= 100_001 for key in keys)


def test_sites_with_different_key_prefixes_do_not_conflict(
    lock: RedisLock, settings: Settings
) -> None:
    settings.CACHES = {
        **settings.CACHES,
        "shop": {**settings.CACHES["default"], "KEY_PREFIX": "shop"},
    }
    shop = RedisLock("shop")
    assert lock.hold(["1"], "a", LONG)
    assert shop.hold(["1"], "b", LONG)
    assert (lock.holders(["1"]), shop.holders(["1"])) == ({"1": "a"}, {"1": "b"})


def test_cache_that_decodes_responses_is_supported(lock: RedisLock, settings: Settings) -> None:
    decoding = {"CONNECTION_POOL_KWARGS": {"decode_responses": True}}
    settings.CACHES = {
        **settings.CACHES,
        "decoding": {**settings.CACHES["default"], "OPTIONS": decoding},
    }
    url = settings.CACHES["default"]["LOCATION"]
    # Django-redis pools connections by URL.
    settings.CACHES["decoding"]["LOCATION"] = f"{url}&socket_timeout=3"
    decoded = RedisLock("decoding")
    assert [lease.name for lease in decoded.hold(["1"], "nöde", LONG)] == ["1"]
    assert decoded.holders(["1"]) == lock.holders(["1"]) == {"1": "nöde"}


class TestConfiguration:
    def test_cache_other_than_django_redis_is_refused(self, settings: Settings) -> None:
        settings.CACHES = {"default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}}
        with pytest.raises(ImproperlyConfigured, match="django-redis"):
            RedisLock()

    def test_an_unknown_cache_is_refused(self, settings: Settings) -> None:
        settings.DCRON_CACHE = "nowhere"
        with pytest.raises(ImproperlyConfigured, match=r"'nowhere'.*DCRON_CACHE.*: default"):
            RedisLock()

    def test_a_client_class_with_several_servers_is_refused(self, settings: Settings) -> None:
        options = {"CLIENT_CLASS": "django_redis.client.ShardClient"}
        settings.CACHES = {"default": {**settings.CACHES["default"], "OPTIONS": options}}
        with pytest.raises(ImproperlyConfigured, match=r"'default'.* ShardClient.* DCRON_CACHE"):
            RedisLock()

    @pytest.mark.parametrize(
        ("location", "options", "timeouts"),
        [
            ("redis://h/0", {}, (2.0, 2.0)),
            ("redis://h/1", {"SOCKET_TIMEOUT": 7}, (7, 2.0)),
            ("redis://h/2", {"CONNECTION_POOL_KWARGS": {"socket_connect_timeout": 7}}, (2.0, 7)),
            ("redis://h/3?socket_timeout=7", {}, (7.0, 2.0)),
            (["redis://h/4", "redis://replica/4"], {}, (2.0, 2.0)),
            ("unix:///s?db=1", {}, (2.0, None)),
            ("unix:///s", {}, (2.0, None)),
            ("redis://h/5?", {}, (2.0, 2.0)),
            ("redis://h/5#fragment", {}, (2.0, 2.0)),
            ("redis://h?db=", {}, (2.0, 2.0)),
            ("redis://h/6?client_name=", {}, (2.0, 2.0)),
            ("redis://h/6?socket_timeout=", {}, (2.0, 2.0)),
            ("redis://h/7", {"SOCKET_TIMEOUT": None, "SOCKET_CONNECT_TIMEOUT": 0}, (2.0, 2.0)),
            ("redis://h/8", {"CONNECTION_POOL_KWARGS": {"socket_timeout": None}}, (2.0, 2.0)),
            (
                "redis://h/9",
                {"SOCKET_TIMEOUT": 7, "CONNECTION_POOL_KWARGS": {"socket_timeout": None}},
                (2.0, 2.0),
            ),
        ],
    )
    def test_default_timeouts_apply_unless_the_project_sets_its_own(
        self, settings: Settings, location: Any, options: dict[str, Any], timeouts: tuple[Any, Any]
    ) -> None:
        backend = settings.CACHES["default"]["BACKEND"]
        settings.CACHES = {
            "default": {"BACKEND": backend, "LOCATION": location, "OPTIONS": options}
        }
        pool = RedisLock()._client.connection_pool
        chosen = pool.connection_kwargs
        assert (chosen.get("socket_timeout"), chosen.get("socket_connect_timeout")) == timeouts

    @pytest.mark.parametrize(
        "url",
        [
            "redis://h:7/5?",
            "redis://h?db=5&client_name=",
            "rediss://user:%40%2F%3F%23%25+@h/5?client_name=a%20b%2Bc%26d%3D%25&protocol=3",
            "unix:///run/redis.sock?db=5",
            "unix://user:%40%2F@/run/a%20b.sock",
        ],
    )
    def test_other_parts_of_the_url_stay_equal(self, url: str) -> None:
        with_timeouts = parse_url(_with_timeouts(url, {}))
        for name in ("socket_timeout", "socket_connect_timeout"):
            with_timeouts.pop(name, None)
        assert with_timeouts == parse_url(url)


@pytest.mark.parametrize(
    ("policy", "evicts_messages"), [("allkeys-lru", True), ("volatile-ttl", False)]
)
def test_problems_name_the_data_that_redis_may_evict(
    redis: Redis, lock: RedisLock, policy: str, evicts_messages: bool
) -> None:
    assert lock.problems() == []
    redis.config_set("maxmemory-policy", policy)
    try:
        (problem,) = lock.problems()
    finally:
        redis.config_set("maxmemory-policy", "noeviction")
    assert policy in problem
    assert "shard locks" in problem
    assert ("messages" in problem) is evicts_messages


def read_only(redis: Redis) -> None:
    redis.replicaof("127.0.0.1", 1)
    redis.config_set("replica-serve-stale-data", "yes")


def full(redis: Redis) -> None:
    redis.config_set("maxmemory", 1)


def cannot_save(redis: Redis) -> None:
    redis.config_set("save", "900 1")
    redis.config_set("dbfilename", "no-directory")
    redis.config_set("dir", "/proc")  # not writable
    redis.bgsave()
    wait_until(lambda: redis.info("persistence")["rdb_last_bgsave_status"] == "err")


class TestServerRefuses:
    @pytest.fixture(autouse=True)
    def recovered(self, redis_server: services.Server) -> Iterator[None]:
        yield
        redis_server.kill()  # discards the configuration that the test has changed
        redis_server.start()

    @pytest.mark.parametrize(
        ("spoil", "answer"),
        [(read_only, "read only replica"), (full, "maxmemory"), (cannot_save, "MISCONF")],
        ids=["READONLY", "OOM", "MISCONF"],
    )
    def test_lock_is_unavailable_when_redis_refuses_writes(
        self, redis: Redis, lock: RedisLock, spoil: Callable[[Redis], None], answer: str
    ) -> None:
        lock.hold(["1"], "a", LONG)
        spoil(redis)
        with pytest.raises(LockUnavailable, match=answer):
            lock.hold(["2"], "a", LONG)

    def test_lock_is_unavailable_when_key_has_another_type(
        self, redis: Redis, lock: RedisLock
    ) -> None:
        redis.rpush("{dcron}:lock:1", "x")
        with pytest.raises(LockUnavailable, match="WRONGTYPE"):
            lock.hold(["1"], "a", LONG)

    def test_lock_is_unavailable_when_redis_requires_a_password(
        self, redis: Redis, lock: RedisLock
    ) -> None:
        redis.config_set("requirepass", "secret")
        with pytest.raises(LockUnavailable, match="uthenticat"):
            lock.hold(["1"], "a", LONG)

    def test_lock_is_unavailable_while_redis_is_suspended(
        self, redis_server: services.Server, lock: RedisLock
    ) -> None:
        lock.hold(["1"], "a", LONG)
        redis_server.suspend()
        started = time.monotonic()
        with pytest.raises(LockUnavailable, match="Timeout"):
            lock.hold(["1"], "a", LONG)
        assert time.monotonic() - started < 5
        redis_server.resume()
        assert lock.hold(["1"], "a", LONG)

    def test_lock_works_after_redis_was_killed_and_restarted(
        self, redis_server: services.Server, lock: RedisLock
    ) -> None:
        lock.hold(["1"], "a", LONG)
        redis_server.kill()
        with pytest.raises(LockUnavailable):
            lock.hold(["1"], "a", LONG)
        redis_server.start()
        assert lock.hold(["1"], "b", LONG)  # Redis kept no locks, so the first request gets it
        assert not lock.hold(["1"], "a", LONG)
