"""Fake nodes and a fake broker around the real agenda and the real ticker."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from uuid import UUID

from django_dcron.dispatch.base import DispatchFailed, DueRun, Undeliverable
from django_dcron.scheduler.agenda import Agenda
from django_dcron.scheduler.tick import Ticker
from tests.scheduler.stand_ins import StillClock


class Broker:
    """A dispatcher that keeps messages until a worker takes one, in any order.

    It implements the protocol of ``django_dcron.dispatch.base``.
    """

    address = "memory://"
    batch_size = 2000

    def __init__(self, on_sent: Callable[[tuple[UUID, int]], None]) -> None:
        self._on_sent = on_sent
        self.messages: list[tuple[UUID, int]] = []
        self.unreachable = False
        self._revoked: set[tuple[UUID, int]] = set()

    def prepare(self, run: DueRun) -> DueRun:
        if run.queue == "nowhere":
            raise Undeliverable("no such queue")
        return run

    def publish(self, prepared: Sequence[DueRun]) -> None:
        for number, run in enumerate(prepared):
            if self.unreachable and number >= len(prepared) // 2:  # an unknown part is delivered
                raise DispatchFailed("gone")
            if run.queue == "poison":
                raise ZeroDivisionError("an error of the driver")
            self.messages.append(run.key)
            self._on_sent(run.key)

    def revoke(self, run_id: UUID, attempt: int, worker: str = "") -> None:
        """Revoke an attempt. Workers remember it and drop its messages."""
        if self.unreachable:
            raise DispatchFailed("gone")
        self._revoked.add((run_id, attempt))

    def take(self, which: int, *, again: bool) -> tuple[UUID, int] | None:
        """Take a message, as a worker gets it. With ``again``, it will be delivered once more."""
        if not self.messages:
            return None
        message = self.messages[which % len(self.messages)]
        if not again:
            self.messages.remove(message)
        return None if message in self._revoked else message


@dataclass
class FakeMembership:
    """The membership of a node. The test chooses its shards."""

    id: str
    name: str
    namespace: str = ""
    shards: frozenset[int] = frozenset()

    def ticked(self) -> None:
        pass


class Node:
    def __init__(self, name: str, number: int, broker: Broker, clock: StillClock):
        self.membership = FakeMembership(f"{name}-{number}", name)
        self.agenda = Agenda(broker, clock)  # type: ignore[arg-type]
        self.ticker = Ticker(self.membership, self.agenda, clock)  # type: ignore[arg-type]
