"""``run_due``'s middleware: records exceptions and keeps the test's transaction usable.

In a worker, a database error leaves no open transaction. In the transaction of a ``TestCase``,
PostgreSQL would refuse all later statements, including those that record the failure. This
middleware, the outermost one, therefore rolls back to a savepoint.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from traceback import walk_tb
from typing import Any

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.transaction import TransactionManagementError

from django_dcron.exceptions import PermanentFailure, RetryLater, RunCancelled
from django_dcron.execution.current import CurrentRun
from django_dcron.targets import celery_tasks

FAILED_TRANSACTION = 3
"""The status of a failed transaction in libpq, which both PostgreSQL drivers use."""

_recorded: ContextVar[list[BaseException] | None] = ContextVar(
    "dcron_recorded_exceptions", default=None
)


@contextmanager
def recording_exceptions() -> Iterator[list[BaseException]]:
    """Collect the exceptions that end attempts within the block, except those of cancelled runs."""
    exceptions: list[BaseException] = []
    token = _recorded.set(exceptions)
    try:
        yield exceptions
    finally:
        _recorded.reset(token)


def record_exceptions(call_next: Callable[[CurrentRun], Any]) -> Callable[[CurrentRun], Any]:
    def recording(run: CurrentRun) -> Any:
        try:
            with _keep_transactions_usable():
                return call_next(run)
        except RunCancelled:
            raise
        except BaseException as exception:
            exceptions = _recorded.get()
            if exceptions is not None:
                exceptions.append(_raised_by_code(exception))
            raise

    return recording


def _raised_by_code(exception: BaseException) -> BaseException:
    """Return the exception that the job's code raised.

    The retry of a Celery task becomes a ``RetryLater`` or ``PermanentFailure`` that is raised from
    the exception of the task's code.
    """
    cause = exception.__cause__
    if cause is None or not isinstance(exception, (RetryLater, PermanentFailure)):
        return exception
    *_, (innermost, _line) = walk_tb(exception.__traceback__)
    return cause if innermost.f_globals["__name__"] == celery_tasks.__name__ else exception


@contextmanager
def _keep_transactions_usable() -> Iterator[None]:
    """Keep all open transactions usable after the block."""
    connections_in_transaction = [
        each for each in connections.all(initialized_only=True) if each.in_atomic_block
    ]
    savepoints = [(connection, connection.savepoint()) for connection in connections_in_transaction]
    try:
        yield
    except BaseException:
        for connection, savepoint in savepoints:
            _leave_savepoint(connection, savepoint)
        raise
    broken = [
        connection.alias
        for connection, savepoint in savepoints
        if _leave_savepoint(connection, savepoint)
    ]
    if broken:
        raise TransactionManagementError(
            f"The job's writes to {broken[0]!r} were rolled back: the job continued after a "
            "database error, which isn't possible inside a test's transaction. Use "
            "django.test.TransactionTestCase or pytest.mark.django_db(transaction=True)."
        )


def _leave_savepoint(connection: BaseDatabaseWrapper, savepoint: str | None) -> bool:
    """Leave the savepoint. Return whether that required a rollback."""
    if savepoint is None or connection.closed_in_transaction:
        return False
    if not (connection.needs_rollback or _transaction_failed(connection)):
        connection.savepoint_commit(savepoint)
        return False
    connection.needs_rollback = False
    connection.savepoint_rollback(savepoint)
    return True


def _transaction_failed(connection: Any) -> bool:
    """Return whether PostgreSQL has aborted the transaction.

    Other databases undo only the failed statement.
    """
    return bool(
        connection.vendor == "postgresql"
        and connection.connection.info.transaction_status == FAILED_TRANSACTION
    )
