"""Middleware for ``run_due``, around all others: notes what the job's code raises, and keeps a test's transaction fit for use.

In a worker, code that meets a database error leaves no transaction behind. Within that of a ``TestCase`` PostgreSQL would refuse
everything from then on, the record of the failure among it: so what such code has written is undone up to its start.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.transaction import TransactionManagementError

from django_dcron.exceptions import RunCancelled
from django_dcron.execution.current import CurrentRun

IN_ERROR = 3
"""A transaction's status, as both of PostgreSQL's drivers have it from libpq."""

_noted: ContextVar[list[BaseException] | None] = ContextVar("dcron_noted_exceptions", default=None)


@contextmanager
def noting() -> Iterator[list[BaseException]]:
    """The exceptions that end attempts within, as they come. Not of those that were cancelled."""
    exceptions: list[BaseException] = []
    token = _noted.set(exceptions)
    try:
        yield exceptions
    finally:
        _noted.reset(token)


def note_exceptions(call_next: Callable[[CurrentRun], Any]) -> Callable[[CurrentRun], Any]:
    def noted(run: CurrentRun) -> Any:
        try:
            with _mended():
                return call_next(run)
        except RunCancelled:
            raise
        except BaseException as exception:
            exceptions = _noted.get()
            if exceptions is not None:
                exceptions.append(exception)
            raise

    return noted


@contextmanager
def _mended() -> Iterator[None]:
    """Whatever transactions there are around can be used afterwards."""
    around = [each for each in connections.all(initialized_only=True) if each.in_atomic_block]
    savepoints = [(connection, connection.savepoint()) for connection in around]
    try:
        yield
    except BaseException:
        for connection, savepoint in savepoints:
            _end(connection, savepoint)
        raise
    broken = [connection.alias for connection, savepoint in savepoints if _end(connection, savepoint)]
    if broken:
        raise TransactionManagementError(
            f"what the job wrote to {broken[0]!r} is lost: it met a database error and went on, which it cannot within the "
            "transaction of a test; use django.test.TransactionTestCase, or pytest.mark.django_db(transaction=True)"
        )


def _end(connection: BaseDatabaseWrapper, savepoint: str | None) -> bool:
    """Leave the savepoint; whether that had to undo what came after it."""
    if savepoint is None or connection.closed_in_transaction:
        return False
    if not (connection.needs_rollback or _in_error(connection)):
        connection.savepoint_commit(savepoint)
        return False
    connection.needs_rollback = False
    connection.savepoint_rollback(savepoint)
    return True


def _in_error(connection: Any) -> bool:
    """On other databases than PostgreSQL a failed statement is undone by itself."""
    return bool(
        connection.vendor == "postgresql" and connection.connection.info.transaction_status == IN_ERROR
    )
