"""The simulated database: SQLite or PostgreSQL, with virtual time, faults and an observer.

Other processes act before and after each transaction, but never within one. If a process dies
within a transaction, the transaction is rolled back.

Faults follow the behavior of a server: an aborted transaction refuses all further statements, and
an answer that is lost leaves the changes committed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any
from unittest.mock import patch
from uuid import UUID

from django.db import (
    DataError,
    InternalError,
    NotSupportedError,
    OperationalError,
    ProgrammingError,
    connection,
    connections,
)
from django.db.models import BooleanField
from django.db.models.expressions import RawSQL

from django_dcron.db.statements import UpdateUnlocked
from django_dcron.execution import pending_outcomes, unrecorded_outcome
from django_dcron.models import statistics
from django_dcron.runs import endings, pending_counts, transitions
from tests.simulation.engine import Engine, Killed, Process
from tests.simulation.primitives import EPOCH

SLOW_STATEMENTS = 0.2
"""The share of the statements of a slow process that wait."""
WRITES = ("UPDATE", "INSERT", "DELETE", "REPLACE")
SQL_ERRORS = (ProgrammingError, DataError, InternalError, NotSupportedError)
"""Errors of a statement or its values. No fault lets the database raise them."""
ABORTS = ("deadlock detected", "could not serialize access due to concurrent update")


@dataclass
class ArmedFault:
    """A fault that waits for a point of a process."""

    fault: str
    """``crash``, ``suspend``, ``stall``, ``lost_answer`` or ``abort``."""
    where: str
    """``before`` a transaction, ``inside`` one, at its ``commit``, ``after`` a change, or the name
    of a sync point.
    """
    skip: int = 0
    """How many such points to let pass."""
    seconds: float = 0.0
    report: Callable[[str, str], None] = lambda fault, text: None
    """Called with the kind of the fault and a text when it happens."""


class Database:
    def __init__(
        self,
        engine: Engine,
        on_change: Callable[[str, tuple[Any, ...]], None],
        on_sql_error: Callable[[str], None],
    ) -> None:
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
        self.single_statement_starts = 0
        """How many of the statements read a run and start it if it is ordinary."""
        self._aborted = False
        self._postponed: ArmedFault | None = None
        self._changes: list[tuple[str, tuple[Any, ...]]] = []
        self._on_change = on_change
        self._on_sql_error = on_sql_error
        self._now_text = -1.0, ""
        self.receive_changes: Callable[[Any], None] = lambda backend: None
        """Reads the changes that the triggers have reported to this connection, if the connection
        doesn't call ``changed`` itself.
        """

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
        if armed.fault in ("suspend", "stall") and not connection.autocommit:
            # Other processes couldn't use the connection meanwhile.
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
        armed.report(armed.fault, f"{process.name}: {armed.fault} at {point}")
        match armed.fault:
            case "crash":
                process.kill()
                raise Killed
            case "suspend":
                process.suspend(armed.seconds)
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
        writes = sql.startswith(WRITES) or is_write_in_with(sql)
        self.single_statement_starts += sql.startswith("WITH seen ")
        if inside:
            self.engine.now += 0.0002
            if self._aborted and not sql.startswith("ROLLBACK"):
                raise InternalError("current transaction is aborted, commands ignored")
            self._aborted = False
            if process.armed and not sql.startswith(("SAVEPOINT", "RELEASE", "ROLLBACK")):
                self.reach("inside")
        else:
            self._aborted = False
            self._pass_time(process)
            if process.armed:
                self.reach("before")
        self.check_available(process, writes)
        try:
            result = execute(sql, params, many, context)
        except SQL_ERRORS as error:
            self._on_sql_error(f"{process.name}: {type(error).__name__}: {error}\n{sql}")
            raise
        if writes and not inside:
            self._committed(connections["default"], process)
        return result

    def _pass_time(self, process: Process) -> None:
        drawn = self.random.random()
        if self.engine.now < process.slow_until and drawn < SLOW_STATEMENTS:
            self.engine.rest(self.random.random() * process.slowness)
            return
        if drawn < 0.5:
            self.engine.now += 0.0003
        elif drawn < 0.98:
            self.engine.rest(drawn * 0.004)
        else:
            self.engine.rest(self.random.random() * 0.2)

    def check_available(self, process: Process, writes: bool) -> None:
        now = self.engine.now
        if now < self.unreachable_until or now < self.unreachable_for.get(process.name, 0.0):
            self._aborted = connection.in_atomic_block
            raise OperationalError("connection to server failed: Connection refused")
        if writes and now < self.read_only_until:
            self._aborted = connection.in_atomic_block
            raise InternalError("cannot execute UPDATE in a read-only transaction")

    @contextmanager
    def watching(self, backend: Any) -> Iterator[None]:
        """Let the faults and the observer act on the transactions of this connection."""
        self.watch(backend)
        try:
            yield
        finally:
            del backend._commit, backend._rollback, backend.run_and_clear_commit_hooks
            backend.run_on_commit = []

    def watch(self, backend: Any) -> None:
        backend._commit = lambda: self._commit(backend)
        backend._rollback = lambda: self._rollback(backend)
        backend.run_and_clear_commit_hooks = lambda: self._run_commit_hooks(backend)

    def _commit(self, backend: Any) -> None:
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
                self.check_available(task.process, False)
            except Killed:
                self._rollback(backend)  # as the server does when it loses the connection
                raise
        type(backend)._commit(backend)
        self._committed(backend, task.process if task else None)

    def _rollback(self, backend: Any) -> None:
        self._aborted = False
        self._changes.clear()
        backend.run_on_commit = []
        type(backend)._rollback(backend)

    def _run_commit_hooks(self, backend: Any) -> None:
        """Stands for the connection's method, which Django calls right after a commit."""
        if (armed := self._postponed) is not None:
            self._postponed = None
            hooks, backend.run_on_commit = backend.run_on_commit, []
            assert self.engine.current is not None
            self._happen(armed, self.engine.current.process, "after commit")
            backend.run_on_commit = hooks
        type(backend).run_and_clear_commit_hooks(backend)

    def _committed(self, backend: Any, process: Process | None) -> None:
        self.receive_changes(backend)
        if self._changes:
            changes, self._changes = self._changes, []
            for kind, values in changes:
                self._on_change(kind, values)
        if process is not None and process.armed:
            try:
                self.reach("after")
            except Killed:
                backend.run_on_commit = []
                raise

    # --- locks of other sessions ------------------------------------------------------------------

    @contextmanager
    def locks_of_statistics(self) -> Iterator[None]:
        """Let the package find the rows of statistics locked while they are.

        SQLite has no SKIP LOCKED.
        """
        real_rows, real_lock = UpdateUnlocked._rows, statistics.lock_countable
        real_locked_rows = pending_counts._lock_unlocked

        def rows(update: UpdateUnlocked, *arguments: Any) -> Any:
            unlocked = RawSQL("dcron_unlocked()", (), output_field=BooleanField())
            return real_rows(update, *arguments).filter(unlocked)

        def lock_countable(*arguments: Any) -> list[int]:
            return real_lock(*arguments) if self.statistics_are_unlocked() else []

        def lock_unlocked(*arguments: Any) -> Any:
            return real_locked_rows(*arguments) if self.statistics_are_unlocked() else {}

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

    def statistics_are_unlocked(self) -> bool:
        return self.engine.now >= self.statistics_locked_until

    def now_text(self) -> str:
        """Return the database's time as a text in UTC."""
        at, text = self._now_text
        if at != self.engine.now:
            at, text = self.engine.now, f"{self.now:%Y-%m-%d %H:%M:%S.%f}"
            self._now_text = at, text
        return text

    @property
    def now(self) -> datetime:
        """The database's clock, which is always right."""
        at = datetime.fromtimestamp(EPOCH + self.engine.now, UTC)
        return at.replace(microsecond=at.microsecond // 1000 * 1000)

    def changed(self, kind: str, values: tuple[Any, ...]) -> None:
        """A trigger reports a change, which is checked after the commit."""
        if self.engine.current is not None or kind == "limit_defined":
            self._changes.append((kind, values))


@lru_cache(maxsize=2000)
def is_write_in_with(sql: str) -> bool:
    """Return whether the statement is a WITH that changes rows."""
    return sql.startswith("WITH") and re.search(r"\((UPDATE|INSERT|DELETE) ", sql) is not None
