"""The SQLite of a simulation: one connection in memory, which all processes share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from django.db import connection, connections

from tests.simulation.cursor import direct_cursor, with_question_marks
from tests.simulation.database import Database

DIFFERS = "IS NOT"
"""The operator that also compares NULL.

SQLite knows PostgreSQL's ``IS DISTINCT FROM`` only since 3.39.
"""

TRIGGERS = """
CREATE TEMP TRIGGER sim_run_state AFTER UPDATE OF state, attempt ON django_dcron_run
BEGIN SELECT dcron_changed('moved', new.id, new.job_id, old.state, old.attempt, new.state,
    new.attempt, old.heartbeat_at, new.reason, new.cancel_requested_at, new.due_at,
    new."trigger", old.slot IS 'running' AND new.slot IS NOT 'running',
    old.slot IS NOT 'running' AND new.slot IS 'running', new.limited, l.name, l.key,
    coalesce(new.args, j.args), coalesce(new.kwargs, j.kwargs))
    FROM django_dcron_job j LEFT JOIN django_dcron_limit l ON l.name = j.limit_id
    WHERE j.id = new.job_id; END;
CREATE TEMP TRIGGER sim_limit_insert AFTER INSERT ON django_dcron_limit
BEGIN SELECT dcron_changed('limit_defined', new.name, new.key, new.max_running, new.max_started,
    new.interval); END;
CREATE TEMP TRIGGER sim_limit_update AFTER UPDATE ON django_dcron_limit
BEGIN SELECT dcron_changed('limit_defined', new.name, new.key, new.max_running, new.max_started,
    new.interval); END;
CREATE TEMP TRIGGER sim_run_insert AFTER INSERT ON django_dcron_run
BEGIN SELECT dcron_changed('made', new.id, new.job_id, new.state, new."trigger", new.scheduled_at);
END;
CREATE TEMP TRIGGER sim_run_delete AFTER DELETE ON django_dcron_run
BEGIN SELECT dcron_changed('deleted', old.id, old.job_id, old.state, old.attempt, old."trigger");
END;
CREATE TEMP TABLE pruned_run AS SELECT * FROM django_dcron_run LIMIT 0;
CREATE TEMP TABLE pruned_attempt AS SELECT * FROM django_dcron_attempt LIMIT 0;
CREATE TEMP TRIGGER sim_run_prune BEFORE DELETE ON django_dcron_run
WHEN old.state IN ('succeeded', 'failed', 'skipped', 'missed', 'cancelled')
BEGIN INSERT INTO pruned_run SELECT * FROM django_dcron_run WHERE id = old.id; END;
CREATE TEMP TRIGGER sim_attempt_prune BEFORE DELETE ON django_dcron_attempt
BEGIN INSERT INTO pruned_attempt SELECT * FROM django_dcron_attempt WHERE id = old.id; END;
CREATE TEMP TRIGGER sim_cursor AFTER UPDATE OF next_at ON django_dcron_cursor
WHEN old.next_at IS NOT NULL AND new.next_at IS NOT old.next_at AND new.placed_at = old.placed_at
    AND (new.schedule, new.timezone, new.calendar_dates, new.calendar_policy, new.starts_at,
        new.ends_at, new.enabled) IS (old.schedule, old.timezone, old.calendar_dates,
        old.calendar_policy, old.starts_at, old.ends_at, old.enabled)
BEGIN SELECT dcron_changed('claimed', new.job_id, old.next_at, new.next_at, new.schedule,
    new.timezone, new.calendar_dates, new.calendar_policy, new.starts_at, new.ends_at); END;
CREATE TEMP TRIGGER sim_cursor_insert AFTER INSERT ON django_dcron_cursor
WHEN new.enabled AND new.problem = ''
BEGIN SELECT dcron_changed('placed', new.job_id, new.placed_at, new.next_at, new.schedule,
    new.timezone, new.calendar_dates, new.calendar_policy, new.starts_at, new.ends_at); END;
CREATE TEMP TRIGGER sim_cursor_placed AFTER UPDATE OF placed_at ON django_dcron_cursor
WHEN new.placed_at <> old.placed_at AND new.enabled AND new.problem = ''
BEGIN SELECT dcron_changed('placed', new.job_id, new.placed_at, new.next_at, new.schedule,
    new.timezone, new.calendar_dates, new.calendar_policy, new.starts_at, new.ends_at); END;
CREATE TEMP TRIGGER sim_cursor_redefined AFTER UPDATE OF placed_at ON django_dcron_cursor
WHEN new.placed_at <> old.placed_at
BEGIN SELECT dcron_changed('redefined', new.job_id, new.placed_at); END;
CREATE TEMP TRIGGER sim_cursor_replaced AFTER UPDATE OF placed_at ON django_dcron_cursor
WHEN new.placed_at <> old.placed_at AND old.problem = '' AND old.next_at <= new.placed_at
BEGIN SELECT dcron_changed('replaced', new.job_id, old.next_at, new.placed_at, old.schedule,
    old.timezone, old.calendar_dates, old.calendar_policy, old.starts_at, old.ends_at); END;
CREATE TEMP TRIGGER sim_attempt AFTER INSERT ON django_dcron_attempt
BEGIN SELECT dcron_changed('attempted', new.run_id, new.number, new.worker); END;
"""


def create() -> None:
    """Create the tables and the triggers. Called once per operating system process."""
    from django.core.management import call_command

    call_command("migrate", verbosity=0, run_syncdb=True)
    with connection.cursor() as cursor:
        cursor.execute("PRAGMA synchronous = OFF")
        cursor.execute("PRAGMA temp_store = MEMORY")
    assert connection.connection is not None
    connection.connection.create_function("dcron_changed", -1, lambda *values: 0)
    connection.connection.executescript(TRIGGERS)


def clear() -> None:
    """Delete all rows, and restart the keys at 1."""
    with connection.cursor() as cursor, connection.constraint_checks_disabled():
        tables = [
            table
            for table in connection.introspection.table_names(cursor)
            if table.startswith("django_dcron_")
        ]
        cursor.execute("UPDATE django_dcron_run SET rerun_of_id = NULL")
        for table in tables:
            cursor.execute(f"DELETE FROM {table}")  # noqa: S608 (our own tables)
        cursor.execute("DELETE FROM pruned_run")
        cursor.execute("DELETE FROM pruned_attempt")
        cursor.execute("DELETE FROM sqlite_sequence WHERE name LIKE 'django_dcron_%'")


@contextmanager
def installed(database: Database) -> Iterator[None]:
    """Let the simulation's faults and observer act on the connection within the block."""
    connection.ensure_connection()
    driver = connection.connection
    assert driver is not None

    def strftime(template: str, when: str) -> str:
        if when != "NOW":
            raise ValueError(f"STRFTIME of {when}")
        return database.now_text()

    def changed(kind: str, *values: Any) -> int:
        database.changed(kind, values)
        return 0

    # Time stands still within a statement, so SQLite needs to ask only once.
    driver.create_function("STRFTIME", 2, strftime, deterministic=True)
    driver.create_function("dcron_changed", -1, changed)
    driver.create_function("dcron_unlocked", 0, database.statistics_are_unlocked)
    backend: Any = connections["default"]
    only = SimpleNamespace(default=backend)  # There is one thread.
    with (
        patch.object(connections, "_connections", only),
        direct_cursor(backend, database.statement),
        database.watching(backend),
    ):
        yield


def query(statement: str, values: tuple[Any, ...]) -> list[tuple[Any, ...]]:
    """Execute a query without faults."""
    assert connection.connection is not None
    rows: list[tuple[Any, ...]] = connection.connection.execute(
        with_question_marks(statement), values
    ).fetchall()
    return rows


def before_fork() -> None:
    """Each process gets a copy of the database, because it is in memory."""


def after_fork() -> None:
    """See ``before_fork``."""
