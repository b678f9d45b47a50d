"""The lock that the settings select."""

from collections.abc import Collection
from datetime import timedelta
from pathlib import Path

import pytest
from django.core.exceptions import ImproperlyConfigured
from pytest_django import Settings

from django_dcron.locks import Lease, Lock, get_lock
from django_dcron.locks.database import DatabaseLock
from django_dcron.locks.file import FileLock
from django_dcron.locks.redis import RedisLock


class OwnLock:
    """A project's own lock, selected by its dotted path."""

    def hold(self, names: Collection[str], holder: str, lease: timedelta) -> list[Lease]:
        return []

    def release(self, names: Collection[str], holder: str) -> None: ...

    def holders(self, names: Collection[str]) -> dict[str, str]:
        return {}


BACKENDS = {
    "redis": RedisLock,
    "database": DatabaseLock,
    "file": FileLock,
    f"{__name__}.OwnLock": OwnLock,
}


def test_redis_is_the_default() -> None:
    assert isinstance(get_lock(), RedisLock)


@pytest.mark.parametrize(("kind", "backend"), BACKENDS.items())
def test_lock_is_selected_by_setting_or_argument(
    kind: str, backend: type[Lock], settings: Settings, tmp_path: Path
) -> None:
    settings.DCRON_LOCK_DIR = tmp_path
    assert isinstance(get_lock(kind), backend)
    settings.DCRON_LOCK = kind
    assert isinstance(get_lock(), backend)


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("zookeeper", "Allowed: "),
        ("no.such.Lock", "no.such.Lock"),
        ("datetime.timedelta", "must have hold, release and holders"),
    ],
)
def test_invalid_lock_is_refused(kind: str, why: str) -> None:
    with pytest.raises(ImproperlyConfigured, match=why):
        get_lock(kind)
