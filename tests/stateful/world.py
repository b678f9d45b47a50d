"""Two nodes, their broker, two workers and users, with the real code and database, in one thread.

Each operation is one step of one actor. An actor without operations is suspended. The real code
does the work. The test simulates its surroundings. It decides which node leads (any node may
believe so at any time), and how the broker treats messages. It also decides how the work of a run
ends and when a process dies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from itertools import count
from typing import Any, TypeVar
from uuid import UUID

from django_dcron.conf import settings
from django_dcron.exceptions import (
    PermanentFailure,
    RetryLater,
    RunCancelled,
    RunTimedOut,
    UnknownRun,
)
from django_dcron.execution.current import CurrentRun
from django_dcron.execution.failure import ending_of
from django_dcron.execution.termination import record_killed_attempt
from django_dcron.jobs.attempt_end import end_attempt
from django_dcron.models.job_states import EXHAUSTED
from django_dcron.policies.lifecycle import FINAL, Outcome
from django_dcron.runs import transitions
from django_dcron.runs.completion import Ending
from django_dcron.runs.start import start_attempt
from django_dcron.scheduler.adoption import return_pending
from django_dcron.scheduler.rescue import rescue
from tests.app.models import Witness
from tests.scheduler.stand_ins import StillClock
from tests.stateful.guarantees import Guarantees
from tests.stateful.nodes import Broker, Node
from tests.stateful.rows import LIMITS, RunRow
from tests.stateful.transactions import Crash, ResponseLost, TransactionEvents
from tests.stateful.users import Users

Operation = tuple[str, dict[str, Any]]

ALL = frozenset(range(64))
VALID = "*/5 * * * * *"
INVALID = "every now and then"
LEAST_ROUNDS = 4
"""Minimum number of rounds, so that nodes process changes made without ``control.save``."""
ROUNDS = 200
AMPLE = 10
"""The maximum of each limit at the end.

With a lower one, the schedules may have more occurrences than the limit allows, and then backfilled
runs wait forever.
"""
T = TypeVar("T")
ENDINGS: dict[str, Callable[[], BaseException]] = {
    "fails": lambda: ValueError("no"),
    "fails for good": lambda: PermanentFailure("never"),
    "wants to be retried": lambda: RetryLater("busy", after=timedelta(seconds=2)),
    "times out": RunTimedOut,
    "is cancelled": RunCancelled,
}
"""How the work of an attempt ends, if it doesn't succeed."""


class World(Users):
    def __init__(self) -> None:
        clock = StillClock()
        super().__init__(Guarantees(clock), clock, count(1))
        self.events = TransactionEvents(self.guarantees.check)
        self.broker = Broker(self._record_dispatch)
        self._nodes = [self._new_node(name) for name in "ab"]
        self._busy: set[str] = set()
        """The nodes that are within an operation."""
        self._executions: list[CurrentRun] = []
        """The runs that workers are executing."""

    def _record_dispatch(self, attempt: tuple[UUID, int]) -> None:
        self.events.check()  # so that the message counts for the state in which it was sent
        self.guarantees.dispatched.add(attempt)

    def do(self, operation: str, given: dict[str, Any]) -> None:
        getattr(self, operation)(**given)
        self.events.check()

    def interrupted(
        self, after: int, by: list[tuple[float, Operation]], operation: Operation
    ) -> None:
        """Let other actors do ``by`` when the operation has made ``after`` transactions.

        If the operation has fewer transactions, they act during a later operation.
        """
        self.events.plan(after, lambda: self.in_turn(by))
        self.do(*operation)

    def in_turn(self, operations: list[tuple[float, Operation]]) -> None:
        """Do each operation after its number of seconds."""
        for lapse, operation in operations:
            self.pass_time(lapse)
            self.do(*operation)

    def crashed(self, after: int, operation: Operation) -> None:
        """Kill the actor when the operation has made ``after`` transactions."""

        def crash() -> None:
            raise Crash

        self.events.plan(after, crash)
        self.do(*operation)

    def unanswered(self, after: int, operation: Operation) -> None:
        """Lose the response to the commit that follows the first ``after`` transactions."""
        self.events.plan_lost_answer(after)
        self.do(*operation)

    def pass_time(self, seconds: float) -> None:
        self.events.check()
        self.clock.advance(seconds)

    # --- nodes -----------------------------------------------------------------------------------

    def _new_node(self, name: str) -> Node:
        return Node(name, next(self._numbers), self.broker, self.clock)

    def _replace(self, number: int) -> None:
        self._nodes[number] = self._new_node(self._nodes[number].membership.name)

    @contextmanager
    def _in_node(self, number: int) -> Iterator[Node | None]:
        """Yield the node for work in its database thread, or None if it is within an operation."""
        node = self._nodes[number]
        if node.membership.id in self._busy:
            yield None
            return
        self._busy.add(node.membership.id)
        try:
            yield node
        except ResponseLost:
            node.ticker.record_failure(database_unreachable=True)
        except Crash:
            self._replace(number)
        finally:
            self._busy.discard(node.membership.id)

    def tick(self, node: int, leads: bool, looks_for_own: bool = False) -> None:
        with self._in_node(node) as active:
            if active:
                active.membership.shards = ALL if leads else frozenset()
                if looks_for_own:
                    active.ticker.record_failure(database_unreachable=False)
                active.ticker.tick()

    def only_tick(self, node: int) -> None:
        """A single tick, as of a node that was started with ``--once``."""
        with self._in_node(node) as active:
            if active:
                active.membership.shards = ALL
                active.ticker.tick(once=True)

    def mark(self, node: int) -> None:
        with self._in_node(node) as active:
            if active:
                active.ticker.mark_dispatched()

    def rescue_runs(self, node: int) -> None:
        """Rescue runs without the steps that precede the rescue in a tick."""
        with self._in_node(node) as active:
            if active:
                rescue(ALL, self.clock.now(), settings.RUN_LEASE)

    def publish(self, node: int) -> None:
        """Publish due runs, as the agenda's thread does. It may run during a tick."""
        self._nodes[node].agenda.publish_due()

    def drain(self, node: int) -> None:
        """Stop the node cleanly and replace it."""
        with self._in_node(node) as active:
            if active:
                active.agenda.publish_due()
                active.ticker.mark_dispatched()
                return_pending(active.membership.id)
                self._replace(node)

    def restart(self, node: int) -> None:
        """Kill the node, which loses its memory, and replace it."""
        if self._nodes[node].membership.id in self._busy:
            raise Crash  # it dies within its operation
        self._replace(node)

    # --- the broker ------------------------------------------------------------------------------

    def lose_message(self, which: int) -> None:
        self.broker.take(which, again=False)

    def set_broker(self, unreachable: bool) -> None:
        self.broker.unreachable = unreachable

    # --- workers ---------------------------------------------------------------------------------

    def deliver(self, which: int, worker: int, again: bool = False) -> None:
        """A worker takes a message and starts the run, if it may start."""
        message = self.broker.take(which, again=again)
        if message is None:
            return
        run_id, attempt = message
        token, name = UUID(int=next(self._numbers)), f"worker-{worker}"
        with suppress(Crash), self.guarantees.starting(run_id):
            try:
                started = _until_answered(
                    lambda: start_attempt(run_id, attempt, token=token, worker=name)
                )
            except UnknownRun:  # withdrawn meanwhile
                return
            if started is None:
                return
            run = CurrentRun(started.run, started.at, token=token, worker=name, fence=started.fence)
            self.guarantees.record_start(run.id, run.attempt, token)
            self._work(run)
            self._executions.append(run)

    def _work(self, run: CurrentRun) -> None:
        about = {
            "run_id": run.id,
            "job": run.job,
            "scheduled_at": run.run.scheduled_at,
            "attempt": run.attempt,
        }
        _until_answered(lambda: Witness.objects.get_or_create(**about, defaults={"worker_pid": 1}))

    def _execution(self, which: int) -> CurrentRun | None:
        return self._executions[which % len(self._executions)] if self._executions else None

    def beat(self, which: int) -> None:
        if run := self._execution(which):
            with suppress(Crash):
                _until_answered(lambda: transitions.renew_heartbeat(run.id, run.attempt))

    def end(self, which: int, how: str) -> None:
        """The work ends, and the worker completes the attempt."""
        if (run := self._execution(which)) is None:
            return
        self._executions.remove(run)
        ending = ending_of(ENDINGS[how](), run) if how in ENDINGS else Ending(Outcome.SUCCEEDED)
        with suppress(Crash):
            _until_answered(lambda: end_attempt(run.run, run.attempt, ending, run.token))

    def kill(self, which: int, reported: bool) -> None:
        """The worker's process dies. ``reported`` says whether Celery reports it."""
        if (run := self._execution(which)) is None:
            return
        self._executions.remove(run)
        if reported:
            self.guarantees.killed.add((run.id, run.attempt))
            with suppress(Crash):
                record_killed_attempt(
                    run.id, run.attempt, Outcome.LOST, "killed", worker=run.worker
                )

    # --- the end without faults ------------------------------------------------------------------

    def settle(self) -> None:
        """Let everything work without faults: all runs that are due must end in bounded time."""
        self.events.forget()
        self.broker.unreachable = False
        for namespace in (None, "default"):
            self.do("unfreeze", {"namespace": namespace})
        for which in range(len(self.guarantees.rows.jobs)):
            self._repair(which)
        for name in LIMITS:
            self.do("set_limit", {"name": name, "maximum": AMPLE})
        began_at = self.clock.now()
        left: list[RunRow] = []
        for done in range(ROUNDS):
            runs = self.guarantees.rows.runs.values()
            due = [run for run in runs if run.scheduled_at <= began_at]
            left = [run for run in due if run.state not in FINAL]
            if not left and done > LEAST_ROUNDS:
                return
            self.round("succeeds")
        raise AssertionError(
            f"{ROUNDS} rounds later, unfinished: {left} of {self.guarantees.rows.jobs}"
        )

    def _repair(self, which: int) -> None:
        """Resume the job and make its schedule valid.

        A paused job releases no backfilled runs, and a job without future occurrences can't be
        resumed.
        """
        if self._job(which).pause_after_failures:  # a rejected run would pause it again
            self.do("edit", {"which": which, "fields": {"pause_after_failures": None}})
        self.do("resume", {"which": which})
        job = self._job(which)
        if job.schedule == INVALID or not (job.enabled or job.pause_reason == EXHAUSTED):
            repaired = {
                "schedule": VALID,
                "ends_at": None,
                "enabled": True,
                "pause_after_failures": None,
            }
            self.do("edit", {"which": which, "fields": repaired})

    def work_without_faults(self, rounds: int, work: str) -> None:
        for _ in range(rounds):
            self.round(work)

    def round(self, work: str) -> None:
        """Let all actors work for two seconds.

        ``work``: how far the workers get ("none", "begins"), or how the runs end.
        """
        self.pass_time(2)
        for node in range(2):
            self.do("tick", {"node": node, "leads": node == 0})
            self.publish(node)
        self.do("mark", {"node": 0})
        while self.broker.messages and work != "none":
            self.do("deliver", {"which": 0, "worker": 0})
        while self._executions and work not in ("none", "begins"):
            self.do("end", {"which": 0, "how": work})


def _until_answered(work: Callable[[], T]) -> T:
    """Repeat ``work`` like ``database_outage.retry_until_available``, but without pauses."""
    while True:
        try:
            return work()
        except ResponseLost:
            continue
