"""Cache a reading of the database for all scrapes within ``FRESH`` seconds.

Invariants:

- Ten scrapers cost as much as one.
- No reading is older than ``FRESH``. A scraper with a longer interval sees no counter decrease,
  even if another process answers each scrape.
- None means that the database didn't answer. This result is cached as well.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Generic, TypeVar

from django.db import DatabaseError, InterfaceError, connections

from django_dcron.utils.threads import DcronThread

FRESH = 5.0
BUDGET = 3.0
"""Maximum number of seconds that a scrape waits for the database."""

T = TypeVar("T")


class DirectReading(Generic[T]):
    """Reads on the caller's thread and connection, for Django.

    The project's database settings limit the duration.
    """

    def __init__(self, read: Callable[[], T]):
        self._read = read
        self._lock = threading.Lock()
        self._value: T | None = None
        self._good_until = float("-inf")

    def get(self) -> T | None:
        with self._lock:
            began_at = time.monotonic()
            if began_at >= self._good_until:
                self._value = _read_or_none(self._read)
                self._good_until = began_at + FRESH
                if self._value is None:
                    _drop_connections()
            return self._value


class BackgroundReading(Generic[T]):
    """Reads in a separate thread, one at a time, on a connection that is closed afterward.

    A caller waits at most ``BUDGET`` seconds in total. A database that never answers blocks only
    the separate thread.
    """

    def __init__(self, read: Callable[[], T]):
        self._read = read
        self._lock = threading.Lock()
        self._query: _Query[T] | None = None

    def get(self) -> T | None:
        """Return the reading. Raises its errors, except those of the database."""
        with self._lock:
            query = self._query
            if query is None or query.is_stale():
                query = _Query(self._read)
                query.start()
                self._query = query
        return query.value()


class _Query(Generic[T]):
    def __init__(self, read: Callable[[], T]):
        self._read = read
        self._value: T | None = None
        self._error: BaseException | None = None
        self._began_at = time.monotonic()
        self._ended = threading.Event()

    def start(self) -> None:
        DcronThread(target=self._run, name="dcron-metrics", daemon=True).start()

    def is_stale(self) -> bool:
        return self._ended.is_set() and time.monotonic() - self._began_at >= FRESH

    def value(self) -> T | None:
        if not self._ended.wait(max(self._began_at + BUDGET - time.monotonic(), 0)):
            return None
        if self._error is not None:
            raise self._error
        return self._value

    def _run(self) -> None:
        try:
            try:
                self._value = _read_or_none(self._read)
            finally:
                connections.close_all()  # closes this thread's connections only
        except BaseException as error:  # ``value`` raises it in the caller's thread
            self._error = error
        finally:
            self._ended.set()


def _read_or_none(read: Callable[[], T]) -> T | None:
    try:
        return read()
    except (DatabaseError, InterfaceError):
        return None


def _drop_connections() -> None:
    """Close this thread's connections, one of which may be broken.

    Outside a request, Django doesn't close them.
    """
    for connection in connections.all(initialized_only=True):
        if not connection.in_atomic_block:
            # MariaDB's driver raises an error if the connection is closed already.
            with suppress(DatabaseError, InterfaceError):
                connection.close()
