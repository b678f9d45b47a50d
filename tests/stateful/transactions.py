"""A simulated clock, and events that are inserted between two transactions.

All actors of the test share one thread and one connection. They can still race: outside of
transactions, the code has nothing but the rows that it has read before. So a planned event may
happen before each transaction and before each single statement. Other actors act, the actor dies,
or it learns that the answer to its commit was lost.

No event happens within a transaction. It couldn't duplicate or lose anything: other actors see no
uncommitted change and can't change locked rows. After an UPDATE has waited for a lock, it checks
its WHERE clause again. But an actor that is suspended there keeps others waiting, and two actors
may wait for each other. Such cases need several connections and real locks: ``tests/cluster``
suspends and kills processes within transactions (see the marked points in
``django_dcron.utils.sync_points``).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from django.db import OperationalError, connection, connections
from django.db.transaction import Atomic
from django.utils import timezone

from django_dcron.dispatch import best_effort
from django_dcron.execution import termination
from django_dcron.models import run as run_module
from tests.scheduler.stand_ins import StillClock

NOW = {
    "sqlite": (re.compile(r"STRFTIME\('[^']*', 'NOW'\)"), "'{}'"),
    "postgresql": (re.compile(r"STATEMENT_TIMESTAMP\(\)"), "'{}+00'::timestamptz"),
    "mysql": (re.compile(r"UTC_TIMESTAMP\(6\)"), "TIMESTAMP'{}'"),
}
"""For each database, the pattern of ``UtcNow`` in SQL and the literal of an instant."""
WRITES = ("UPDATE", "INSERT", "DELETE", "WITH", "SET STATEMENT")
"""The beginnings of statements that write.

On MariaDB, a statement with a time limit begins with ``SET STATEMENT``.
"""


class Crash(BaseException):
    """The actor's process is killed here."""


class ResponseLost(OperationalError):
    """The connection broke after the commit. The changes are stored, but the actor doesn't know."""


class TransactionEvents:
    def __init__(self, observe: Callable[[], None]):
        self._observe = observe
        """Checks the rows. It is called outside of transactions, after something was written."""
        self._event: Callable[[], None] | None = None
        self._countdown = 0
        self._lose_answer = 0
        self._checking = False
        self._breach: Exception | None = None
        self.written = False

    def plan(self, after: int, event: Callable[[], None]) -> None:
        """Run ``event`` before the transaction that follows ``after`` others."""
        self._countdown, self._event = after, event

    def plan_lost_answer(self, of: int) -> None:
        """Lose the answer to the commit of the transaction that follows ``of`` others."""
        self._lose_answer = of + 1

    def forget(self) -> None:
        self._event, self._lose_answer = None, 0

    def check(self) -> None:
        """Check the rows if anything was written.

        At most one transaction lies between two checks, and no time passes.
        """
        if self._breach is not None:  # the code under test may have caught it
            raise self._breach
        if self.written and not self._checking:
            self._checking, self.written = True, False
            try:
                self._observe()
            except Exception as breach:
                self._breach = breach
                raise
            finally:
                self._checking = False

    @contextmanager
    def watched(self) -> Iterator[None]:
        enter, leave = Atomic.__enter__, Atomic.__exit__

        def before(atomic: Atomic) -> None:
            if not connection.in_atomic_block:
                self._run_planned_event()
            enter(atomic)

        def after(atomic: Atomic, *error: Any) -> None:
            leave(atomic, *error)
            if error[0] is None and not connection.in_atomic_block:
                self._committed()

        def statement(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
            writes, alone = sql.startswith(WRITES), not connection.in_atomic_block
            if alone and (writes or sql.startswith("SELECT")):
                self._run_planned_event()
            result = execute(sql, params, many, context)
            self.written |= writes
            if alone and writes:
                self._committed()
            return result

        never_closed = SimpleNamespace(close_all=lambda: None)  # all actors share this connection
        with (
            patch.object(Atomic, "__enter__", before),
            patch.object(Atomic, "__exit__", after),
            patch.object(termination, "connections", never_closed),
            # A crash leaves cursors open. The code under test may replace the settings by a copy.
            patch.object(
                connections["default"],
                "settings_dict",
                connection.settings_dict | {"DISABLE_SERVER_SIDE_CURSORS": True},
            ),
            # The nodes add wrappers for their limits. A killed node doesn't remove them.
            patch.object(
                connections["default"],
                "execute_wrappers",
                [*connection.execute_wrappers, statement],
            ),
        ):
            yield

    def _run_planned_event(self) -> None:
        if self._checking:
            return
        self.check()
        if self._event is None:
            return
        if self._countdown:
            self._countdown -= 1
            return
        event, self._event = self._event, None
        event()

    def _committed(self) -> None:
        if self._lose_answer and not self._checking:
            self._lose_answer -= 1
            if not self._lose_answer:
                raise ResponseLost("the connection broke")


@contextmanager
def time_of(clock: StillClock) -> Iterator[None]:
    """Make ``clock`` the clock of the database, of all processes and of the runs' keys."""
    pattern, literal = NOW[connection.vendor]

    def with_test_time(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        # Change the statement itself, because the code caches some compiled statements.
        return execute(
            pattern.sub(literal.format(f"{clock.instant:%Y-%m-%d %H:%M:%S.%f}"), sql),
            params,
            many,
            context,
        )

    numbers = iter(range(1, 2**80))
    system = SimpleNamespace(urandom=lambda size: next(numbers).to_bytes(size))
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    times = SimpleNamespace(
        time_ns=lambda: (clock.instant - epoch) // timedelta(microseconds=1) * 1000
    )
    with ExitStack() as patches:
        patches.enter_context(connection.execute_wrapper(with_test_time))
        patches.enter_context(patch.object(timezone, "now", clock.now))
        patches.enter_context(patch.object(best_effort, "monotonic", clock.monotonic))
        patches.enter_context(patch.object(best_effort, "_broker_unreachable_until", float("-inf")))
        patches.enter_context(patch.object(run_module, "time", times))
        patches.enter_context(patch.object(run_module, "os", system))
        yield
