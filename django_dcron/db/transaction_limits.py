"""Limits for waits on PostgreSQL that end with each transaction, for sessions that a pool shares.

Invariants:

- Nothing outlives the transaction: no setting, and no server-side cursor.
- Each statement has the limits. A statement outside of a transaction gets a transaction of its own,
  which costs three more round trips.
- A statement whose transaction fails at its commit is reported as failed.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from django.db import transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from django_dcron.db.connection_sockets import session_id

_NO_TRANSACTION = 0
"""The transaction status outside of a transaction, in psycopg 2 and 3."""
_CURSORS_OPTION = "DISABLE_SERVER_SIDE_CURSORS"


class TransactionLimits:
    """Sets limits at the start of each transaction of a connection, from ``start`` to ``stop``."""

    def __init__(self, connection: BaseDatabaseWrapper, limits: Mapping[str, timedelta]) -> None:
        self._connection = connection
        self._query = local_limits_query(limits)
        self._had_no_cursors = bool(connection.settings_dict.get(_CURSORS_OPTION))

    def start(self) -> None:
        # First, because Django's ``execute_wrapper`` adds and removes its wrapper at the end.
        self._connection.execute_wrappers.insert(0, self)
        self._disable_cursors(True)

    def stop(self) -> None:
        self._connection.execute_wrappers.remove(self)
        self._disable_cursors(self._had_no_cursors)

    def _disable_cursors(self, disable: bool) -> None:
        # A copy, because threads share the original.
        self._connection.settings_dict = self._connection.settings_dict | {_CURSORS_OPTION: disable}

    def __call__(
        self, execute: Any, sql: Any, params: Any, many: bool, context: Mapping[str, Any]
    ) -> Any:
        """Execute a statement. This is an execute wrapper of Django."""
        if self._connection.in_atomic_block or not self._connection.autocommit:
            self._set()
            return execute(sql, params, many, context)
        with transaction.atomic(using=self._connection.alias):
            self._set()
            return execute(sql, params, many, context)

    def _set(self) -> None:
        """Set the limits if the next statement is the first one of a transaction."""
        driver: Any = self._connection.connection
        if driver is None or driver.info.transaction_status != _NO_TRANSACTION:
            return
        # A cursor of the driver, because Django's would call the wrapper again.
        with self._connection.wrap_database_errors, self._connection.create_cursor() as cursor:
            cursor.execute(self._query)


def has_transaction_limits(connection: BaseDatabaseWrapper) -> bool:
    """Return whether each statement on ``connection`` is executed in a transaction with limits."""
    return any(isinstance(each, TransactionLimits) for each in connection.execute_wrappers)


def is_shared_session(connection: BaseDatabaseWrapper, process_id: int) -> bool:
    """Return whether other clients may use the same session of PostgreSQL.

    ``process_id``: that of the server process which executes the connection's statements. A pooler
    announces another one. The project may also declare a pool: ``pool``, or the option that Django
    requires for transaction pools.
    """
    settings = connection.settings_dict
    is_declared = settings["OPTIONS"].get("pool") or settings.get(_CURSORS_OPTION)
    return bool(is_declared) or process_id != session_id(connection)


def local_limits_query(limits: Mapping[str, timedelta]) -> str:
    """Return the query that sets PostgreSQL's ``limits`` until the transaction ends."""
    calls = (
        f"set_config('{name}', '{limit // timedelta(milliseconds=1)}ms', true)"
        for name, limit in limits.items()
    )
    return f"SELECT {', '.join(calls)}"
