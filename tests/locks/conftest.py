"""Every backend of the lock, each with its real server or store."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from django.db import connections
from django_redis import get_redis_connection
from pytest_django import Settings

from django_dcron.locks import Lock, get_lock
from django_dcron.locks.database import DatabaseLock
from django_dcron.locks.file import LEASE_FILE, FileLock
from django_dcron.locks.redis import RedisLock
from django_dcron.models import LockLease


@dataclass(frozen=True)
class Backend:
    """One backend: its kind, how to clear its store, and a lock whose store is unreachable."""

    kind: str
    clear: Callable[[], object]
    unreachable: Callable[[], Lock]

    def lock(self) -> Lock:
        return get_lock(self.kind)


@pytest.fixture
def file_lock_directory(tmp_path: Path, settings: Settings) -> Path:
    settings.DCRON_LOCK_DIR = tmp_path / "locks"
    return tmp_path / "locks"


@pytest.fixture
def redis_backend(redis_server: object, tmp_path: Path, settings: Settings) -> Backend:
    def unreachable() -> Lock:
        nowhere = {**settings.CACHES["default"], "LOCATION": f"unix://{tmp_path}/nobody.sock"}
        settings.CACHES = {**settings.CACHES, "nowhere": nowhere}
        return RedisLock("nowhere")

    return Backend("redis", lambda: get_redis_connection("default").flushall(), unreachable)


@pytest.fixture
def database_backend(db: None, tmp_path: Path) -> Iterator[Backend]:
    def unreachable() -> Lock:
        nowhere = connections["default"].copy("nowhere")
        where = "NAME" if nowhere.vendor == "sqlite" else "HOST"
        nowhere.settings_dict[where] = str(tmp_path / "nobody" / "home")
        connections["nowhere"] = nowhere
        return DatabaseLock("nowhere")

    yield Backend("database", lambda: LockLease.objects.all().delete(), unreachable)
    with suppress(AttributeError):
        del connections["nowhere"]


@pytest.fixture
def file_backend(file_lock_directory: Path) -> Backend:
    def unreachable() -> Lock:
        obstacle = file_lock_directory.parent / "obstacle"
        obstacle.touch()
        return FileLock(obstacle / "locks")

    return Backend("file", lambda: (file_lock_directory / LEASE_FILE).unlink(), unreachable)


on_real_transactions = pytest.mark.django_db(transaction=True)


@pytest.fixture(params=["redis", pytest.param("database", marks=on_real_transactions), "file"])
def backend(request: pytest.FixtureRequest) -> Backend:
    chosen: Backend = request.getfixturevalue(f"{request.param}_backend")
    return chosen


@pytest.fixture
def lock(backend: Backend) -> Lock:
    return backend.lock()
