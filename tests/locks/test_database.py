"""Cases that only the lock in the database has: transactions, sessions, connections."""

import time
from collections.abc import Iterator
from datetime import timedelta

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from django_dcron.exceptions import LockUnavailable
from django_dcron.locks.database import DatabaseLock
from django_dcron.models import LockLease

pytestmark = pytest.mark.django_db(transaction=True)

LONG = timedelta(minutes=5)
ALL = [f"shard:{number:02}" for number in range(64)]


@pytest.fixture
def lock() -> DatabaseLock:
    return DatabaseLock()


def test_renewal_is_one_statement_without_a_transaction(lock: DatabaseLock) -> None:
    lock.hold(ALL, "a", LONG)
    with CaptureQueriesContext(connection) as queries:
        assert len(lock.hold(ALL, "a", LONG)) == 64
    assert len(queries) == 1


def test_taking_released_locks_is_one_statement(lock: DatabaseLock) -> None:
    lock.hold(ALL, "a", LONG)
    lock.release(ALL, "a")
    with CaptureQueriesContext(connection) as queries:
        assert len(lock.hold(ALL, "b", LONG)) == 64
    assert len(queries) == 1
    assert LockLease.objects.count() == 64  # rows of released locks are kept


def test_hold_changes_no_row_if_another_holds_all_locks(lock: DatabaseLock) -> None:
    lock.hold(ALL, "a", LONG)
    before = list(LockLease.objects.order_by("name").values_list())
    assert lock.hold(ALL, "b", LONG) == []
    assert list(LockLease.objects.order_by("name").values_list()) == before


def test_use_inside_a_transaction_is_refused(lock: DatabaseLock) -> None:
    with transaction.atomic():
        for ask in (lambda: lock.hold(["1"], "a", LONG), lambda: lock.release(["1"], "a")):
            with pytest.raises(RuntimeError, match="transaction"):
                ask()
    assert lock.hold(["1"], "a", LONG)


def test_remaining_lease_is_never_overestimated(lock: DatabaseLock) -> None:
    """If ``hold`` reads rows back, as for new names, a lease ends at the time in its row."""
    for number in range(20):
        before = time.monotonic()
        lock.hold([f"{number}", "other"], "a", LONG)
        [lease] = lock.hold(["other"], "a", LONG)
        assert before < lease.expires_at <= time.monotonic() + LONG.total_seconds()
    before = time.monotonic()
    first = lock.hold(["new"], "a", LONG)[0]
    after = time.monotonic()
    waited = after - before  # the row is read back, which can subtract this time once more
    assert before + LONG.total_seconds() - waited - 0.1 < first.expires_at
    assert first.expires_at <= after + LONG.total_seconds()


@pytest.mark.postgresql
@pytest.mark.mariadb
@pytest.mark.parametrize("zones", [("+05:00", "-05:00"), ("-05:00", "+05:00")])
def test_session_time_zone_is_ignored(lock: DatabaseLock, zones: tuple[str, str]) -> None:
    def session_in(zone: str) -> None:
        connection.close()
        with connection.cursor() as cursor:
            word = "TIME ZONE" if connection.vendor == "postgresql" else "time_zone ="
            cursor.execute(f"SET {word} '{zone}'")  # SET accepts no placeholders

    session_in(zones[0])
    assert lock.hold(["1"], "a", LONG)
    session_in(zones[1])
    assert not lock.hold(["1"], "b", LONG)
    assert lock.hold(["1"], "a", LONG)
    connection.close()


class TestConnectionCut:
    @pytest.fixture(autouse=True)
    def cut(self) -> Iterator[None]:
        """Make the server end this session without the client's knowledge."""
        with connection.cursor() as cursor:
            mine = (
                "SELECT pg_backend_pid()"
                if connection.vendor == "postgresql"
                else "SELECT CONNECTION_ID()"
            )
            cursor.execute(mine)
            [session] = cursor.fetchone()
        other = connection.copy()
        try:
            with other.cursor() as cursor:
                kill = (
                    "SELECT pg_terminate_backend(%s)"
                    if connection.vendor == "postgresql"
                    else "KILL %s"
                )
                cursor.execute(kill, [session])
        finally:
            other.close()
        yield
        connection.close()

    @pytest.mark.postgresql
    @pytest.mark.mariadb
    def test_next_call_reconnects_after_one_failure(self, lock: DatabaseLock) -> None:
        with pytest.raises(LockUnavailable):
            lock.hold(["1"], "a", LONG)
        assert lock.hold(["1"], "a", LONG)
