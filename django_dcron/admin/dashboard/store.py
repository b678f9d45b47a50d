"""Keep rendered sections in the project's cache, so that viewers and processes share them.

Invariants:

- An unreachable or missing cache breaks nothing. This process then keeps its own copies for
  ``RETRY_AFTER`` seconds before it tries the cache again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from time import monotonic
from typing import Any

from django.core.cache import caches
from django.core.cache.backends.dummy import DummyCache
from django.core.cache.backends.locmem import LocMemCache

from django_dcron.conf import settings

PREFIX = "django_dcron.dashboard:"
RETRY_AFTER = 30.0


class Store:
    def __init__(self) -> None:
        self._own = LocMemCache(PREFIX, {})
        self._unusable_until = 0.0

    def get_many(self, keys: Iterable[str]) -> dict[str, Any]:
        found: dict[str, Any] = self._call("get_many", [PREFIX + key for key in keys])
        return {key.removeprefix(PREFIX): value for key, value in found.items()}

    def get(self, key: str) -> Any:
        return self._call("get", PREFIX + key)

    def set_many(self, values: Mapping[str, Any], seconds: int) -> None:
        self._call("set_many", {PREFIX + key: value for key, value in values.items()}, seconds)

    def add(self, key: str, seconds: int) -> bool:
        """Return whether the key was free and is now taken for this many seconds."""
        return bool(self._call("add", PREFIX + key, 1, seconds))

    def delete(self, key: str) -> None:
        self._call("delete", PREFIX + key)

    def _call(self, method: str, *values: Any) -> Any:
        if monotonic() >= self._unusable_until:
            try:
                cache = caches[settings.CACHE]
                if not isinstance(cache, DummyCache):
                    return getattr(cache, method)(*values)
            except Exception:  # each backend raises its own errors
                self._unusable_until = monotonic() + RETRY_AFTER
        return getattr(self._own, method)(*values)


store = Store()
