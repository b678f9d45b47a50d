"""Handing due runs to whoever executes them: one protocol.

Invariants of every dispatcher:

- ``publish`` needs no database and may be repeated: what is delivered twice starts once (promise 2).
- It either hands over all it was given or raises; after that an unknown part is delivered. ``DispatchFailed`` says nothing
  of the runs, they are tried again; with ``TakenInPart`` only those that it names, the others are handed over. Any other
  error is about one of them: it is looked for among fewer and fewer, and one that fails alone is refused, which is the end
  of it.
- It never delays a run: retries and due times are the scheduler's.
- ``revoke`` is a favour, which may be lost: a start asks the database, and so does whoever executes. It is only asked of an
  attempt that can never start again: it has started, or its run has ended. (A worker that remembers what was revoked would
  drop a delivery of it for hours.)
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Protocol, runtime_checkable
from uuid import UUID

from django_dcron.exceptions import DcronError


class DispatchFailed(DcronError):
    """The broker is away, or takes nothing now. ``__cause__`` is its error."""


class TakenInPart(DispatchFailed):
    """The broker is there and does not take some of them now: a queue is full, or gone, or has an error of its own."""

    def __init__(self, said: str, left: Container[int], *, by_error: bool = False):
        super().__init__(said)
        self.left = left
        """Their positions in what ``publish`` was given. All others are handed over."""
        self.by_error = by_error
        """It is no room that they wait for, and may not be the same for others of their kind."""


class Undeliverable(DcronError):
    """This run can never be handed over as its job stands; the message says why."""


@dataclass(frozen=True, slots=True)
class DueRun:
    """One attempt of a run, and all that a dispatcher needs to know of its job; in the order of adoption's columns."""

    run_id: UUID
    attempt: int
    due_at: datetime
    job_id: int
    job_name: str
    target: str
    queue: str = ""
    priority: int | None = None
    timeout: timedelta | None = None

    @property
    def key(self) -> tuple[UUID, int]:
        return (self.run_id, self.attempt)


@dataclass(frozen=True, slots=True)
class UnknownAtWorker:
    """A run that a worker received and didn't find in its database."""

    run_id: UUID
    age: float
    """Seconds since its message was dropped, or else came last."""
    dropped: bool
    """The message didn't go back to the queue."""


@dataclass(frozen=True, slots=True)
class WorkerAnswer:
    """What one worker says about itself."""

    name: str
    queues: tuple[str, ...]
    executes: bool
    """It has django-dcron's task."""
    unknown_runs: tuple[UnknownAtWorker, ...] = ()


@runtime_checkable
class AsksWorkers(Protocol):
    """A dispatcher that may ask the workers of its broker how they are, and has the messages of a node name the node."""

    node: str
    """The id of the node that publishes through this dispatcher."""

    def ask_workers(self) -> list[WorkerAnswer] | None:
        """The workers that answer within a few seconds. None: this broker or this project has no remote control.

        Uses its own connection: publishing doesn't wait for it. Raises ``DispatchFailed``.
        """
        ...


class Dispatcher(Protocol):
    @property
    def address(self) -> str:
        """Where runs go, for people to read: no password."""
        ...

    @property
    def batch_size(self) -> int:
        """The most runs that ``publish`` is to be given at once: all of them take a few seconds at the most. (Whoever is
        within a batch for longer than ``DCRON_HANG_AFTER`` counts as hung.)"""
        ...

    def prepare(self, run: DueRun) -> Any:
        """What can be done for ``run`` before it is due; given back to ``publish``. Raises ``Undeliverable``."""
        ...

    def publish(self, prepared: Sequence[Any]) -> None:
        """Hand over what ``prepare`` returned, in this order. Raises ``DispatchFailed``, or what is wrong with one."""
        ...

    def revoke(self, run_id: UUID, attempt: int, worker: str = "") -> None:
        """Have workers drop what they still hold of this attempt; and have ``worker``, which executes it, look at once
        whether it is to stop. Takes seconds at the most. Raises ``DispatchFailed``."""
        ...

    def take_back(self) -> list[tuple[UUID, int]]:
        """The (run, attempt) of those handed over that this process would execute and has not started: now it will not."""
        ...

    def executing(self) -> list[str]:
        """The job's name for each run that executes in this process."""
        ...

    def close(self, wait: bool = True) -> None:
        """Let go of connections and threads; ``wait``: until runs executing in this process have ended."""
        ...
