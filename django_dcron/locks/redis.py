"""RedisLock: one key per lock, its value the holder, its expiry Redis's own.

Each operation is one request; the two that write are Lua scripts, which Redis runs alone, so nobody sees half of one.
All keys share the hash tag ``{dcron}`` and thereby, in a Redis Cluster, the node that one script needs. The cache's
KEY_PREFIX is part of each key: sites that share a Redis keep apart their locks as they keep apart their cache.

What Redis cannot promise: a failover to a replica may forget the last locks, a Redis that evicts keys may drop them,
and its expiry follows its wall clock. Locks only save work, so none of this can double a run.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from datetime import timedelta
from math import ceil
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

from django.conf import settings
from django.core.cache import caches
from django.core.exceptions import ImproperlyConfigured
from django.utils.module_loading import import_string
from redis import Redis
from redis.exceptions import RedisClusterException, RedisError, ResponseError

from django_dcron.exceptions import LockUnavailable
from django_dcron.locks.base import CLOCK_TICK, Lease, checked_lease, checked_names, checked_text

TIMEOUT = 2.0
"""Seconds to wait for a connection, and for an answer, where the cache's own configuration does not say."""

# KEYS: the locks. ARGV: holder, lease in milliseconds. Answers 1 (held now) or 0 for each key.
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
    """The lock kept in the Redis of cache ``alias``, by default DCRON_CACHE; it must be a django-redis cache.

    An unreachable Redis is noticed within the cache's SOCKET_CONNECT_TIMEOUT plus SOCKET_TIMEOUT, each 2 s unless the
    project says otherwise; retries the project configures for that cache come on top.
    """

    def __init__(self, alias: str | None = None) -> None:
        from django_dcron.conf import settings as dcron

        self.alias = alias or dcron.CACHE
        cache = _impatient_cache(self.alias)
        self._prefix = f"{cache.key_prefix}:" if cache.key_prefix else ""
        self._client: Redis = cache.client.get_client(write=True)
        # Called with EVALSHA; a Redis that does not know the script (restarted, flushed) is taught it on the way.
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
        return [Lease(name, holder, expires_at) for name, held in zip(names, answer, strict=True) if held]

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
        return {name: _text(value) for name, value in zip(names, values, strict=True) if value is not None}

    def problems(self) -> list[str]:
        """What of this Redis may lose locks, and what to do about it; as far as it may be asked."""
        with self._driver_errors():
            try:
                memory: Any = self._client.info("memory")
            except ResponseError:
                return []  # some rented ones do not tell
        servers = [
            memory,
            *(part for part in memory.values() if isinstance(part, dict)),
        ]  # a cluster: by server
        policies = {server["maxmemory_policy"] for server in servers if "maxmemory_policy" in server}
        return [
            f"The Redis of cache {self.alias!r} has maxmemory-policy {policy}: short of memory it evicts shard locks, and "
            "if it is the broker too, messages. Set it to noeviction, or name another cache in DCRON_CACHE."
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
                f"The locks in Redis (cache {self.alias!r}) cannot be used: {error}"
            ) from error

    def _reconnect_next_time(self) -> None:
        """After a failover the same address leads to another server; an open connection would stay with the old one."""
        pool = getattr(self._client, "connection_pool", None)
        if pool is not None:  # a cluster's client has several, and sees to them itself
            pool.disconnect(inuse_connections=False)


def _impatient_cache(alias: str) -> Any:
    """The cache ``alias`` over connections of its own that never wait for ever.

    The cache itself keeps the timeouts its project chose, or none. django-redis pools connections by URL and Redis's
    URLs carry timeouts, so the same cache with the timeouts in its URL is all it takes, for Sentinel and custom
    clients too.
    """
    if alias not in settings.CACHES:
        raise ImproperlyConfigured(f"DCRON_CACHE is {alias!r}, which CACHES does not have.")
    configuration: dict[str, Any] = dict(settings.CACHES[alias])
    backend = configuration.pop("BACKEND")
    if not hasattr(caches[alias], "client"):
        raise ImproperlyConfigured(
            f"Locks in Redis need a django-redis cache; CACHES[{alias!r}] is a {backend}. "
            'Name another with DCRON_CACHE, or keep the locks elsewhere: DCRON_LOCK = "database".'
        )
    location = configuration.pop("LOCATION")
    urls = location.split(",") if isinstance(location, str) else location
    options = configuration.get("OPTIONS", {})
    return import_string(backend)([_with_timeouts(url, options) for url in urls], configuration)


def _with_timeouts(url: str, options: dict[str, Any]) -> str:
    """``url`` with each timeout that neither it nor the cache's ``options`` set."""
    scheme, query = urlsplit(url).scheme, parse_qs(urlsplit(url).query)
    chosen = {*query, *options.get("CONNECTION_POOL_KWARGS", {}), *(name.lower() for name in options)}
    wanted = ["socket_timeout"] if scheme == "unix" else ["socket_timeout", "socket_connect_timeout"]
    missing = {name: TIMEOUT for name in wanted if name not in chosen}
    if not missing:
        return url
    return f"{url}{'&' if query else '?'}{urlencode(missing)}"


def _text(value: bytes | str) -> str:
    return value if isinstance(value, str) else value.decode()  # a cache may be set to decode its responses
