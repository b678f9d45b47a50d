"""PostgreSQL keeps plans for persistent connections. It never executes the wrong statement."""

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from django.db import DataError, connection, connections, transaction

from django_dcron.db import plan_cache

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.postgresql]

SQL = "SELECT number FROM plan_cache_rows WHERE number >= %s AND name <> '%%' ORDER BY number"


def execute(sql: str = SQL, *parameters: Any) -> list[tuple[Any, ...]]:
    with plan_cache.execute_with_cached_plan(
        connections["default"], sql, parameters or (2,)
    ) as cursor:
        return list(cursor.fetchall())


def prepared() -> set[str]:
    with connection.cursor() as cursor:
        cursor.execute("SELECT statement FROM pg_prepared_statements WHERE NOT from_sql")
        return {statement for (statement,) in cursor.fetchall()}


@pytest.fixture(autouse=True)
def rows() -> Iterator[None]:
    connection.close()  # so that each test has a new connection, without prepared statements
    with connection.cursor() as cursor:
        cursor.execute("CREATE TEMP TABLE plan_cache_rows (number int, name text)")
        cursor.execute("INSERT INTO plan_cache_rows VALUES (1, 'a'), (2, 'b'), (3, 'c')")
    yield
    connection.close()


def warm_up() -> None:
    for _ in range(plan_cache.USES_BEFORE + plan_cache.EXECUTIONS_BEFORE + 1):
        assert execute() == [(2,), (3,)]


def test_statement_is_prepared_on_a_persistent_connection() -> None:
    for _ in range(plan_cache.USES_BEFORE):
        execute()
    assert prepared() == set()
    warm_up()
    (statement,) = prepared()
    assert "plan_cache_rows" in statement
    assert execute(SQL, 3) == [(3,)]


def test_statements_of_the_project_are_not_prepared() -> None:
    driver = connection.connection
    before = driver.cursor_factory, driver.prepare_threshold
    warm_up()
    assert (driver.cursor_factory, driver.prepare_threshold) == before
    for _ in range(10):
        with connection.cursor() as cursor:
            cursor.execute("SELECT %s", [1])
    assert len(prepared()) == 1


def test_a_cursor_class_of_the_project_is_not_bypassed() -> None:
    class Counting(connection.connection.cursor_factory):  # type: ignore[misc, name-defined]
        count = 0

        def execute(self, *args: Any, **options: Any) -> Any:
            Counting.count += 1
            return super().execute(*args, **options)

    connection.connection.cursor_factory = Counting
    warm_up()
    assert Counting.count == plan_cache.USES_BEFORE + plan_cache.EXECUTIONS_BEFORE + 1
    assert prepared() == set()


def test_a_query_of_an_execute_wrapper_is_not_bound_on_the_server() -> None:
    inner: list[type] = []

    def wrapper(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        with connection.connection.cursor() as cursor:
            inner.append(type(cursor))
        return execute(sql, params, many, context)

    plain = connection.connection.cursor_factory
    with connection.execute_wrapper(wrapper):
        warm_up()
    assert set(inner) == {plain}


def test_nothing_is_prepared_in_a_transaction() -> None:
    with transaction.atomic():
        warm_up()
        assert prepared() == set()


@pytest.mark.parametrize(
    ("options", "number"),
    [({}, 0), ({"prepare_threshold": 5}, 1), ({"prepare_threshold": None}, 0)],
)
def test_nothing_is_prepared_through_a_pooler_unless_the_project_enables_it(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, int | None], number: int
) -> None:
    monkeypatch.setitem(connection.settings_dict, "OPTIONS", options)
    connection.connection.prepare_threshold = options.get("prepare_threshold")
    monkeypatch.setattr(type(connection.connection.info), "backend_pid", 1)  # of the pooler
    warm_up()
    assert len(prepared()) == number


def test_nothing_is_prepared_if_the_project_switches_it_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(connection.settings_dict, "OPTIONS", {"prepare_threshold": None})
    warm_up()
    assert prepared() == set()


@pytest.mark.parametrize("numbers", [range(20), range(0)])
def test_statement_of_another_client_is_never_executed(numbers: range) -> None:
    """A pooler that reports the server's process id changes the server connection.

    On the next one, another client has prepared statements by the names that psycopg chooses.
    """
    warm_up()
    server = connection.connection.pgconn
    server.exec_(b"DEALLOCATE ALL")
    for number in numbers:
        server.prepare(b"_pg3_%d" % number, b"SELECT 42 WHERE $1::int > 0")
    for _ in range(3):
        assert execute() == [(2,), (3,)]
    assert len(prepared()) == bool(numbers)


def test_statement_that_was_executed_is_not_executed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """After the execution, psycopg deallocates an older statement, which the server has forgotten.

    That error doesn't cause a second execution.
    """
    monkeypatch.setattr(psycopg._connection_base, "_HAS_SEND_CLOSE", False)  # an older libpq
    warm_up()
    driver = connection.connection
    driver.pgconn.exec_(b"DEALLOCATE ALL")
    driver.prepared_max = 1
    insert = "INSERT INTO plan_cache_rows VALUES (%s, 'row {}') RETURNING number"
    for number in range(10, 22):
        assert execute(insert.format(number // 4), number) == [(number,)]
    assert execute(SQL, 10) == [(number,) for number in range(10, 22)]


def test_refused_statement_is_executed_even_if_the_project_prepares_statements(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from django.db.backends.postgresql.base import ServerBindingCursor

    # As with "server_side_binding".
    monkeypatch.setattr(connection.connection, "cursor_factory", ServerBindingCursor)
    monkeypatch.setattr(connection.connection, "prepare_threshold", 1)
    warm_up()
    connection.connection.pgconn.exec_(b"DEALLOCATE ALL")
    for _ in range(3):
        assert execute() == [(2,), (3,)]


def test_statement_is_executed_without_its_plan_after_the_table_has_changed() -> None:
    warm_up()
    alter = b"ALTER TABLE plan_cache_rows ALTER COLUMN number TYPE bigint"
    # This looks like another session's statement: the driver doesn't notice it.
    connection.connection.pgconn.exec_(alter)
    assert execute() == [(2,), (3,)]
    assert execute() == [(2,), (3,)]


def test_statement_is_executed_without_its_plan_if_the_server_has_forgotten_it() -> None:
    warm_up()
    connection.connection.pgconn.exec_(b"DEALLOCATE ALL")
    assert execute() == [(2,), (3,)]
    assert prepared() == set()


def test_error_of_the_statement_is_raised_once() -> None:
    warm_up()
    for _ in range(plan_cache.EXECUTIONS_BEFORE + 1):
        with pytest.raises(DataError):
            execute("SELECT 1 / %s::int FROM plan_cache_rows", 0)
    assert execute() == [(2,), (3,)]


def test_a_long_statement_is_parsed_once() -> None:
    sql = "SELECT number FROM plan_cache_rows WHERE name LIKE '%%c' AND (number > %s)"
    sql += " AND name <> 'no'" * 500
    for _ in range(plan_cache.USES_BEFORE + 5):
        assert execute(sql, 1) == [(3,)]
    assert plan_cache._numbered.cache_info().hits > 0
    (statement,) = prepared()
    assert "LIKE '%c' AND (number > $1) AND" in statement
