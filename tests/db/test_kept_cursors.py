"""A statement that PostgreSQL keeps a plan for also keeps its cursor, as long as that is safe."""

import gc
from collections.abc import Iterator
from datetime import UTC, timedelta, timezone
from typing import Any
from weakref import ref

import pytest
from django.db import ConnectionHandler, DatabaseError, DataError, connection, connections
from django.test.utils import CaptureQueriesContext

from django_dcron.db import plan_cache

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.postgresql]

SQL = "SELECT %s::int + generate_series(1, %s)"


def execute(first: int = 0, rows: int = 2, using: Any = None) -> list[int]:
    with plan_cache.execute_with_cached_plan(
        using or connections["default"], SQL, (first, rows)
    ) as cursor:
        return [number for (number,) in cursor.fetchall()]


def warm_up(using: Any = None) -> None:
    for _ in range(plan_cache.USES_BEFORE + plan_cache.EXECUTIONS_BEFORE):
        assert execute(using=using) == [1, 2]


@pytest.fixture(autouse=True)
def created(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """Return the list of the cursors that are created for prepared statements."""
    cursors: list[Any] = []
    create = plan_cache._new_preparing_cursor

    def counted(using: Any) -> Any:
        cursors.append(ref(cursor := create(using)))
        return cursor

    monkeypatch.setattr(plan_cache, "_new_preparing_cursor", counted)
    connection.close()  # so that each test has a new connection, without kept cursors
    yield cursors
    connection.close()


def test_executions_of_a_statement_share_a_cursor(created: list[Any]) -> None:
    warm_up()
    assert [execute(10), execute(20)] == [[11, 12], [21, 22]]
    assert len(created) == 1


def test_error_of_a_lost_connection_is_djangos() -> None:
    warm_up()
    connections["default"].connection.close()  # as the driver does when the server is gone
    with (
        pytest.raises(DatabaseError),
        plan_cache.execute_with_cached_plan(connections["default"], "SELECT 1", ()),
    ):
        pass


def test_another_connection_gets_another_cursor(created: list[Any]) -> None:
    warm_up()
    connection.close()
    warm_up()
    assert execute(10) == [11, 12]
    assert len(created) == 2


def test_statement_within_its_own_execution_gets_another_cursor(created: list[Any]) -> None:
    warm_up()
    with plan_cache.execute_with_cached_plan(connections["default"], SQL, (10, 2)) as cursor:
        assert execute(20) == [21, 22]
        assert cursor.fetchall() == [(11,), (12,)]
    assert len(created) == 2


def test_cursor_is_not_kept_with_many_rows(created: list[Any]) -> None:
    warm_up()
    for _ in range(2):
        assert len(execute(rows=plan_cache.KEPT_ROWS + 1)) == plan_cache.KEPT_ROWS + 1
    assert len(created) == 2
    assert execute(10) == [11, 12]


def test_statement_can_be_executed_again_after_an_error() -> None:
    warm_up()
    with pytest.raises(DataError):
        execute(2**31 - 1)
    assert execute(10) == [11, 12]


def test_error_in_the_block_leaves_no_cursor_in_use() -> None:
    warm_up()
    with (
        pytest.raises(LookupError),
        plan_cache.execute_with_cached_plan(connections["default"], SQL, (0, 2)),
    ):
        raise LookupError
    assert execute(10) == [11, 12]


def test_times_are_read_in_the_current_time_zone(monkeypatch: pytest.MonkeyPatch) -> None:
    def offset() -> timedelta | None:
        with plan_cache.execute_with_cached_plan(
            connections["default"], "SELECT now()", ()
        ) as cursor:
            (now,) = cursor.fetchone()
        offset: timedelta | None = now.utcoffset()
        return offset

    for _ in range(plan_cache.USES_BEFORE + plan_cache.EXECUTIONS_BEFORE):
        assert offset() == timedelta()
    for hours in (3, 0):
        zone = timezone(timedelta(hours=hours)) if hours else UTC
        monkeypatch.setattr(connections["default"], "timezone", zone)
        assert offset() == timedelta(hours=hours)


def test_queries_are_logged_with_a_kept_cursor() -> None:
    warm_up()
    with CaptureQueriesContext(connection) as queries:
        execute()
    assert len(queries) == 1
    execute()
    assert len(queries) == 1


def test_kept_cursors_end_with_their_connection(created: list[Any]) -> None:
    """The connection of a thread that has ended isn't kept open by its cursors."""
    databases = ConnectionHandler({"default": connection.settings_dict})
    using = databases["default"]
    warm_up(using)
    driver = ref(using.connection)
    assert created[0]() is not None
    using.close()
    del using, databases["default"]
    gc.collect()
    assert (created[0](), driver()) == (None, None)
