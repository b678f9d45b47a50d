"""The database from a worker's side: waiting out that it is away, and what a job's code leaves behind on it."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TypeVar

from django.db import DatabaseError, InterfaceError, connections
from django.db.backends.base.base import BaseDatabaseWrapper

from django_dcron.models.database import AWAY

logger = logging.getLogger("django_dcron.runs")

T = TypeVar("T")
FIRST_PAUSE = 0.05
LONGEST_PAUSE = 5.0
"""Seconds; doubled from the first to the longest, and spread, so that workers do not come back all at once."""


def wait_out(work: Callable[[], T], what: str, using: str, *, give_up_after: float | None = None) -> T:
    """Call ``work`` until the database answers (or no longer locks it out), with a new connection each time.

    ``work`` must be safe to repeat, even when its commit went through unheard. ``give_up_after``: seconds; None: never.
    """
    began = time.monotonic()
    pause = FIRST_PAUSE
    while True:
        try:
            return work()
        except AWAY as error:
            waited = time.monotonic() - began
            if give_up_after is not None and waited > give_up_after:
                raise
            if pause >= 1:
                logger.warning(
                    "%s waits for the database (%.0f s so far): %s",
                    what,
                    waited,
                    error,
                    extra={"event": "waits_for_database"},
                )
            connections[using].close()
            time.sleep(pause * random.uniform(0.5, 1))  # noqa: S311 (spreads, keeps no secret)
            pause = min(2 * pause, LONGEST_PAUSE)


@contextmanager
def own_transactions_only() -> Iterator[None]:
    """Whatever transaction the code within leaves open, on any database, does not swallow what is written afterwards.

    It may have switched autocommit off, or have been interrupted while a transaction began or ended.
    """
    before = {connection.alias: _transaction_state(connection) for connection in _opened()}
    try:
        yield
    finally:
        for connection in _opened():
            if _transaction_state(connection) != before.get(connection.alias, UNTOUCHED):
                with suppress(DatabaseError, InterfaceError):
                    connection.close()
                del connections[connection.alias]  # the next use makes a new one


UNTOUCHED: tuple[object, ...] = (False, (), True)
"""The state of a connection outside of any transaction."""


def _opened() -> list[BaseDatabaseWrapper]:
    """This thread's connections that have been used."""
    return [connection for connection in connections.all(initialized_only=True) if connection.connection]


def _transaction_state(connection: BaseDatabaseWrapper) -> tuple[object, ...]:
    return connection.in_atomic_block, tuple(connection.savepoint_ids), connection.autocommit
