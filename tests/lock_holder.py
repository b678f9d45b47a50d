"""Lock rows and keep them locked, as a suspended process does."""

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress

from django.db import connection, connections, models, transaction

from django_dcron.models import Run
from tests.waiting import TIMEOUT


def keeping_locked(rows: models.QuerySet) -> AbstractContextManager[None]:  # type: ignore[type-arg]
    return keeping_open(lambda: list(rows.select_for_update()))


@contextmanager
def keeping_open(work: Callable[[], object]) -> Iterator[None]:
    """Run ``work`` in a transaction that stays open."""
    held, release = threading.Event(), threading.Event()

    def hold() -> None:
        try:
            with transaction.atomic():
                work()
                if connection.features.can_defer_constraint_checks:
                    connection.check_constraints()  # deferred constraints have locked nothing yet
                held.set()
                release.wait(TIMEOUT)
        finally:
            connections.close_all()

    holder = threading.Thread(target=hold)
    holder.start()
    try:
        assert held.wait(TIMEOUT)
        yield
    finally:
        release.set()
        holder.join(TIMEOUT)


def lock_runs() -> None:
    """Lock the table of the runs until the transaction ends, also for reads (PostgreSQL)."""
    with connection.cursor() as cursor:
        cursor.execute(f"LOCK TABLE {Run._meta.db_table} IN ACCESS EXCLUSIVE MODE")


def lock_limit() -> object:
    """Return how long a statement of this session waits for a lock."""
    return _answer(
        postgresql="SHOW lock_timeout", mysql="SELECT @@SESSION.innodb_lock_wait_timeout"
    )


def has_usual_lock_limit() -> bool:
    """Return whether this session waits for locks as long as a new one does."""
    return bool(
        _answer(
            postgresql="SELECT current_setting('lock_timeout') = '0'",
            mysql="SELECT @@SESSION.innodb_lock_wait_timeout = @@GLOBAL.innodb_lock_wait_timeout",
        )
    )


def _answer(**queries: str) -> object:
    """Return the answer to the query for the session's database."""
    with connection.cursor() as cursor:
        cursor.execute(queries[connection.vendor])
        return cursor.fetchone()[0]


def restore_lock_limit() -> None:
    """Do for a session of MariaDB what a rollback does on PostgreSQL."""
    names = ("innodb_lock_wait_timeout", "idle_transaction_timeout", "lock_wait_timeout")
    query = "SET " + ", ".join(f"SESSION {name} = DEFAULT" for name in names)
    # A cursor of the driver, because Django's refuses statements in a broken transaction. The test
    # may have broken the connection, too.
    with suppress(connection.Database.Error), connection.connection.cursor() as cursor:
        cursor.execute(query)
