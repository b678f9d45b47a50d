"""A node's SQLite connections take the write lock at the start of a transaction."""

import sqlite3
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from django.db import connections, transaction

from django_dcron.db import sqlite_writes
from django_dcron.db.sqlite_writes import early_write_locks
from django_dcron.utils.threads import DcronThread, in_dcron_thread, mark_dcron_thread


@pytest.fixture
def plain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, django_db_blocker: Any) -> Iterator[str]:
    """A database with Django's defaults for SQLite."""
    configured = connections.configure_settings(
        {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": tmp_path / "db"}}
    )["default"]
    monkeypatch.setitem(connections.settings, "plain", configured)
    with django_db_blocker.unblock():
        yield "plain"
        connections["plain"].close()
    del connections["plain"]


def is_locked(path: Path) -> bool:
    other = sqlite3.connect(path, timeout=0)
    try:
        other.execute("BEGIN IMMEDIATE")
    except sqlite3.OperationalError:
        return True
    else:
        return False
    finally:
        other.close()


def locks_at_start(using: str, path: Path) -> bool:
    with transaction.atomic(using=using), connections[using].cursor() as cursor:
        cursor.execute("SELECT 1 FROM sqlite_master")
        return is_locked(path)


def test_write_lock_is_taken_early_only_within_the_context(plain: str, tmp_path: Path) -> None:
    assert not locks_at_start(plain, tmp_path / "db")
    with early_write_locks(plain):
        assert locks_at_start(plain, tmp_path / "db")
        with connections[plain].cursor() as cursor:
            cursor.execute("PRAGMA busy_timeout")
            assert cursor.fetchone()[0] == sqlite_writes.BUSY_TIMEOUT_MS
    assert not locks_at_start(plain, tmp_path / "db")


def test_transaction_mode_of_the_project_is_kept(plain: str, tmp_path: Path) -> None:
    connections.settings[plain]["OPTIONS"] = {"transaction_mode": "DEFERRED"}
    with early_write_locks(plain):
        assert not locks_at_start(plain, tmp_path / "db")


def test_write_lock_is_taken_early_only_in_threads_of_a_node(plain: str, tmp_path: Path) -> None:
    def check() -> bool:
        try:
            return locks_at_start(plain, tmp_path / "db")
        finally:
            connections.close_all()

    answers: list[bool] = []
    with early_write_locks(plain, applies=in_dcron_thread):
        for kind in (DcronThread, threading.Thread):
            thread = kind(target=lambda: answers.append(check()))
            thread.start()
            thread.join()
        with ThreadPoolExecutor(1, initializer=mark_dcron_thread) as pool:
            answers.append(pool.submit(check).result())
    assert answers == [True, False, True]
