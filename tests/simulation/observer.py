"""Check each change as soon as it is committed. The package's table of transitions isn't used."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from tests.simulation.engine import Engine
from tests.simulation.plan import NODES, RUN_LEASE
from tests.simulation.primitives import EPOCH

UNSTARTED = frozenset({"pending", "queued", "waiting"})
FINAL = frozenset({"succeeded", "failed", "skipped", "missed", "cancelled"})
MOVES: dict[str, frozenset[str]] = {
    "pending": frozenset({"pending", "queued", "running", "waiting", *FINAL - {"succeeded"}}),
    "queued": frozenset({"pending", "running", "waiting", "skipped", "missed", "cancelled"}),
    "waiting": frozenset({"pending", "skipped", "missed", "cancelled"}),
    "running": frozenset({"pending", "running", "succeeded", "failed", "cancelled"}),
}
"""The states that a run may move to, by its state."""


class Broken(Exception):
    """The cluster has broken a guarantee."""


class Observer:
    def __init__(self, engine: Engine, tell: Callable[[str], None]) -> None:
        self.engine = engine
        self.tell = tell
        self.broken: list[str] = []
        self.counts: Counter[str] = Counter()
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
        self.broken.append(text)
        self.tell(f"BROKEN: {text}")

    def _made(self, run: str, job: int, state: str, trigger: str, scheduled_at: str) -> None:
        self.tell(f"job {job}: {trigger} run {run[-6:]} of {scheduled_at} is {state}")

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
    ) -> None:
        about = f"job {job}: run {run[-6:]} {old} -> {new}"
        if old != new:
            self.tell(f"{about} attempt {attempt}{' ' + reason if reason else ''}")
        if new not in MOVES.get(old, frozenset({old}) if old == new else ()):
            self.report(f"{about} isn't an allowed transition")
        elif old in FINAL and attempt != old_attempt:
            self.report(f"{about}: an ended run has another attempt")
        retried = old == "running" and new == "pending"
        if attempt - old_attempt != int(retried):
            self.report(f"{about}: attempt {old_attempt} becomes {attempt}")
        if retried and cancel_requested_at:
            self.report(f"{about}, although the run was asked to stop")
        if old == "running" and new != "running":
            self._ended(about, heartbeat_at)

    def _ended(self, about: str, heartbeat_at: str | None) -> None:
        """A node may end a running attempt only if its heartbeat is old."""
        task = self.engine.current
        if task is None or task.process.name not in NODES or heartbeat_at is None:
            return
        last_beat = datetime.fromisoformat(heartbeat_at).replace(tzinfo=UTC).timestamp() - EPOCH
        age = self.engine.now - last_beat
        if age < RUN_LEASE - 1.0:
            self.report(f"{about} by {task.process.name}, {age:.0f} s after a heartbeat")

    def _deleted(self, run: str, job: int, state: str, attempt: int, trigger: str) -> None:
        withdrawn = state == "pending" and attempt == 1 and trigger == "schedule"
        if not (withdrawn or state in FINAL):
            self.report(f"job {job}: run {run[-6:]} was deleted while {state}")

    def _attempted(self, run: str, number: int, worker: str) -> None:
        if (run, number) in self._attempts:
            self.report(f"run {run[-6:]} has two attempts {number}")
        self._attempts.add((run, number))
        self.tell(f"{worker} starts run {run[-6:]} attempt {number}")

    def witnessed(self, run: str, attempt: int) -> None:
        key = run, attempt
        if key in self._witnessed:
            self.report(f"run {run[-6:]} attempt {attempt} was started twice")
        self._witnessed.add(key)

    def published(self, run: Any) -> None:
        early = run.due_at.timestamp() - EPOCH - self.engine.now
        if early > 0.3:
            self.report(f"run {str(run.run_id)[-6:]} was published {early:.1f} s early")
