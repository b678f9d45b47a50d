"""Locks with leases: ``get_lock()`` gives the one the settings choose. What a lock promises is in ``base``."""

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
    """A new lock of ``kind``: "redis", "database", "file" or the dotted path of a Lock class, called without arguments.

    None means the setting DCRON_LOCK. Contacts no server. Raises ``ImproperlyConfigured`` if there is no such lock.
    """
    from django_dcron.conf import settings as dcron

    kind = kind or dcron.LOCK
    path = _BACKENDS.get(kind, kind)
    try:
        backend: Any = import_string(path)  # each backend's libraries are needed only by those who choose it
    except ImportError as error:
        allowed = ", ".join(f'"{name}"' for name in _BACKENDS)
        raise ImproperlyConfigured(
            f"The lock {kind!r} cannot be imported ({error}); allowed: {allowed} or the dotted path of a Lock class."
        ) from error
    lock = backend()
    if not isinstance(lock, Lock):
        raise ImproperlyConfigured(
            f"The lock {kind!r} is no Lock: it lacks one of hold, release and holders."
        )
    return lock
