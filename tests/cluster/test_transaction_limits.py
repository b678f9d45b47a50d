"""Limits on PostgreSQL sessions that a pool shares end with each transaction."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from datetime import timedelta

import pytest
from django.db import OperationalError, connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from django_dcron.db import plan_cache
from django_dcron.db.contention import is_contention
from django_dcron.db.errors import UNAVAILABLE
from django_dcron.db.session_limits import WaitLimits, brief_transaction
from django_dcron.models import Job
from tests.factories import make_idle_job
from tests.pgbouncer import LIMITS, PgBouncer
from tests.waiting import TIMEOUT

pytestmark = [
    pytest.mark.chaos,
    pytest.mark.postgresql,
    pytest.mark.django_db(transaction=True),
]

SECOND = timedelta(seconds=1)
SERVER_DEFAULTS = ("0",) * len(LIMITS)


@contextmanager
def new_connection(**settings: object) -> Iterator[BaseDatabaseWrapper]:
    """Replace this thread's connection. ``settings`` override those of the database."""
    before = connections["default"]
    connection = connections.create_connection("default")
    connection.settings_dict = connection.settings_dict | settings
    connections["default"] = connection
    try:
        yield connection
    finally:
        connection.close()
        connections["default"] = before


@pytest.fixture
def pooled(pgbouncer: PgBouncer) -> Iterator[BaseDatabaseWrapper]:
    """A connection through the pool, without any setting that declares the pool."""
    with new_connection(HOST="127.0.0.1", PORT=pgbouncer.port) as connection:
        yield connection


@pytest.fixture
def limits(pooled: BaseDatabaseWrapper) -> WaitLimits:
    limits = WaitLimits("default")
    limits.impose(lock=SECOND, silence=2 * SECOND)
    return limits


def found() -> tuple[str, ...]:
    """Return the limits of a statement."""
    names = ", ".join(f"current_setting('{name}')" for name in LIMITS)
    with connections["default"].cursor() as cursor:
        cursor.execute(f"SELECT {names}")
        return tuple(cursor.fetchone())


def test_limits_apply_to_each_transaction_and_to_no_other_client(
    limits: WaitLimits, pgbouncer: PgBouncer
) -> None:
    assert found() == ("1s", "2s", "0")
    with transaction.atomic():
        assert found() == ("1s", "2s", "0")
        with transaction.atomic():
            assert found() == ("1s", "2s", "0")
    with brief_transaction("default", 7 * SECOND):
        assert found() == ("1s", "7s", "0")
    with brief_transaction("default", 7 * SECOND, lock=3 * SECOND):
        assert found() == ("3s", "7s", "0")
    assert {*pgbouncer.limits_of_servers().values()} == {SERVER_DEFAULTS}
    assert found() == ("1s", "2s", "0")
    limits.lift()
    assert {*pgbouncer.limits_of_servers().values()} == {SERVER_DEFAULTS}
    assert found() == SERVER_DEFAULTS


def test_statement_outside_of_a_transaction_is_committed_at_once(limits: WaitLimits) -> None:
    job = make_idle_job()
    assert Job.objects.filter(pk=job.pk).update(description="changed") == 1
    connection = connections["default"]
    assert (connection.in_atomic_block, connection.autocommit) == (False, True)
    with new_connection():
        assert Job.objects.get(pk=job.pk).description == "changed"


@pytest.mark.parametrize("in_transaction", [False, True])
def test_wait_for_a_lock_ends_as_contention(limits: WaitLimits, in_transaction: bool) -> None:
    job = make_idle_job()
    holder = connections.create_connection("default")
    with holder.cursor() as cursor:
        cursor.execute("BEGIN")
        cursor.execute("SELECT 1 FROM django_dcron_job WHERE id = %s FOR UPDATE", [job.pk])
    block = transaction.atomic() if in_transaction else nullcontext()
    with pytest.raises(OperationalError) as raised, block:
        Job.objects.filter(pk=job.pk).update(description="changed")
    holder.close()
    assert is_contention(raised.value)
    assert Job.objects.filter(pk=job.pk).update(description="later") == 1


def test_idle_transaction_is_ended_so_that_others_get_its_locks(limits: WaitLimits) -> None:
    """For example, the process is suspended in an ordinary transaction."""
    job = make_idle_job()
    changed = threading.Event()

    def change() -> None:
        Job.objects.filter(pk=job.pk).update(description="by another process")
        connections.close_all()
        changed.set()

    def lock_and_be_idle() -> None:
        with transaction.atomic():
            Job.objects.select_for_update().get(pk=job.pk)
            thread.start()
            assert changed.wait(TIMEOUT)
            Job.objects.filter(pk=job.pk).update(description="too late")

    thread = threading.Thread(target=change)
    with pytest.raises(UNAVAILABLE):
        lock_and_be_idle()
    thread.join(TIMEOUT)
    connections["default"].close()
    assert Job.objects.get(pk=job.pk).description == "by another process"


def test_new_connection_has_the_limits_once(
    limits: WaitLimits, pooled: BaseDatabaseWrapper
) -> None:
    for _ in range(2):
        pooled.close()
        limits.impose(lock=3 * SECOND, silence=7 * SECOND)
        assert found() == ("3s", "7s", "0")
        assert len(pooled.execute_wrappers) == 1
    limits.lift()
    limits.lift()
    assert pooled.execute_wrappers == []


def test_queries_leave_no_cursor_in_the_session(limits: WaitLimits) -> None:
    """A pool may send the next statement to a server that doesn't know the cursor."""
    jobs = {make_idle_job().pk for _ in range(5)}
    rows = Job.objects.values_list("pk", flat=True).iterator(chunk_size=2)
    first = next(rows)
    with connections["default"].cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_cursors")
        assert cursor.fetchone() == (0,)
    assert {first, *rows} == jobs
    limits.lift()
    assert not connections["default"].settings_dict["DISABLE_SERVER_SIDE_CURSORS"]


@pytest.mark.parametrize(
    "declared", [{"DISABLE_SERVER_SIDE_CURSORS": True}, {"OPTIONS": {"pool": {"min_size": 1}}}]
)
def test_pool_that_the_project_declares_gets_no_session_limits(
    declared: dict[str, object],
) -> None:
    """A pooler may announce the server's process ids, and Django's pool hands on connections."""
    with new_connection(**declared) as connection:
        limits = WaitLimits("default")
        limits.impose(lock=SECOND, silence=2 * SECOND)
        assert found() == ("1s", "2s", "0")
        connection.execute_wrappers.clear()
        assert found() == SERVER_DEFAULTS
        connection.close()
        getattr(connection, "close_pool", lambda: None)()


def test_nothing_is_prepared_in_the_transactions_with_limits() -> None:
    """If such a transaction fails after its statement, the statement must be executed again."""
    declared = {"DISABLE_SERVER_SIDE_CURSORS": True, "OPTIONS": {"prepare_threshold": 1}}
    with new_connection(**declared) as connection:
        limits = WaitLimits("default")
        limits.impose(lock=SECOND, silence=2 * SECOND)
        execute_often(connection)
        assert prepared(connection) == 0
        limits.lift()
        execute_often(connection)
        assert prepared(connection) == 1


def execute_often(connection: BaseDatabaseWrapper) -> None:
    for _ in range(plan_cache.USES_BEFORE + plan_cache.EXECUTIONS_BEFORE + 1):
        with plan_cache.execute_with_cached_plan(connection, "SELECT %s::int", [1]) as cursor:
            assert cursor.fetchone() == (1,)


def prepared(connection: BaseDatabaseWrapper) -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_prepared_statements WHERE NOT from_sql")
        return int(cursor.fetchone()[0])
