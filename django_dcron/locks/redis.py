"""RedisLock: one key per lock. The value is the holder, and Redis expires the key.

Each operation is one request. The two that write are Lua scripts, which Redis executes atomically.
All keys share the hash tag ``{dcron}``, so a Redis Cluster stores them on one node. Scripts require
this. The cache's ``KEY_PREFIX`` is part of each key. Sites that share a Redis database need
different prefixes, or they share the locks.

Redis doesn't guarantee that locks survive a failover to a replica, or eviction. It expires keys by
its wall clock. Locks only save work, so none of this can start a run twice.
"""

from __future__ import annotations

import re
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from datetime import timedelta
from math import ceil
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

from django.conf import settings
from django.core.cache import caches
from django.core.exceptions import ImproperlyConfigured
from django.utils.module_loading import import_string
from redis import Redis
from redis.exceptions import RedisClusterException, RedisError, ResponseError

from django_dcron.exceptions import LockUnavailable
from django_dcron.locks.base import CLOCK_TICK, Lease, checked_lease, checked_names, checked_text

TIMEOUT = 2.0
"""Seconds to wait for a connection and for an answer, unless the cache's configuration sets a
timeout.
"""

# KEYS: the locks. ARGV: holder, lease in milliseconds. Returns 1 (held) or 0 for each key.
HOLD = """
local answer = {}
for i, key in ipairs(KEYS) do
    local holder = redis.call('GET', key)
    if not holder or holder == ARGV[1] then
        redis.call('SET', key, ARGV[1], 'PX', ARGV[2])
        answer[i] = 1
    else
        answer[i] = 0
    end
end
return answer
"""

# KEYS: the locks. ARGV: holder.
RELEASE = """
for _, key in ipairs(KEYS) do
    if redis.call('GET', key) == ARGV[1] then
        redis.call('DEL', key)
    end
end
"""


class RedisLock:
    """Locks in the Redis of cache ``alias``, by default ``DCRON_CACHE``.

    The cache must be a django-redis cache. An unreachable Redis is detected within the cache's
    ``SOCKET_CONNECT_TIMEOUT`` plus ``SOCKET_TIMEOUT``. Each is 2 s unless the project sets it.
    Retries that the project configures add to this time.
    """

    def __init__(self, alias: str | None = None) -> None:
        from django_dcron.conf import settings as dcron

        self.alias = alias or dcron.CACHE
        cache = _cache_with_timeouts(self.alias)
        self._prefix = f"{cache.key_prefix}:" if cache.key_prefix else ""
        self._client = _client_of(cache, self.alias)
        # Called with EVALSHA. After a restart or flush of Redis, the client loads the script again.
        self._hold = self._client.register_script(HOLD)
        self._release = self._client.register_script(RELEASE)

    def hold(self, names: Collection[str], holder: str, lease: timedelta) -> list[Lease]:
        names, value = checked_names(names), checked_text(holder, "holder").encode()
        milliseconds = ceil((checked_lease(lease) + CLOCK_TICK) / timedelta(milliseconds=1))
        if not names:
            return []
        expires_at = time.monotonic() + lease.total_seconds()
        with self._driver_errors():
            answer = self._hold(keys=self._keys(names), args=[value, milliseconds])
        return [
            Lease(name, holder, expires_at)
            for name, held in zip(names, answer, strict=True)
            if held
        ]

    def release(self, names: Collection[str], holder: str) -> None:
        names, value = checked_names(names), checked_text(holder, "holder").encode()
        if not names:
            return
        with self._driver_errors():
            self._release(keys=self._keys(names), args=[value])

    def holders(self, names: Collection[str]) -> dict[str, str]:
        names = checked_names(names)
        if not names:
            return {}
        with self._driver_errors():
            values: Any = self._client.mget(self._keys(names))
        return {
            name: _text(value)
            for name, value in zip(names, values, strict=True)
            if value is not None
        }

    def problems(self) -> list[str]:
        """Return warnings about a configuration that may lose locks, each with its remedy.

        Empty if there is none, or if Redis refuses INFO.
        """
        with self._driver_errors():
            try:
                memory: Any = self._client.info("memory")
            except ResponseError:
                return []  # Some hosted Redis servers refuse INFO.
        # A cluster answers with a dict for each server.
        servers = [memory, *(part for part in memory.values() if isinstance(part, dict))]
        policies = {
            server["maxmemory_policy"] for server in servers if "maxmemory_policy" in server
        }
        return [
            f"The Redis of cache {self.alias!r} has maxmemory-policy {policy}. If memory is short, "
            f"Redis evicts {_evicted_by(policy)}. Set the policy to noeviction, or name another "
            "cache in DCRON_CACHE."
            for policy in sorted(policies - {"noeviction"})
        ]

    def _keys(self, names: Collection[str]) -> list[bytes]:
        return [f"{self._prefix}{{dcron}}:lock:{name}".encode() for name in names]

    @contextmanager
    def _driver_errors(self) -> Iterator[None]:
        try:
            yield
        except (RedisError, RedisClusterException, OSError) as error:
            self._reconnect_next_time()
            raise LockUnavailable(
                f"Can't use the locks in Redis (cache {self.alias!r}): {error}"
            ) from error

    def _reconnect_next_time(self) -> None:
        """Disconnect, so that the next request connects again.

        After a failover, an open connection would stay with the old server.
        """
        pool = getattr(self._client, "connection_pool", None)
        # The client of a cluster has several pools and reconnects them itself.
        if pool is not None:
            pool.disconnect(inuse_connections=False)


def _evicted_by(policy: str) -> str:
    """Return the data of django-dcron and Celery that Redis may evict."""
    if policy.startswith("volatile-"):
        # These policies evict only keys that expire. Celery's lists of messages don't expire.
        return "shard locks"
    return "shard locks and, if it is also the broker, messages"


def _client_of(cache: Any, alias: str) -> Redis:
    try:
        client: Redis = cache.client.get_client(write=True)
    except NotImplementedError as error:  # ShardClient
        raise ImproperlyConfigured(
            "Redis locks need a single Redis server or cluster, but the client class of "
            f"CACHES[{alias!r}] is {type(cache.client).__name__}. Set DCRON_CACHE to a cache with "
            'another client class, or set DCRON_LOCK = "database".'
        ) from error
    return client


def _cache_with_timeouts(alias: str) -> Any:
    """Return the cache ``alias`` with separate connections that never wait forever.

    The cache itself keeps the project's timeouts. django-redis pools connections by URL, and Redis
    URLs may contain timeouts. A copy of the cache with timeouts in its URL therefore has separate
    connections. This also works for Sentinel and custom clients.
    """
    if alias not in settings.CACHES:
        raise ImproperlyConfigured(
            f"CACHES has no cache {alias!r}. Set DCRON_CACHE to one of: "
            f"{', '.join(sorted(settings.CACHES))}."
        )
    configuration: dict[str, Any] = dict(settings.CACHES[alias])
    backend = configuration.pop("BACKEND")
    if not hasattr(caches[alias], "client"):
        raise ImproperlyConfigured(
            f"Redis locks need a django-redis cache, but CACHES[{alias!r}] is a {backend}. "
            'Set DCRON_CACHE to a django-redis cache, or set DCRON_LOCK = "database".'
        )
    location = configuration.pop("LOCATION")
    urls = location.split(",") if isinstance(location, str) else location
    options = configuration.get("OPTIONS", {})
    return import_string(backend)([_with_timeouts(url, options) for url in urls], configuration)


def _with_timeouts(url: str, options: dict[str, Any]) -> str:
    """Return ``url`` with each timeout that neither it nor the cache's ``options`` set."""
    parts = urlsplit(url)
    query = parse_qsl(parts.query)  # without blank values, which redis-py ignores
    needed = ["socket_timeout"]
    if parts.scheme != "unix":
        needed.append("socket_connect_timeout")
    configured = {
        **{name: options.get(name.upper()) for name in needed},
        **options.get("CONNECTION_POOL_KWARGS", {}),
        **dict(query),
    }
    # django-redis ignores the options None and 0.
    missing = {name: TIMEOUT for name in needed if not configured.get(name)}
    if not missing:
        return url
    # Not geturl(), which returns unix:/path for unix:///path in Python 3.11.
    base = re.split("[?#]", url, maxsplit=1)[0]
    return f"{base}?{urlencode([*query, *missing.items()])}"


def _text(value: bytes | str) -> str:
    # The cache may be configured to decode responses.
    return value if isinstance(value, str) else value.decode()
