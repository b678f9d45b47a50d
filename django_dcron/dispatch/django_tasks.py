"""Handing runs to the workers of Django's own tasks (``django.tasks``, from Django 6.0 on).

They know no batch, so runs are enqueued one by one. What was enqueued before the backend went away half way is remembered,
and not enqueued again with the rest.

All messages are alike but for the run's id and the attempt, so an error is hardly ever about one of them. It is if it tells of
a value, such as the queue's name: such a run waits for a try of its own, and is refused if that fails, too. All others tell
of the backend (its tables are missing, its server is down, its driver has errors of its own): the runs wait until it takes them.

Enqueueing may need a database, if the backend keeps its tasks in one. A connection to it that was cut off while it was idle is
made anew, once for each run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
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
OF_A_VALUE = (InvalidTask, DataError, LookupError, TypeError, ValueError)


@dataclass(eq=False, slots=True)
class Prepared:
    task: Task[Any, Any]
    run_id: str
    attempt: int
    handed_over: bool = False


class DjangoTaskDispatcher:
    """Thread-safe, as the backends are: each thread has its own."""

    def __init__(self) -> None:
        self._alias = settings.TASKS_BACKEND
        self._task: Task[Any, Any] = import_string(TASK)

    @property
    def address(self) -> str:
        kind = type(self._backend)
        return f"task backend {self._alias!r} ({kind.__module__}.{kind.__qualname__})"

    def prepare(self, run: DueRun) -> Prepared:
        backend, own = self._backend, self._own_task(run.target)
        queue = run.queue or (own.queue_name if own else default_queue(backend))
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
        refused: dict[int, str] = {}
        for position, item in enumerate(prepared):
            if item.handed_over:
                continue
            try:
                _enqueue(item)
            except OF_A_VALUE as error:
                said = f"the {self.address} refuses it, in queue {item.task.queue_name!r}: {_in_words(error)}"
                if len(prepared) == 1:
                    raise Undeliverable(said) from error
                refused[position] = said
            except Exception as error:
                raise DispatchFailed(_in_words(error)) from error
            else:
                item.handed_over = True
        if refused:
            raise TakenInPart("; ".join(sorted(set(refused.values()))), refused)

    def revoke(self, run_id: UUID, attempt: int, worker: str = "") -> None:
        """Nobody to tell: what is enqueued stays, and is dropped at its start; who executes it looks at its next heartbeat."""

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


def _in_words(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".removesuffix(": ")
