"""One reading of the database for all who scrape within ``FRESH`` seconds; ten scrapers cost what one does. As none is older, and scrapes
of one scraper are further apart, its counters do not go down even if another process answers each time.

None stands for a database that has not answered; that too is kept for as long.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Generic, TypeVar

from django.db import DatabaseError, InterfaceError, connections

FRESH = 5.0
BUDGET = 3.0
"""Seconds that a scrape waits for the database."""

T = TypeVar("T")


class Direct(Generic[T]):
    """Read by whoever asks, on the connection of its thread: for Django, where the project says how long that may take."""

    def __init__(self, read: Callable[[], T]):
        self._read = read
        self._lock = threading.Lock()
        self._value: T | None = None
        self._good_until = float("-inf")

    def get(self) -> T | None:
        with self._lock:
            began_at = time.monotonic()
            if began_at >= self._good_until:
                self._value = _or_none(self._read)
                self._good_until = began_at + FRESH
                if self._value is None:
                    _drop_connections()
            return self._value


class Aside(Generic[T]):
    """Read in a thread of its own, one at a time, on a connection that is closed after it: whoever asks waits ``BUDGET`` at the most,
    in all, and a database that never answers costs a node one thread that nobody waits for."""

    def __init__(self, read: Callable[[], T]):
        self._read = read
        self._lock = threading.Lock()
        self._flight: _Flight[T] | None = None

    def get(self) -> T | None:
        """Raises what the reading has raised, unless it was the database."""
        with self._lock:
            flight = self._flight
            if flight is None or flight.is_stale():
                flight = _Flight(self._read)
                flight.start()
                self._flight = flight
        return flight.value()


class _Flight(Generic[T]):
    def __init__(self, read: Callable[[], T]):
        self._read = read
        self._value: T | None = None
        self._error: BaseException | None = None
        self._began_at = time.monotonic()
        self._ended = threading.Event()

    def start(self) -> None:
        threading.Thread(target=self._run, name="dcron-metrics", daemon=True).start()

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
                self._value = _or_none(self._read)
            finally:
                connections.close_all()  # this thread's own
        except BaseException as error:  # it is raised to whoever asks
            self._error = error
        finally:
            self._ended.set()


def _or_none(read: Callable[[], T]) -> T | None:
    try:
        return read()
    except (DatabaseError, InterfaceError):
        return None


def _drop_connections() -> None:
    """This thread's own: one may be cut off, and where no request begins or ends nobody else sees to that."""
    for connection in connections.all(initialized_only=True):
        if not connection.in_atomic_block:
            with suppress(DatabaseError, InterfaceError):  # MariaDB's says so if it is closed already
                connection.close()
