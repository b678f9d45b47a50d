"""Locks with leases: ``get_lock()`` returns the configured lock. ``base`` lists the guarantees."""

from __future__ import annotations

from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.utils.module_loading import import_string

from django_dcron.locks.base import Lease, Lock

__all__ = ["Lease", "Lock", "get_lock"]

_BACKENDS = {
    "redis": "django_dcron.locks.redis.RedisLock",
    "database": "django_dcron.locks.database.DatabaseLock",
    "file": "django_dcron.locks.file.FileLock",
}


def get_lock(kind: str | None = None) -> Lock:
    """Return a new lock: "redis", "database", "file" or the dotted path of a Lock class.

    None means ``DCRON_LOCK``. A class is called without arguments. Contacts no server. Raises
    ``ImproperlyConfigured`` if there is no such lock.
    """
    from django_dcron.conf import settings as dcron

    kind = kind or dcron.LOCK
    path = _BACKENDS.get(kind, kind)
    try:
        # Only the chosen backend is imported, with the libraries that it needs.
        backend: Any = import_string(path)
    except ImportError as error:
        allowed = ", ".join(f'"{name}"' for name in _BACKENDS)
        raise ImproperlyConfigured(
            f"Can't import the lock {kind!r} ({error}). Allowed: {allowed}, or the dotted path of "
            "a Lock class."
        ) from error
    lock = backend()
    if not isinstance(lock, Lock):
        raise ImproperlyConfigured(
            f"The lock {kind!r} isn't a Lock: it must have hold, release and holders."
        )
    return lock
