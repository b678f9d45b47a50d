"""Handing runs to the workers of Django's own tasks (``django.tasks``, from Django 6.0 on).

They know no batch, so runs are enqueued one by one. What the backend has taken is never enqueued again with what it has not.

An error that tells of a value, such as the queue's name, is about its run: this waits for a try of its own, and is refused if
that fails, too. No other error ends a run. Most of them tell of the backend (its tables are missing, its server is down): after
a few in a row it is left alone, and if it took none at all it is away. But each may be about its run after all. So the others are
tried first the next time, and a run that fails while others go through keeps back only those of its kind.

Enqueueing may need a database, if the backend keeps its tasks in one. A connection to it that was cut off while it was idle is
made anew, once for each run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from json import JSONDecodeError
from typing import Any
from uuid import UUID

from django.db import DataError, InterfaceError, OperationalError, connections
from django.tasks import DEFAULT_TASK_QUEUE_NAME, Task, task_backends
from django.tasks.backends.base import BaseTaskBackend
from django.tasks.base import DEFAULT_TASK_PRIORITY
from django.tasks.exceptions import InvalidTask
from django.utils.module_loading import import_string

from django_dcron import targets
from django_dcron.conf import settings
from django_dcron.dispatch.base import DispatchFailed, DueRun, TakenInPart, Undeliverable
from django_dcron.exceptions import UnknownTarget

TASK = "django_dcron.django_tasks.execute_run"
"""By its path, as workers find it: what it calls stands above this package."""
HIGHEST = 9
"""Of a job's priorities."""
OF_A_VALUE = (InvalidTask, DataError, TypeError, ValueError)
OF_THE_WIRE = (OSError, JSONDecodeError)
"""Some of which are ValueErrors: a certificate that has expired, the page of a proxy where an answer should be."""
BATCH_SIZE = 100
"""A round trip or more for each: a few seconds, if the backend is slow."""
ERRORS_IN_A_ROW = 3
"""Before the backend is asked no further."""


@dataclass(eq=False, slots=True)
class Prepared:
    task: Task[Any, Any]
    run_id: str
    attempt: int
    errors: int = 0
    """How often it was not taken, for an error that tells nothing of it."""
    taken_before: int = 0
    """How many others the dispatcher had handed over when that first happened."""


class DjangoTaskDispatcher:
    """Thread-safe, as the backends are: each thread has its own. (What is counted side by side may be counted short.)"""

    batch_size = BATCH_SIZE

    def __init__(self) -> None:
        self._alias = settings.TASKS_BACKEND
        self._task: Task[Any, Any] = import_string(TASK)
        self._taken = 0
        self._away = False
        """It took none of what it was asked last, for all that is known of these."""

    @property
    def address(self) -> str:
        kind = type(self._backend)
        return f"task backend {self._alias!r} ({kind.__module__}.{kind.__qualname__})"

    def prepare(self, run: DueRun) -> Prepared:
        backend, own = self._backend, self._own_task(run.target)
        queue = run.queue or self.queue_of(run.target)
        if backend.queues and queue not in backend.queues:
            known = ", ".join(map(repr, sorted(backend.queues)))
            raise Undeliverable(f"queue {queue!r} is not one of those of the {self.address}: {known}")
        priority = own.priority if own else DEFAULT_TASK_PRIORITY
        if run.priority is not None:
            priority = priority_of(run.priority)
        if not backend.supports_priority:  # it would refuse any; brokers without priorities just ignore them
            priority = DEFAULT_TASK_PRIORITY
        try:
            task = self._task.using(backend=self._alias, queue_name=queue, priority=priority)
        except InvalidTask as error:
            raise Undeliverable(f"the {self.address} does not take it: {error}") from error
        return Prepared(task, str(run.run_id), run.attempt)

    def publish(self, prepared: Sequence[Prepared]) -> None:
        taken_before, left, said = self._taken, set(range(len(prepared))), set()
        failed: list[Prepared] = []
        in_a_row = 0
        cause: Exception | None = None
        for position in sorted(left, key=lambda position: prepared[position].errors):
            item = prepared[position]
            try:
                _enqueue(item)
            except Exception as error:
                if _is_of_a_value(error):
                    refusal = f"the {self.address} refuses it, in queue {item.task.queue_name!r}: {_in_words(error)}"
                    if len(prepared) == 1:
                        raise Undeliverable(refusal) from error
                    said.add(refusal)
                    continue
                said.add(_in_words(error))
                cause = error
                failed.append(item)
                in_a_row += 1
                if in_a_row == ERRORS_IN_A_ROW:
                    break
            else:
                left.discard(position)
                self._taken += 1
                self._away = False
                in_a_row = 0
        if cause is not None and self._taken == taken_before and not self._is_of(failed):
            self._away = True
        for item in failed:
            if not item.errors:
                item.taken_before = self._taken
            item.errors += 1
        if cause is not None and self._away:
            raise DispatchFailed(_in_words(cause)) from cause
        if left:
            raise TakenInPart("; ".join(sorted(said)), left, by_error=cause is not None) from cause

    def _is_of(self, failed: Sequence[Prepared]) -> bool:
        """Whether an error is rather about those it came with: others went through since each of them failed first, and
        nothing is known to be wrong with the backend."""
        return not self._away and all(item.errors and item.taken_before < self._taken for item in failed)

    def revoke(self, run_id: UUID, attempt: int, worker: str = "") -> None:
        """Nobody to tell: what is enqueued stays, and is dropped at its start; who executes it looks at its next heartbeat."""

    def queue_of(self, target: str) -> str:
        """The queue of a target whose job names none."""
        own = self._own_task(target)
        return own.queue_name if own else default_queue(self._backend)

    def take_back(self) -> list[tuple[UUID, int]]:
        return []  # the workers have them

    def executing(self) -> list[str]:
        return []

    def close(self, wait: bool = True) -> None:
        """Nothing is kept open but what Django keeps for each thread."""

    @property
    def _backend(self) -> BaseTaskBackend:
        return task_backends[self._alias]

    def _own_task(self, key: str) -> Task[Any, Any] | None:
        """The target, if it is a Django task of this very backend: where a job says nothing of queue or priority, its own count."""
        try:
            task = targets.get(key).django_task
        except UnknownTarget:
            return None  # the worker will say so, on the run
        return task if task is not None and task.backend == self._alias else None


def default_queue(backend: BaseTaskBackend) -> str:
    """Django's default; or the only one, if the backend has but one of another name."""
    if len(backend.queues) == 1:
        return str(next(iter(backend.queues)))
    return DEFAULT_TASK_QUEUE_NAME


def priority_of(priority: int) -> int:
    """A job's 0 to 9 as Django's -100 to 100, where the highest comes first."""
    return round(200 * priority / HIGHEST) - 100


def _enqueue(item: Prepared) -> None:
    try:
        item.task.enqueue(item.run_id, item.attempt)
    except (OperationalError, InterfaceError):
        _drop_broken_connections()
        item.task.enqueue(item.run_id, item.attempt)


def _drop_broken_connections() -> None:
    """This thread's. Whoever asks at once, past the scheduler, may be within a transaction of another database."""
    for connection in connections.all(initialized_only=True):
        if not connection.in_atomic_block:
            connection.close_if_unusable_or_obsolete()


def _is_of_a_value(error: Exception) -> bool:
    return isinstance(error, OF_A_VALUE) and not isinstance(error, OF_THE_WIRE)


def _in_words(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".removesuffix(": ")
