"""Check each change as soon as it is committed. The package's table of transitions isn't used."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

from tests.model.transitions import Transition, not_allowed
from tests.simulation.cursor_moves import Definition, instant, is_occurrence, omitted, passed
from tests.simulation.engine import Engine
from tests.simulation.plan import NODES, RUN_LEASE
from tests.simulation.primitives import EPOCH, MAX_DRIFT
from tests.verdict.history import Change, Limit
from tests.verdict.limits import LimitLines, key_of

UNSTARTED = frozenset({"pending", "queued", "waiting"})
FINAL = frozenset({"succeeded", "failed", "skipped", "missed", "cancelled"})
NOTICED_OUTAGE = 800.0
"""Each node notices an outage of this many seconds. Even a node that was suspended meanwhile sees
that its last tick was long ago.
"""


class CommittedRows(Protocol):
    """The observer's queries to the database right after a commit."""

    def is_accounted_for(self, job: int, scheduled_at: str) -> bool: ...

    def claimed_ahead(self, job: int, now: str) -> list[str]: ...

    def is_frozen(self, run: str, now: str) -> bool: ...

    def missing_followers(self, run: str, job: int, state: str) -> list[int]: ...

    def silent_holder(self, job: int, before: str) -> str | None: ...


class Observer:
    def __init__(
        self,
        engine: Engine,
        log: Callable[[str], None],
        rows: CommittedRows,
    ) -> None:
        self.engine = engine
        self.log = log
        self.rows = rows
        self.findings: list[str] = []
        self.counts: Counter[str] = Counter()
        self.outage = (0.0, 0.0)
        """Begin and end of the latest period in which nobody reached the database."""
        self.pending_since: dict[str, float] = {}
        """When each run became pending."""
        self.changes: list[Change] = []
        self.limits: list[Limit] = []
        self.on_next_attempt: Callable[[], None] = lambda: None
        """Called after the start of an attempt, except the first of each run."""
        self._lines = LimitLines()
        self._waiting: dict[int, set[tuple[str, str]]] = {}
        """The due times and ids of the runs that wait for each job's slot."""
        self._attempts: set[tuple[str, int]] = set()
        self._witnessed: set[tuple[str, int]] = set()
        self._hash = hashlib.sha256()

    @property
    def digest(self) -> str:
        return self._hash.hexdigest()[:16]

    def changed(self, kind: str, values: tuple[Any, ...]) -> None:
        self.counts[kind] += 1
        self._hash.update(f"{self.engine.now:.4f} {kind} {values}\n".encode())
        getattr(self, f"_{kind}")(*values)

    def report(self, text: str) -> None:
        self.findings.append(text)
        self.log(f"BROKEN: {text}")

    def _made(self, run: str, job: int, state: str, trigger: str, scheduled_at: str) -> None:
        self.log(f"job {job}: {trigger} run {run[-6:]} of {scheduled_at} is {state}")
        self.pending_since[run] = self.engine.now

    def _moved(
        self,
        run: str,
        job: int,
        old: str,
        old_attempt: int,
        new: str,
        attempt: int,
        heartbeat_at: str | None,
        reason: str,
        cancel_requested_at: str | None,
        due_at: str,
        trigger: str,
        frees_slot: int,
        takes_slot: int,
        limited: int,
        limit: str | None,
        template: str | None,
        args: str,
        kwargs: str,
    ) -> None:
        about = f"job {job}: run {run[-6:]} {old} -> {new}"
        change = Change(
            number=self._next_number(),
            run=run,
            job=job,
            old=old,
            new=new,
            due_at=datetime.fromisoformat(due_at).replace(tzinfo=UTC),
            trigger=trigger,
            attempts=attempt - old_attempt,
            frees_slot=bool(frees_slot),
            takes_slot=bool(takes_slot),
            limited=bool(limited),
            at=datetime.fromtimestamp(EPOCH + self.engine.now, UTC),
            limit=limit or "",
            key=key_of(template or "", json.loads(args), json.loads(kwargs)),
        )
        self.changes.append(change)
        for text in self._lines.change(change):
            self.report(f"limits: {text} after the start of run {run[-6:]}")
        if old != new:
            self.pending_since[run] = self.engine.now
            self.log(f"{about} attempt {attempt}{' ' + reason if reason else ''}")
        if not_allowed([Transition(old, new, attempt - old_attempt)]):
            self.report(f"{about} isn't a transition that the model allows")
        elif old in FINAL and attempt != old_attempt:
            self.report(f"{about}: an ended run has another attempt")
        retried = old == "running" and new == "pending"
        if attempt - old_attempt != int(retried):
            self.report(f"{about}: attempt {old_attempt} becomes {attempt}")
        if retried and cancel_requested_at:
            self.report(f"{about}, although the run was asked to stop")
        if old == "running" and new != "running":
            self._ended(about, heartbeat_at)
        if new == "skipped" and reason.endswith("was unfinished: running"):
            self._check_holder(about, job)
        if new in ("succeeded", "failed") and old != new:
            for follower in self.rows.missing_followers(run, job, new):
                self.report(f"chains: {about}, and no run of job {follower} follows")
        if trigger != "backfill":
            # A run that waits for its limit isn't in the line for the slot.
            waits = new == "waiting" and not limited
            self._check_turn(about, job, (due_at, run), old, waits, bool(takes_slot))

    def _limit_defined(
        self,
        name: str,
        key: str,
        max_running: int | None,
        max_started: int | None,
        interval: int | None,
    ) -> None:
        length = None if interval is None else timedelta(microseconds=interval)
        number = self._next_number()
        self.limits.append(Limit(number, name, key, max_running, max_started, length))
        self._lines.define(self.limits[-1])
        self.log(f"limit {name} {key}: {max_running} running, {max_started} started in {length}")

    def _next_number(self) -> int:
        return len(self.changes) + len(self.limits) + 1

    def _check_turn(
        self, about: str, job: int, turn: tuple[str, str], old: str, waits: bool, takes_slot: bool
    ) -> None:
        """Check that the oldest of the runs that wait for a job's slot gets it."""
        waiting = self._waiting.setdefault(job, set())
        if waits:
            waiting.add(turn)
        elif old == "waiting":
            if takes_slot and (first := min(waiting, default=turn)) < turn:
                self.report(f"{about}, although run {first[1][-6:]} is next in line")
            waiting.discard(turn)

    def _ended(self, about: str, heartbeat_at: str | None) -> None:
        """A node may end a running attempt only if its heartbeat is old.

        After a long outage, all heartbeats are old. A node then waits for a whole lease before it
        ends attempts, except for those whose heartbeats were old before the outage.
        """
        task = self.engine.current
        if task is None or task.process.name not in NODES or heartbeat_at is None:
            return
        now, node = self.engine.now, task.process.name
        last_beat = datetime.fromisoformat(heartbeat_at).replace(tzinfo=UTC).timestamp() - EPOCH
        if now - last_beat < RUN_LEASE - 1.0:
            self.report(f"{about} by {node}, {now - last_beat:.0f} s after a heartbeat")
        began, ended = self.outage
        blocked = ended - began > NOTICED_OUTAGE and last_beat > began - RUN_LEASE
        if blocked and 0 < now - ended < RUN_LEASE - 60.0:
            self.report(f"{about} by {node}, {now - ended:.0f} s after an outage")

    def _check_holder(self, about: str, job: int) -> None:
        """A silent run skips no other run: one run waits until the silent run is ended or retried.

        The worker may have read the heartbeat some slow statements and suspensions earlier.
        """
        worker = self.engine.current.process if self.engine.current else None
        error = 3 * worker.greatest_slowness + worker.suspended_for if worker else 0.0
        before = self._text_of(self.engine.now - RUN_LEASE - 1.0 - error)
        if (holder := self.rows.silent_holder(job, before)) is not None:
            self.report(f"{about} because of run {holder[-6:]}, whose worker is silent")

    def _deleted(self, run: str, job: int, state: str, attempt: int, trigger: str) -> None:
        withdrawn = state == "pending" and attempt == 1 and trigger == "schedule"
        if not (withdrawn or state in FINAL):
            self.report(f"job {job}: run {run[-6:]} was deleted while {state}")

    def _claimed(self, job: int, old: str, new: str | None, *definition: Any) -> None:
        """A claim has moved the job's cursor from one occurrence to another."""
        given = Definition(*definition)
        self._check_passed(job, passed(given, old, new))
        if new and not is_occurrence(given, new, old):
            self.report(f"off_schedule: the cursor of job {job} is at {new}")

    def _placed(self, job: int, placed_at: str, next_at: str | None, *definition: Any) -> None:
        """The job's cursor has a new definition, which counts after ``placed_at``."""
        given = Definition(*definition)
        if at := omitted(given, placed_at, next_at):
            self.report(f"lost: the cursor of job {job} is at {next_at}, and not at {at}")
        if next_at and not is_occurrence(given, next_at, next_at):
            self.report(f"off_schedule: the cursor of job {job} is at {next_at}")

    def _redefined(self, job: int, placed_at: str) -> None:
        """The job was edited, paused or resumed. Its runs that were claimed ahead are withdrawn."""
        for run in self.rows.claimed_ahead(job, max(placed_at, self._now_text())):
            self.report(f"job {job}: run {run[-6:]} of the earlier definition remains")

    def _replaced(self, job: int, next_at: str, placed_at: str, *definition: Any) -> None:
        """The job's cursor was due by its earlier definition when it got a new one."""
        # After a pause that a node has ended early, the definition counts from a later instant.
        if instant(placed_at).timestamp() - EPOCH <= self.engine.now:
            self._check_passed(job, passed(Definition(*definition), next_at, placed_at))

    def _check_passed(self, job: int, occurrences: Iterable[str]) -> None:
        for scheduled_at in occurrences:
            if not self.rows.is_accounted_for(job, scheduled_at):
                self.report(f"lost: no run of job {job} accounts for {scheduled_at}")

    def _attempted(self, run: str, number: int, worker: str) -> None:
        if (run, number) in self._attempts:
            self.report(f"run {run[-6:]} has two attempts {number}")
        self._attempts.add((run, number))
        if self.rows.is_frozen(run, self._now_text()):
            self.report(f"freezes: run {run[-6:]} starts during a freeze")
        self.log(f"{worker} starts run {run[-6:]} attempt {number}")
        if number > 1:
            self.on_next_attempt()

    def _now_text(self) -> str:
        return self._text_of(self.engine.now)

    @staticmethod
    def _text_of(now: float) -> str:
        return f"{datetime.fromtimestamp(EPOCH + now, UTC):%Y-%m-%d %H:%M:%S.%f}"

    def witnessed(self, run: str, attempt: int) -> None:
        key = run, attempt
        if key in self._witnessed:
            self.report(f"run {run[-6:]} attempt {attempt} was started twice")
        self._witnessed.add(key)

    def published(self, run: Any) -> None:
        early = run.due_at.timestamp() - EPOCH - self.engine.now
        # A node knows the database's clock to within half the time that its reads of it took, and
        # to within the drift of its own clock while it was suspended.
        node = self.engine.current.process if self.engine.current else None
        error = node.greatest_slowness / 2 + MAX_DRIFT * node.suspended_for if node else 0.0
        if early > 0.3 + error:
            self.report(f"run {str(run.run_id)[-6:]} was published {early:.1f} s early")
