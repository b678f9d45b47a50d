"""The simulated lock server and the simulated broker."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any
from uuid import UUID

from django_dcron.dispatch.base import DispatchFailed, DueRun
from django_dcron.exceptions import LockUnavailable
from django_dcron.locks.base import Lease
from tests.simulation import primitives
from tests.simulation.engine import Engine

Key = tuple[UUID, int]


class LockServer:
    """Stands for Redis: keys with a holder and an expiry by the server's clock."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.keys: dict[str, tuple[str, float]] = {}
        self.unreachable_until = 0.0
        self.unreachable_for: dict[str, float] = {}

    def flush(self) -> None:
        self.keys.clear()

    def hold(self, names: Collection[str], holder: str, lease: timedelta) -> list[Lease]:
        seconds = lease.total_seconds()
        expires_at = primitives.monotonic() + seconds
        self._contact()
        now, held = self.engine.now, []
        for name in sorted(names):
            owner, until = self.keys.get(name, ("", 0.0))
            if owner == holder or until <= now:
                self.keys[name] = holder, now + seconds + 0.001
                held.append(Lease(name, holder, expires_at))
        self._answer()
        return held

    def release(self, names: Collection[str], holder: str) -> None:
        self._contact()
        for name in names:
            if self.keys.get(name, ("", 0.0))[0] == holder:
                del self.keys[name]
        self._answer()

    def holders(self, names: Collection[str]) -> dict[str, str]:
        self._contact()
        now = self.engine.now
        return {
            name: self.keys[name][0]
            for name in names
            if name in self.keys and self.keys[name][1] > now
        }

    def _contact(self) -> None:
        self.engine.rest(self.engine.random.random() * 0.002)
        name = primitives.process().name
        if self.engine.now < max(self.unreachable_until, self.unreachable_for.get(name, 0.0)):
            raise LockUnavailable("Can't use the locks in Redis: connection refused")

    def _answer(self) -> None:
        self.engine.rest(self.engine.random.random() * 0.002)


@dataclass(eq=False)
class Message:
    run_id: UUID
    attempt: int

    @property
    def key(self) -> Key:
        return self.run_id, self.attempt


@dataclass
class MessageFaults:
    lose: int = 0
    """Number of the next messages that are lost."""
    duplicate: int = 0
    """Number of the next messages that are delivered twice."""
    duplicate_after: float = 0.0
    delay: int = 0
    """Number of the next messages that are delayed."""
    delay_for: float = 0.0
    return_until: float = 0.0
    """Until when the broker loses the acknowledgments, and delivers each message again."""


class Broker:
    """A queue of messages, and the dispatcher through which processes publish to it."""

    def __init__(self, engine: Engine, on_published: Callable[[DueRun], None]) -> None:
        self.engine = engine
        self.queue: list[Message] = []
        self.unreachable_until = 0.0
        self.unreachable_for: dict[str, float] = {}
        self.message_faults = MessageFaults()
        self.published = 0
        self.on_message: Callable[[], None] = lambda: None
        self.on_revoke: Callable[[Key, str], None] = lambda key, worker: None
        self.on_published = on_published
        self.log: Callable[[str], None] = lambda text: None

    def dispatcher(self) -> Dispatcher:
        return Dispatcher(self)

    def put(self, message: Message, after: float = 0.0) -> None:
        if after:
            self.engine.after(after, lambda: self.put(message))
            return
        index = len(self.queue)
        if self.queue and self.engine.random.random() < 0.1:
            index = self.engine.random.randrange(len(self.queue))  # reordered
        self.queue.insert(index, message)
        self.on_message()

    def take(self) -> Message:
        """Return the next message, for a worker. Deliver it again if its acknowledgment is lost."""
        message = self.queue.pop(0)
        if self.engine.now < self.message_faults.return_until:
            self.put(Message(*message.key), after=self.engine.random.uniform(1.0, 300.0))
        return message

    def check_reachable(self) -> None:
        name = primitives.process().name
        if self.engine.now < max(self.unreachable_until, self.unreachable_for.get(name, 0.0)):
            raise DispatchFailed("connection refused")

    def receive(self, run: DueRun) -> None:
        """Queue a published message. It may be lost, delayed or duplicated."""
        self.published += 1
        self.on_published(run)
        faults = self.message_faults
        if faults.lose:
            faults.lose -= 1
            self.log(f"broker loses the message of {run.run_id} attempt {run.attempt}")
            return
        after = self.engine.random.random() * 0.05
        if faults.delay:
            faults.delay -= 1
            after += faults.delay_for
        self.put(Message(*run.key), after)
        if faults.duplicate:
            faults.duplicate -= 1
            self.put(Message(*run.key), after + faults.duplicate_after)


@dataclass
class Dispatcher:
    """Implements the protocol of ``django_dcron.dispatch.base`` for one process."""

    broker: Broker
    address: str = "memory://"
    batch_size: int = 2000
    closed: bool = field(default=False)

    def prepare(self, run: DueRun) -> DueRun:
        return run

    def publish(self, prepared: Sequence[DueRun]) -> None:
        engine = self.broker.engine
        for run in prepared:
            engine.rest(engine.random.random() * 0.003)
            self.broker.check_reachable()
            self.broker.receive(run)
        engine.rest(engine.random.random() * 0.003)
        self.broker.check_reachable()  # The broker may become unreachable before it replies.

    def revoke(self, run_id: UUID, attempt: int, worker: str = "") -> None:
        engine = self.broker.engine
        engine.rest(engine.random.random() * 0.003)
        self.broker.check_reachable()
        self.broker.on_revoke((run_id, attempt), worker)

    def take_unstarted(self) -> list[Key]:
        return []

    def executing(self) -> list[str]:
        return []

    def close(self, wait: bool = True) -> None:
        self.closed = True


__all__: list[Any] = ["Broker", "Dispatcher", "LockServer", "Message", "MessageFaults"]
