"""The dispatcher: the protocol for publishing due runs to workers.

Invariants of every dispatcher:

- ``publish`` needs no database and may be repeated: a run that is delivered twice starts once.
- ``publish`` either dispatches all runs or raises. After an error, it is unknown which runs were
  delivered.
- After ``DispatchFailed``, all runs are tried again, because none of them caused the error. After
  ``PartlyPublished``, only the runs that it names are tried again; the others were dispatched.
- Any other error is caused by one run. The caller tries smaller and smaller batches, and refuses a
  run that fails alone. That ends the run.
- A dispatcher never delays a run: the scheduler decides about retries and due times.
- ``revoke`` only saves time and may be lost, because the start and the running worker check the
  database.
- Only an attempt that can never start again is revoked: it has started, or its run has ended.
  Otherwise, workers would remember the revoked attempt and drop its deliveries for hours.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Protocol, runtime_checkable
from uuid import UUID

from django_dcron.exceptions import DcronError


class DispatchFailed(DcronError):
    """The broker is unreachable or accepts nothing now. ``__cause__`` is its error."""


class PartlyPublished(DispatchFailed):
    """The broker is reachable but rejects some of the runs now.

    For example, a queue is full, missing or faulty.
    """

    def __init__(self, text: str, rejected: Container[int], *, by_error: bool = False):
        super().__init__(text)
        self.rejected = rejected
        """The positions of the rejected runs in the argument of ``publish``. All others were
        dispatched.
        """
        self.by_error = by_error
        """Whether an error caused the rejection, not a lack of room. Other runs of the same kind
        may succeed.
        """


class Undeliverable(DcronError):
    """The run can never be dispatched with the current definition of its job.

    The message gives the reason.
    """


@dataclass(frozen=True, slots=True)
class DueRun:
    """One attempt of a run, with the job's data that a dispatcher needs.

    The fields have the order of the columns that ``scheduler.adoption`` reads.
    """

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
class UnknownRunReport:
    """A run that a worker received and didn't find in its database."""

    run_id: UUID
    age: float
    """Seconds since the worker dropped the message, or otherwise since it last received it."""
    dropped: bool
    """Whether the message didn't go back to the queue."""


@dataclass(frozen=True, slots=True)
class BeatTask:
    """A task that Celery's beat has sent to a worker."""

    name: str
    age: float
    """Seconds since the worker last received the task from beat."""


@dataclass(frozen=True, slots=True)
class WorkerReply:
    """The state that one worker reports."""

    name: str
    queues: tuple[str, ...]
    executes: bool
    """Whether the worker has django-dcron's task."""
    unknown_runs: tuple[UnknownRunReport, ...] = ()
    beat_tasks: tuple[BeatTask, ...] = ()


@runtime_checkable
class SupportsWorkerRequests(Protocol):
    """A dispatcher that can ask the workers of its broker for their state.

    The messages that it publishes name the node.
    """

    node: str
    """The id of the node that publishes through this dispatcher."""

    def ask_workers(self) -> list[WorkerReply] | None:
        """Return the workers that reply within a few seconds.

        None: the broker or the project doesn't support remote control. Uses a separate connection,
        so publishing doesn't wait. Raises ``DispatchFailed``.
        """
        ...


@runtime_checkable
class SupportsEarlyConnection(Protocol):
    """A dispatcher that can connect to its broker before a run is due."""

    def connect_ahead(self, prepared: Any) -> None:
        """Connect for ``prepared``, the run that is due next, unless there is a working connection.

        Takes at most as long as a ``publish`` that fails. Never raises: ``publish`` reports the
        error.
        """
        ...


@runtime_checkable
class SupportsBulkRevocation(Protocol):
    """A dispatcher that can revoke many attempts with few messages."""

    def revoke_many(self, attempts: Sequence[tuple[UUID, int]]) -> None:
        """Revoke attempts that no worker executes: (run, attempt) of each. See ``revoke``."""
        ...


class Dispatcher(Protocol):
    @property
    def address(self) -> str:
        """The destination of the runs, for display. It contains no password."""
        ...

    @property
    def batch_size(self) -> int:
        """The maximum number of runs per call of ``publish``.

        A batch should take a few seconds at most. A thread that needs longer than
        ``DCRON_HANG_AFTER`` for a batch is considered hung.
        """
        ...

    def prepare(self, run: DueRun) -> Any:
        """Do the work for ``run`` that is possible ahead of time.

        Return the argument for ``publish``. Raises ``Undeliverable``.
        """
        ...

    def publish(self, prepared: Sequence[Any]) -> None:
        """Dispatch the results of ``prepare``, in this order.

        Raises ``DispatchFailed``, or the error of one of the runs.
        """
        ...

    def revoke(self, run_id: UUID, attempt: int, worker: str = "") -> None:
        """Make workers drop the messages of this attempt.

        If ``worker`` executes the attempt, it checks at once whether to stop. Takes a few seconds
        at most. Raises ``DispatchFailed``.
        """
        ...

    def take_unstarted(self) -> list[tuple[UUID, int]]:
        """Remove and return the dispatched runs that this process hasn't started.

        Returns (run, attempt) of each. They won't start here.
        """
        ...

    def executing(self) -> list[str]:
        """Return the job's name for each run that executes in this process."""
        ...

    def close(self, wait: bool = True) -> None:
        """Close connections and threads. ``wait``: wait until runs in this process have ended."""
        ...
