"""The simulated database: SQLite in memory, with virtual time, faults and an observer.

All processes share one connection. Nobody else acts within a transaction, and anybody may act
before and after each one. A process that dies within a transaction has it rolled back.

Faults follow the behavior of a server: an aborted transaction refuses all further statements, and
an answer that is lost leaves the changes committed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch
from uuid import UUID

from django.db import InternalError, OperationalError, connection, connections
from django.db.models import BooleanField
from django.db.models.expressions import RawSQL

from django_dcron.db.statements import UpdateUnlocked
from django_dcron.execution import pending_outcomes, unrecorded_outcome
from django_dcron.models import statistics
from django_dcron.runs import endings, pending_counts, transitions
from tests.simulation.cursor import direct_cursor
from tests.simulation.engine import Engine, Killed, Process
from tests.simulation.primitives import EPOCH

WRITES = ("UPDATE", "INSERT", "DELETE", "REPLACE")
ABORTS = ("deadlock detected", "could not serialize access due to concurrent update")


@dataclass
class ArmedFault:
    """A fault that waits for a point of a process."""

    fault: str
    """``crash``, ``freeze``, ``stall``, ``lost_answer`` or ``abort``."""
    where: str
    """``before`` a transaction, ``inside`` one, at its ``commit``, ``after`` a change, or the name
    of a sync point.
    """
    skip: int = 0
    """How many such points to let pass."""
    seconds: float = 0.0
    report: Callable[[str], None] = lambda text: None


class Database:
    def __init__(self, engine: Engine, on_change: Callable[[str, tuple[Any, ...]], None]) -> None:
        self.engine = engine
        self.random = engine.random
        self.unreachable_until = 0.0
        self.read_only_until = 0.0
        self.statistics_locked_until = 0.0
        """Until when another session locks all rows of statistics."""
        self.attempts_locked_until = 0.0
        """Until when another session locks all rows of attempts that have started."""
        self.unreachable_for: dict[str, float] = {}
        """Until when the database is unreachable for the processes of this name."""
        self.statements = 0
        self._aborted = False
        self._postponed: ArmedFault | None = None
        self._changes: list[tuple[str, tuple[Any, ...]]] = []
        self._on_change = on_change
        self._now_text = -1.0, ""

    # --- faults at points -------------------------------------------------------------------------

    def reach(self, point: str) -> None:
        """Let an armed fault of the current process happen if it waits for ``point``."""
        task = self.engine.current
        if task is None:
            return
        if not task.process.alive:
            raise Killed
        for armed in task.process.armed:
            if armed.where != point:
                continue
            if armed.skip:
                armed.skip -= 1
                continue
            task.process.armed.remove(armed)
            self._happen(armed, task.process, point)
            return

    def _happen(self, armed: ArmedFault, process: Process, point: str) -> None:
        inside = connection.in_atomic_block
        if armed.fault in ("freeze", "stall") and not connection.autocommit:
            # Nobody else could use the connection meanwhile.
            if point == "after":
                self._postponed = armed
            else:
                armed.where = "after"
                process.armed.append(armed)
            return
        if armed.fault == "lost_answer" and point != "after":  # the answer of this transaction
            armed.where = "after"
            process.armed.append(armed)
            return
        armed.report(f"{process.name}: {armed.fault} at {point}")
        match armed.fault:
            case "crash":
                process.kill()
                raise Killed
            case "freeze":
                process.freeze(armed.seconds)
                self.engine.rest(0.0)
            case "stall":
                task = self.engine.current
                assert task is not None
                task.stalled_until = self.engine.now + armed.seconds
                self.engine.rest(0.0)
            case "lost_answer":
                raise OperationalError("server closed the connection unexpectedly")
            case "abort":
                self._aborted = inside
                raise OperationalError(self.random.choice(ABORTS))

    # --- statements -------------------------------------------------------------------------------

    def statement(self, execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        task = self.engine.current
        if task is None:
            return execute(sql, params, many, context)
        process = task.process
        if not process.alive:
            raise Killed
        self.statements += 1
        inside = connection.in_atomic_block
        writes = sql.startswith(WRITES)
        if inside:
            self.engine.now += 0.0002
            if self._aborted and not sql.startswith("ROLLBACK"):
                raise InternalError("current transaction is aborted, commands ignored")
            self._aborted = False
            if process.armed and not sql.startswith(("SAVEPOINT", "RELEASE", "ROLLBACK")):
                self.reach("inside")
        else:
            self._aborted = False
            self._pass_time()
            if process.armed:
                self.reach("before")
        self._check_available(process, writes)
        result = execute(sql, params, many, context)
        if writes and not inside:
            self._committed(process)
        return result

    def _pass_time(self) -> None:
        drawn = self.random.random()
        if drawn < 0.5:
            self.engine.now += 0.0003
        elif drawn < 0.98:
            self.engine.rest(drawn * 0.004)
        else:
            self.engine.rest(self.random.random() * 0.2)

    def _check_available(self, process: Process, writes: bool) -> None:
        now = self.engine.now
        if now < self.unreachable_until or now < self.unreachable_for.get(process.name, 0.0):
            self._aborted = connection.in_atomic_block
            raise OperationalError("connection to server failed: Connection refused")
        if writes and now < self.read_only_until:
            self._aborted = connection.in_atomic_block
            raise InternalError("cannot execute UPDATE in a read-only transaction")

    def _commit(self) -> None:
        """Stands for the backend's commit."""
        task = self.engine.current
        if task is not None:
            try:
                if not task.process.alive:
                    raise Killed
                if self._aborted:
                    raise OperationalError("the transaction was aborted")
                if task.process.armed:
                    self.reach("commit")
                self._check_available(task.process, False)
            except Killed:
                self._rollback()  # as the server does when it loses the connection
                raise
        self._real_commit()
        self._committed(task.process if task else None)

    def _rollback(self) -> None:
        self._aborted = False
        self._changes.clear()
        connection.run_on_commit = []
        self._real_rollback()

    def _run_commit_hooks(self) -> None:
        """Stands for the connection's method, which Django calls right after a commit."""
        if (armed := self._postponed) is not None:
            self._postponed = None
            hooks, connection.run_on_commit = connection.run_on_commit, []
            assert self.engine.current is not None
            self._happen(armed, self.engine.current.process, "after commit")
            connection.run_on_commit = hooks
        self._real_run_commit_hooks()

    def _committed(self, process: Process | None) -> None:
        if self._changes:
            changes, self._changes = self._changes, []
            for kind, values in changes:
                self._on_change(kind, values)
        if process is not None and process.armed:
            try:
                self.reach("after")
            except Killed:
                connection.run_on_commit = []
                raise

    # --- installation -----------------------------------------------------------------------------

    @contextmanager
    def installed(self) -> Iterator[None]:
        connection.ensure_connection()
        assert connection.connection is not None
        # Time stands still within a statement, so SQLite needs to ask only once.
        connection.connection.create_function("STRFTIME", 2, self._strftime, deterministic=True)
        connection.connection.create_function("dcron_changed", -1, self._changed)
        backend: Any = connections["default"]
        self._real_commit, self._real_rollback = backend._commit, backend._rollback
        backend._commit, backend._rollback = self._commit, self._rollback
        self._real_run_commit_hooks = backend.run_and_clear_commit_hooks
        backend.run_and_clear_commit_hooks = self._run_commit_hooks
        for_every_thread = SimpleNamespace(default=backend)  # there is one thread
        with (
            patch.object(connections, "_connections", for_every_thread),
            direct_cursor(backend, self.statement),
        ):
            try:
                yield
            finally:
                del backend._commit, backend._rollback
                del backend.run_and_clear_commit_hooks
                connection.run_on_commit = []

    @contextmanager
    def locks_of_statistics(self) -> Iterator[None]:
        """Let the package find the rows of statistics locked while they are.

        SQLite has no SKIP LOCKED.
        """
        assert connection.connection is not None
        connection.connection.create_function("dcron_unlocked", 0, self._statistics_are_unlocked)
        real_rows, real_lock = UpdateUnlocked._rows, statistics.lock_countable
        real_locked_rows = pending_counts._lock_unlocked

        def rows(update: UpdateUnlocked, *arguments: Any) -> Any:
            unlocked = RawSQL("dcron_unlocked()", (), output_field=BooleanField())
            return real_rows(update, *arguments).filter(unlocked)

        def lock_countable(*arguments: Any) -> list[int]:
            return real_lock(*arguments) if self._statistics_are_unlocked() else []

        def lock_unlocked(*arguments: Any) -> Any:
            return real_locked_rows(*arguments) if self._statistics_are_unlocked() else {}

        with (
            patch.object(UpdateUnlocked, "_rows", rows),
            patch.object(statistics, "lock_countable", lock_countable),
            patch.object(pending_counts, "_lock_unlocked", lock_unlocked),
        ):
            yield

    @contextmanager
    def locks_of_attempts(self) -> Iterator[None]:
        """Let the package find the rows of attempts locked while they are."""
        real_finish, real_retry = endings.finish, endings.retry
        real_unlocked = pending_outcomes._unlocked

        def finish(*arguments: Any) -> bool:
            self._wait_for_attempts()
            return real_finish(*arguments)

        def retry(*arguments: Any) -> bool:
            self._wait_for_attempts()
            return real_retry(*arguments)

        def unlocked(run_ids: Any) -> set[UUID]:
            return real_unlocked(run_ids) if self._attempts_are_unlocked() else set()

        with (
            patch.object(endings, "finish", finish),
            patch.object(endings, "retry", retry),
            patch.object(pending_outcomes, "_unlocked", unlocked),
            patch.object(unrecorded_outcome, "can_skip_locked_rows", lambda using: True),
        ):
            yield

    def _wait_for_attempts(self) -> None:
        """Wait for the locked row of an attempt until the time limit of the statement."""
        if not self._attempts_are_unlocked():
            self.engine.rest(transitions.LOCK_TIMEOUT.total_seconds())
            raise OperationalError("lock wait timeout exceeded")

    def _attempts_are_unlocked(self) -> bool:
        return self.engine.now >= self.attempts_locked_until

    def _statistics_are_unlocked(self) -> bool:
        return self.engine.now >= self.statistics_locked_until

    def _strftime(self, template: str, when: str) -> str:
        if when != "NOW":
            raise ValueError(f"STRFTIME of {when}")
        at, text = self._now_text
        if at != self.engine.now:
            at, text = self.engine.now, f"{self.now:%Y-%m-%d %H:%M:%S.%f}"
            self._now_text = at, text
        return text

    @property
    def now(self) -> datetime:
        """The database's clock. It is true."""
        at = datetime.fromtimestamp(EPOCH + self.engine.now, UTC)
        return at.replace(microsecond=at.microsecond // 1000 * 1000)

    def _changed(self, kind: str, *values: Any) -> int:
        if self.engine.current is not None:
            self._changes.append((kind, values))
        return 0


TRIGGERS = """
CREATE TEMP TRIGGER sim_run_state AFTER UPDATE OF state, attempt ON django_dcron_run
BEGIN SELECT dcron_changed('moved', new.id, new.job_id, old.state, old.attempt, new.state,
    new.attempt, old.heartbeat_at, new.reason, new.cancel_requested_at, new.due_at,
    new."trigger", old.slot IS 'running' AND new.slot IS NOT 'running',
    old.slot IS NOT 'running' AND new.slot IS 'running', new.limited); END;
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
BEGIN SELECT dcron_changed('claimed', new.job_id, old.next_at); END;
CREATE TEMP TRIGGER sim_attempt AFTER INSERT ON django_dcron_attempt
BEGIN SELECT dcron_changed('attempted', new.run_id, new.number, new.worker); END;
"""


WITH_PRUNED = {
    "SELECT * FROM django_dcron_run": (
        "SELECT * FROM django_dcron_run UNION ALL SELECT * FROM pruned_run"
    ),
    "SELECT * FROM django_dcron_attempt": (
        "SELECT * FROM django_dcron_attempt UNION ALL SELECT * FROM pruned_attempt"
    ),
}


ACCOUNTED = f"""
SELECT 1 FROM ({WITH_PRUNED["SELECT * FROM django_dcron_run"]})
WHERE job_id = ? AND (scheduled_at = ? OR (missed_from <= ? AND scheduled_at > ?))
"""  # noqa: S608 (no values from outside)


def is_accounted_for(job: int, scheduled_at: str) -> bool:
    """Return whether the job's occurrence has a run, or a later run that counts it as missed."""
    assert connection.connection is not None
    values = (job, scheduled_at, scheduled_at, scheduled_at)
    return connection.connection.execute(ACCOUNTED, values).fetchone() is not None


TOO_MANY_RUNNING = """
SELECT l.name || ': ' || COUNT(*) || ' running' FROM django_dcron_run r
JOIN django_dcron_job j ON j.id = r.job_id JOIN django_dcron_limit l ON l.name = j.limit_id
WHERE r.state = 'running' GROUP BY l.name, l.max_running HAVING COUNT(*) > l.max_running
"""
TOO_MANY_STARTED = """
SELECT l.name || ': ' || COUNT(*) || ' started' FROM django_dcron_attempt a
JOIN django_dcron_run r ON r.id = a.run_id JOIN django_dcron_job j ON j.id = r.job_id
JOIN django_dcron_limit l ON l.name = j.limit_id
JOIN django_dcron_attempt b ON b.run_id = ? AND b.number = ?
WHERE (julianday(b.started_at) - julianday(a.started_at)) * 86400 BETWEEN 0
    AND l.interval / 1000000.0 - 1
GROUP BY l.name, l.max_started HAVING COUNT(*) > l.max_started
"""


def exceeded_limits(run: str, attempt: int) -> list[str]:
    """Return the limits that committed runs exceed, now that this attempt has started.

    The tolerance for the interval is a second, because SQLite's dates are that exact.
    """
    assert connection.connection is not None
    execute = connection.connection.execute
    rows = [
        *execute(TOO_MANY_RUNNING).fetchall(),
        *execute(TOO_MANY_STARTED, (run, attempt)).fetchall(),
    ]
    return [text for (text,) in rows]


FOLLOWERS = f"""
SELECT l.job_id FROM django_dcron_link l
JOIN django_dcron_job j ON j.id = l.job_id JOIN django_dcron_cursor c ON c.job_id = l.job_id
WHERE l.after_id = ? AND l."on" IN (?, 'ended') AND j.enabled AND c.resumes_at IS NULL
AND NOT EXISTS (SELECT 1 FROM ({WITH_PRUNED["SELECT * FROM django_dcron_run"]}) f
    WHERE f.job_id = l.job_id AND f.idempotency_key = 'after run ' || ?)
"""  # noqa: S608 (no values from outside)


def missing_followers(run: str, job: int, state: str) -> list[int]:
    """Return the jobs that should follow the ended run, and of which no run does.

    Jobs that are paused, or that a node has enabled ahead of time, are omitted.
    """
    assert connection.connection is not None
    values = (job, state, str(UUID(run)))
    return [key for (key,) in connection.connection.execute(FOLLOWERS, values).fetchall()]


class AllRows:
    """A cursor for ``tests.verdict`` that also reads the rows that retention has deleted."""

    def __init__(self, cursor: Any) -> None:
        self._cursor = cursor

    @property
    def description(self) -> Any:
        return self._cursor.description

    def execute(self, statement: str, /) -> Any:
        return self._cursor.execute(WITH_PRUNED.get(statement, statement))

    def fetchall(self) -> list[tuple[Any, ...]]:
        rows: list[tuple[Any, ...]] = self._cursor.fetchall()
        return rows


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
    """Delete all rows, and begin to count keys at 1 again."""
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


__all__ = [
    "ArmedFault",
    "Database",
    "clear",
    "create",
    "exceeded_limits",
    "is_accounted_for",
    "missing_followers",
]
