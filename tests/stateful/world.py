"""Two nodes, their broker, two workers and the people, over the real code and the real database, in one thread.

Each deed is one step of one actor. An actor is frozen as long as none of its deeds come. What it does is the code's own;
what is played here is only what surrounds it: who leads (anybody may believe so at any time), what the broker does with
messages, how the work of a run ends, and when a process dies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from itertools import count
from typing import Any, TypeVar
from uuid import UUID

from django_dcron import transitions
from django_dcron.conclusion import Ending, conclude
from django_dcron.conf import settings
from django_dcron.definition import EXHAUSTED
from django_dcron.domain.lifecycle import FINAL, Outcome
from django_dcron.exceptions import (
    PermanentFailure,
    RetryLater,
    RunCancelled,
    RunTimedOut,
    UnknownRun,
)
from django_dcron.execution.current import CurrentRun
from django_dcron.execution.failure import ending_of
from django_dcron.execution.forced_end import end_by_force
from django_dcron.execution.start import start
from django_dcron.scheduler.adoption import give_back
from django_dcron.scheduler.rescue import rescue
from tests.app.models import Witness
from tests.scheduler.stand_ins import StillClock
from tests.stateful.moments import AnswerLost, Crash, Moments
from tests.stateful.nodes import Broker, Node
from tests.stateful.people import People
from tests.stateful.promises import Promises
from tests.stateful.rows import RunRow

Deed = tuple[str, dict[str, Any]]

ALL = frozenset(range(64))
SOUND = "*/5 * * * * *"
GARBAGE = "every now and then"
LEAST_ROUNDS = 4
"""Until then what was changed past ``control.save`` is caught up with."""
ROUNDS = 200
T = TypeVar("T")
ENDINGS: dict[str, Callable[[], BaseException]] = {
    "fails": lambda: ValueError("no"),
    "fails for good": lambda: PermanentFailure("never"),
    "wants to be retried": lambda: RetryLater("busy", after=timedelta(seconds=2)),
    "times out": RunTimedOut,
    "is cancelled": RunCancelled,
}
"""How the work of an attempt ends, if it does not succeed."""


class World(People):
    def __init__(self) -> None:
        clock = StillClock()
        super().__init__(Promises(clock), clock, count(1))
        self.moments = Moments(self.promises.look)
        self.broker = Broker(self.promises.handed_over.add)
        self._nodes = [self._new_node(name) for name in "ab"]
        self._busy: set[str] = set()
        """The nodes in the middle of something."""
        self._executions: list[CurrentRun] = []
        """What the workers are at, in the middle of the work."""

    def do(self, deed: str, given: dict[str, Any]) -> None:
        getattr(self, deed)(**given)
        self.moments.look()

    def interrupted(self, after: int, by: list[tuple[float, Deed]], deed: Deed) -> None:
        """Before the deed's transaction that follows ``after`` others, others act; or in a later deed, if it has not so many."""
        self.moments.plan(after, lambda: self.in_turn(by))
        self.do(*deed)

    def in_turn(self, deeds: list[tuple[float, Deed]]) -> None:
        """Each after so many seconds."""
        for lapse, deed in deeds:
            self.pass_time(lapse)
            self.do(*deed)

    def crashed(self, after: int, deed: Deed) -> None:
        """Before the deed's transaction that follows ``after`` others, its actor is killed."""

        def crash() -> None:
            raise Crash

        self.moments.plan(after, crash)
        self.do(*deed)

    def unanswered(self, after: int, deed: Deed) -> None:
        """The answer to the commit of the transaction that follows ``after`` others is lost."""
        self.moments.plan_lost_answer(after)
        self.do(*deed)

    def pass_time(self, seconds: float) -> None:
        self.moments.look()
        self.clock.advance(seconds)

    # --- nodes --------------------------------------------------------------------------------------------------------

    def _new_node(self, name: str) -> Node:
        return Node(name, next(self._numbers), self.broker, self.clock)

    def _replace(self, number: int) -> None:
        self._nodes[number] = self._new_node(self._nodes[number].ring.name)

    @contextmanager
    def _in_node(self, number: int) -> Iterator[Node | None]:
        """The node's thread that uses the database; None while it is in the middle of something."""
        node = self._nodes[number]
        if node.ring.id in self._busy:
            yield None
            return
        self._busy.add(node.ring.id)
        try:
            yield node
        except AnswerLost:
            node.ticker.failed(database_away=True)
        except Crash:
            self._replace(number)
        finally:
            self._busy.discard(node.ring.id)

    def tick(self, node: int, leads: bool, looks_for_own: bool = False) -> None:
        with self._in_node(node) as there:
            if there:
                gained = leads and not there.ring.shards
                there.ring.shards = ALL if leads else frozenset()
                there.ticker.tick(adopt_own=gained or looks_for_own)

    def only_tick(self, node: int) -> None:
        """Of a node that is started for one tick."""
        with self._in_node(node) as there:
            if there:
                there.ring.shards = ALL
                there.ticker.tick(once=True)

    def mark(self, node: int) -> None:
        with self._in_node(node) as there:
            if there:
                there.ticker.mark_delivered()

    def take_up(self, node: int) -> None:
        """The rescue, without the caution of the tick before it."""
        with self._in_node(node) as there:
            if there:
                rescue(ALL, self.clock.now(), settings.RUN_LEASE)

    def hand_over(self, node: int) -> None:
        """The agenda's own thread: it needs no database, and may run while the node ticks."""
        self._nodes[node].agenda.hand_over_due()

    def drain(self, node: int) -> None:
        """A clean stop, and another node in its place."""
        with self._in_node(node) as there:
            if there:
                there.agenda.hand_over_due()
                there.ticker.mark_delivered()
                give_back(there.ring.id)
                self._replace(node)

    def restart(self, node: int) -> None:
        """Killed: what was in its memory is gone. Another one takes its place."""
        if self._nodes[node].ring.id in self._busy:
            raise Crash  # ... in the middle of what it does
        self._replace(node)

    # --- the broker ---------------------------------------------------------------------------------------------------

    def lose_message(self, which: int) -> None:
        self.broker.take(which, again=False)

    def broker_goes(self, away: bool) -> None:
        self.broker.away = away

    # --- workers ------------------------------------------------------------------------------------------------------

    def deliver(self, which: int, worker: int, again: bool = False) -> None:
        """A worker takes a message and starts the run, if it is to be started."""
        message = self.broker.take(which, again=again)
        if message is None:
            return
        run_id, attempt = message
        token, name = UUID(int=next(self._numbers)), f"worker-{worker}"
        with suppress(Crash), self.promises.starting(run_id):
            try:
                started = _until_answered(lambda: start(run_id, attempt, token=token, worker=name))
            except UnknownRun:  # withdrawn meanwhile
                return
            if started is None:
                return
            run = CurrentRun(*started, token=token, worker=name)
            self.promises.witness(run.id, run.attempt, token)
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
                _until_answered(lambda: transitions.beat(run.id, run.attempt))

    def end(self, which: int, how: str) -> None:
        """The work ends, and the worker concludes the attempt."""
        if (run := self._execution(which)) is None:
            return
        self._executions.remove(run)
        ending = ending_of(ENDINGS[how](), run) if how in ENDINGS else Ending(Outcome.SUCCEEDED)
        with suppress(Crash):
            _until_answered(lambda: conclude(run.run, run.attempt, ending, run.token))

    def kill(self, which: int, reported: bool) -> None:
        """The worker's process dies; ``reported``: Celery sees it."""
        if (run := self._execution(which)) is None:
            return
        self._executions.remove(run)
        if reported:
            self.promises.killed.add((run.id, run.attempt))
            with suppress(Crash):
                end_by_force(run.id, run.attempt, Outcome.LOST, "killed", worker=run.worker)

    # --- and then all is well -----------------------------------------------------------------------------------------

    def come_to_rest(self) -> None:
        """Nobody dies any more and everybody works: all that was due by then ends, in bounded time."""
        self.moments.forget()
        self.broker.away = False
        for which in range(len(self.promises.rows.jobs)):
            self._mend(which)
        asked = self.clock.now()
        left: list[RunRow] = []
        for done in range(ROUNDS):
            due = [run for run in self.promises.rows.runs.values() if run.scheduled_at <= asked]
            left = [run for run in due if run.state not in FINAL]
            if not left and done > LEAST_ROUNDS:
                return
            self.round("succeeds")
        raise AssertionError(f"{ROUNDS} rounds later, unfinished: {left} of {self.promises.rows.jobs}")

    def _mend(self, which: int) -> None:
        """Of a paused job nothing backfilled is released, and one without an occurrence to come cannot be resumed."""
        if self._job(which).pause_after_failures:  # what a queue refuses would pause it once more
            self.do("edit", {"which": which, "fields": {"pause_after_failures": None}})
        self.do("resume", {"which": which})
        job = self._job(which)
        if job.schedule == GARBAGE or not (job.enabled or job.pause_reason == EXHAUSTED):
            sound = {"schedule": SOUND, "ends_at": None, "enabled": True, "pause_after_failures": None}
            self.do("edit", {"which": which, "fields": sound})

    def all_go_well(self, rounds: int, work: str) -> None:
        for _ in range(rounds):
            self.round(work)

    def round(self, work: str) -> None:
        """Two seconds in which everybody does what they are there for. ``work``: how far that of the workers comes."""
        self.pass_time(2)
        for node in range(2):
            self.do("tick", {"node": node, "leads": node == 0})
            self.hand_over(node)
        self.do("mark", {"node": 0})
        while self.broker.messages and work != "none":
            self.do("deliver", {"which": 0, "worker": 0})
        while self._executions and work not in ("none", "begins"):
            self.do("end", {"which": 0, "how": work})


def _until_answered(work: Callable[[], T]) -> T:
    """As ``execution.outage.wait_out``, without the waiting."""
    while True:
        try:
            return work()
        except AnswerLost:
            continue
