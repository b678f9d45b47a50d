"""Let transactions on a node's SQLite connections take the write lock at their start.

SQLite can wait for the write lock only at the start of a transaction. A transaction that reads
first and writes later fails at once if another process has written meanwhile. Django's default is
to take the lock at the first write. The system check W002 asks projects to set another mode. A
node sets it for its own connections, so it also runs reliably with a new project's settings.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from django.db import connections
from django.db.backends.signals import connection_created

BUSY_TIMEOUT_MS = 20_000
MODE = "IMMEDIATE"


@contextmanager
def early_write_locks(alias: str, *, applies: Callable[[], bool] = lambda: True) -> Iterator[None]:
    """Let new connections take the write lock at the start of each transaction.

    This affects connections that are opened within the block. ``applies`` decides about each of
    them, in the thread that opens it. A project that sets ``transaction_mode`` keeps its setting.
    """
    options = connections[alias].settings_dict.get("OPTIONS", {})
    if connections[alias].vendor != "sqlite" or options.get("transaction_mode"):
        yield
        return

    def prepare(connection: Any, **kwargs: Any) -> None:
        if connection.alias == alias and applies():
            connection.transaction_mode = MODE
            with connection.cursor() as cursor:
                cursor.execute(f"PRAGMA busy_timeout = {BUSY_TIMEOUT_MS}")

    connections[alias].close()
    connection_created.connect(prepare, weak=False, dispatch_uid=prepare)
    try:
        yield
    finally:
        connection_created.disconnect(dispatch_uid=prepare)
        connections[alias].close()
