"""The PostgreSQL of a simulation: a real server, and one connection per simulated thread.

Triggers report changes by NOTIFY, so the session that commits them gets them with the commit. The
simulated time is a setting of the session, which a function returns instead of the server's time.

Invariant: no other process acts within a transaction, so no statement waits for a lock.
"""

from __future__ import annotations

import atexit
import json
import os
import shutil
import signal
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from django.db import connections

from tests.simulation.database import Database
from tests.simulation.engine import Killed, Process, Task

TIMED = ("STATEMENT_TIMESTAMP", "dcron_unlocked")
"""Functions whose results the simulation sets before a statement that calls them."""

UNNAMED = ("timer", "thread")
"""Names that several threads of a process have at the same time."""
DIFFERS = "IS DISTINCT FROM"
"""The operator that also compares NULL."""

INSTALL = """
CREATE SCHEMA simulation;
SET search_path = simulation, public, pg_catalog;
CREATE FUNCTION statement_timestamp() RETURNS timestamptz STABLE LANGUAGE sql
    AS $$ SELECT current_setting('simulation.now')::timestamptz $$;
CREATE FUNCTION dcron_unlocked() RETURNS boolean STABLE LANGUAGE sql
    AS $$ SELECT current_setting('simulation.unlocked')::boolean $$;
CREATE FUNCTION as_text(at timestamptz) RETURNS text STABLE LANGUAGE sql
    AS $$ SELECT to_char(at AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS.US') $$;
CREATE FUNCTION as_text(id uuid) RETURNS text IMMUTABLE LANGUAGE sql
    AS $$ SELECT replace(id::text, '-', '') $$;

-- NOTIFY drops a message that the transaction has sent before, so each has a number.
CREATE SEQUENCE message;
CREATE FUNCTION report(kind text, about jsonb) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify(
        'simulation_' || pg_backend_pid(),
        jsonb_build_array(kind, about, nextval('message'))::text
    );
END $$;

CREATE FUNCTION run_changed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM report('moved', jsonb_build_array(as_text(new.id), new.job_id, old.state, old.attempt,
        new.state, new.attempt, as_text(old.heartbeat_at), new.reason,
        as_text(new.cancel_requested_at), as_text(new.due_at), new."trigger",
        old.slot IS NOT DISTINCT FROM 'running' AND new.slot IS DISTINCT FROM 'running',
        old.slot IS DISTINCT FROM 'running' AND new.slot IS NOT DISTINCT FROM 'running',
        new.limited, l.name, l.key,
        coalesce(new.args, j.args)::text, coalesce(new.kwargs, j.kwargs)::text))
    FROM django_dcron_job j LEFT JOIN django_dcron_limit l ON l.name = j.limit_id
    WHERE j.id = new.job_id;
    RETURN NULL;
END $$;
CREATE TRIGGER sim_run_state AFTER UPDATE OF state, attempt ON django_dcron_run
    FOR EACH ROW EXECUTE FUNCTION run_changed();

CREATE FUNCTION run_made() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM report('made', jsonb_build_array(as_text(new.id), new.job_id, new.state,
        new."trigger", as_text(new.scheduled_at)));
    RETURN NULL;
END $$;
CREATE TRIGGER sim_run_insert AFTER INSERT ON django_dcron_run
    FOR EACH ROW EXECUTE FUNCTION run_made();

CREATE TABLE pruned_run (LIKE public.django_dcron_run);
CREATE TABLE pruned_attempt (LIKE public.django_dcron_attempt);
CREATE FUNCTION run_deleted() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM report('deleted', jsonb_build_array(as_text(old.id), old.job_id, old.state,
        old.attempt, old."trigger"));
    IF old.state IN ('succeeded', 'failed', 'skipped', 'missed', 'cancelled') THEN
        INSERT INTO pruned_run SELECT old.*;
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER sim_run_delete AFTER DELETE ON django_dcron_run
    FOR EACH ROW EXECUTE FUNCTION run_deleted();

CREATE FUNCTION attempt_deleted() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO pruned_attempt SELECT old.*;
    RETURN NULL;
END $$;
CREATE TRIGGER sim_attempt_delete AFTER DELETE ON django_dcron_attempt
    FOR EACH ROW EXECUTE FUNCTION attempt_deleted();

CREATE FUNCTION attempt_made() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM report('attempted', jsonb_build_array(as_text(new.run_id), new.number, new.worker));
    RETURN NULL;
END $$;
CREATE TRIGGER sim_attempt AFTER INSERT ON django_dcron_attempt
    FOR EACH ROW EXECUTE FUNCTION attempt_made();

CREATE FUNCTION limit_saved() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM report('limit_defined', jsonb_build_array(new.name, new.key, new.max_running,
        new.max_started, (extract(epoch FROM new."interval") * 1000000)::bigint));
    RETURN NULL;
END $$;
CREATE TRIGGER sim_limit AFTER INSERT OR UPDATE ON django_dcron_limit
    FOR EACH ROW EXECUTE FUNCTION limit_saved();

CREATE FUNCTION definition_of(place public.django_dcron_cursor) RETURNS jsonb LANGUAGE sql AS $$
    SELECT jsonb_build_array(place.schedule, place.timezone, place.calendar_dates,
        place.calendar_policy, as_text(place.starts_at), as_text(place.ends_at)) $$;
CREATE FUNCTION cursor_placed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'UPDATE' THEN
        IF new.placed_at = old.placed_at THEN
            RETURN NULL;
        END IF;
        PERFORM report('redefined', jsonb_build_array(new.job_id, as_text(new.placed_at)));
        IF old.problem = '' AND old.next_at <= new.placed_at THEN
            PERFORM report('replaced', jsonb_build_array(new.job_id, as_text(old.next_at),
                as_text(new.placed_at)) || definition_of(old));
        END IF;
    END IF;
    IF new.enabled AND new.problem = '' THEN
        PERFORM report('placed', jsonb_build_array(new.job_id, as_text(new.placed_at),
            as_text(new.next_at)) || definition_of(new));
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER sim_cursor_placed AFTER INSERT OR UPDATE ON django_dcron_cursor
    FOR EACH ROW EXECUTE FUNCTION cursor_placed();
CREATE FUNCTION cursor_moved() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM report('claimed', jsonb_build_array(new.job_id, as_text(old.next_at),
        as_text(new.next_at)) || definition_of(new));
    RETURN NULL;
END $$;
CREATE TRIGGER sim_cursor AFTER UPDATE OF next_at ON django_dcron_cursor FOR EACH ROW
WHEN (
    old.next_at IS NOT NULL AND new.next_at IS DISTINCT FROM old.next_at
    AND new.placed_at = old.placed_at
    AND (new.schedule, new.timezone, new.calendar_dates, new.calendar_policy, new.starts_at,
        new.ends_at, new.enabled) IS NOT DISTINCT FROM (old.schedule, old.timezone,
        old.calendar_dates, old.calendar_policy, old.starts_at, old.ends_at, old.enabled)
)
EXECUTE FUNCTION cursor_moved();
"""


class Connections:
    """Stands for Django's connections of a thread: each simulated thread has its own.

    A thread that starts again under the same name continues with its connection. A worker's thread
    likewise executes one message after the other on one connection.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._by_thread: dict[tuple[Process | None, Any], Any] = {}
        """The connection without a process serves what happens outside of processes."""

    @property
    def default(self) -> Any:
        task = self._database.engine.current
        process = task.process if task else None
        thread = task if task and task.name in UNNAMED else task and task.name
        if (backend := self._by_thread.get((process, thread))) is None:
            self._close_unused()
            backend = self._by_thread[process, thread] = self._new(process)
        return backend

    def _new(self, process: Process | None) -> Any:
        backend: Any = connections.create_connection("default")

        def connect(parameters: dict[str, Any]) -> Any:
            if process is not None:
                if not process.alive:
                    raise Killed
                self._database.check_available(process, False)
            driver = type(backend).get_new_connection(backend, parameters)
            driver.add_notify_handler(lambda notify: self._reported(notify.payload))
            channel = f"simulation_{driver.info.backend_pid}"
            driver.pgconn.exec_(f"LISTEN {channel}".encode())
            return driver

        def statement(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
            return self._database.statement(
                lambda *given: self._execute(backend, execute, *given), sql, params, many, context
            )

        backend.get_new_connection = connect
        backend.execute_wrappers.append(statement)
        self._database.watch(backend)
        return backend

    def _execute(
        self, backend: Any, execute: Any, sql: str, params: Any, many: bool, context: Any
    ) -> Any:
        # Without a connection, which a fault has closed, the driver refuses the statement.
        if backend.connection is not None and any(name in sql for name in TIMED):
            now, unlocked = self._database.now_text(), self._database.statistics_are_unlocked()
            settings = f"SET simulation.now = '{now}+00'; SET simulation.unlocked = '{unlocked}'"
            backend.connection.pgconn.exec_(settings.encode())
        return execute(sql, params, many, context)

    def receive_changes(self, backend: Any) -> None:
        """Pass on the reports that psycopg hasn't read yet."""
        while backend.connection and (message := backend.connection.pgconn.notifies()) is not None:
            self._reported(message.extra)

    def _reported(self, message: bytes | str) -> None:
        kind, values, _ = json.loads(message)
        self._database.changed(kind, tuple(values))

    def _close_unused(self) -> None:
        for process, thread in list(self._by_thread):
            is_dead = process is not None and not process.alive and not process.tasks
            if is_dead or (isinstance(thread, Task) and thread.ended):
                self._by_thread.pop((process, thread)).close()

    def close(self) -> None:
        for backend in self._by_thread.values():
            if backend.connection is not None:
                backend.connection.close()
        self._by_thread.clear()


@contextmanager
def installed(database: Database) -> Iterator[None]:
    """Let each process use its own connection within the block, with the simulation's faults."""
    own = Connections(database)
    database.receive_changes = own.receive_changes
    with patch.object(connections, "_connections", own):
        try:
            yield
        finally:
            own.close()


_query_connection: Any = None
"""The connection of ``query``."""


def query(statement: str, values: tuple[Any, ...]) -> list[tuple[Any, ...]]:
    """Execute a query without faults, on a connection of its own."""
    global _query_connection
    if _query_connection is None:
        import psycopg

        driver = connections["default"].get_connection_params()
        _query_connection = psycopg.connect(
            host=driver["host"],
            user=driver["user"],
            dbname=driver["dbname"],
            options=f"{driver['options']} -c timezone=UTC",
            autocommit=True,
            cursor_factory=psycopg.ClientCursor,
        )
    rows: list[tuple[Any, ...]] = _query_connection.execute(statement, values).fetchall()
    return rows


def start_server() -> None:
    """Start a server that ends with this operating system process."""
    from django.conf import settings

    # A test that runs this simulation has another server.
    directory = tempfile.mkdtemp(prefix="dcron-simulation-")
    os.environ["DCRON_TEST_DIR"] = directory
    os.environ.pop("PYTEST_XDIST_WORKER", None)
    with warnings.catch_warnings(action="ignore"):  # platformdirs warns
        from tests import services

        server = services.postgresql_server()

    def stop() -> None:
        server.stop()
        shutil.rmtree(directory, ignore_errors=True)

    def end(*_: Any) -> None:
        if os.getpid() == owner:
            stop()
        os._exit(128 + signal.SIGTERM)

    owner = os.getpid()
    atexit.register(stop)
    signal.signal(signal.SIGTERM, end)
    server.start()
    settings.DATABASES["default"]["HOST"] = str(server.answers_at.parent)


def create() -> None:
    """Start a server, and create the tables and the triggers."""
    from django.core.management import call_command

    start_server()
    call_command("migrate", verbosity=0, run_syncdb=True)
    with connections["default"].cursor() as cursor:
        cursor.execute(INSTALL)
    connections["default"].close()


def clear() -> None:
    """Delete all rows, and restart the keys at 1."""
    connection = connections["default"]
    with connection.cursor() as cursor:
        tables = [
            table
            for table in connection.introspection.table_names(cursor)
            if table.startswith(("django_dcron_", "pruned_"))
        ]
        cursor.execute(f"TRUNCATE {', '.join(tables)} RESTART IDENTITY CASCADE")
    connection.close()


def before_fork() -> None:
    """Close all connections, so that the database can be copied."""
    global _query_connection
    connections["default"].close()
    if _query_connection is not None:
        _query_connection.close()
        _query_connection = None


def after_fork() -> None:
    """Use a copy of the database from now on."""
    import psycopg

    parameters = connections["default"].get_connection_params()
    name = f"simulation_{os.getpid()}"
    with psycopg.connect(
        host=parameters["host"], user=parameters["user"], dbname="template1", autocommit=True
    ) as driver:
        driver.execute(f"CREATE DATABASE {name} TEMPLATE postgres")
    connections["default"].settings_dict["NAME"] = name


__all__ = ["DIFFERS", "after_fork", "before_fork", "clear", "create", "installed", "query"]
