"""Dispatch to the workers of Django's tasks (``django.tasks``, Django 6.0 and later).

Django's tasks have no batches, so runs are enqueued one by one. A run that the backend has accepted
is never enqueued again because of the others.

Invariants:

- An error about a value, such as the queue's name, concerns only its run. The run is tried again
  alone, and refused if that fails.
- No other error ends a run. Most concern the backend: its tables are missing, or its server is
  unreachable.
- After a few consecutive errors, the rest of the batch isn't tried. If the backend accepted no run
  at all, it counts as unreachable.
- Such an error may still concern only its run. In the next batch, all other runs are tried first. A
  run that fails while others succeed delays only runs of its kind.
- If the backend uses a database and its idle connection was cut, the dispatcher reconnects, once
  per run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
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
from django_dcron.dispatch.base import DispatchFailed, DueRun, PartlyPublished, Undeliverable
from django_dcron.exceptions import UnknownTarget

TASK = "django_dcron.django_tasks.execute_run"
"""The dotted path of the task, because the task's module is in a higher layer than this package."""
HIGHEST_PRIORITY = 9
"""The highest priority of a job."""
VALUE_ERRORS = (InvalidTask, DataError, TypeError, ValueError)
TRANSPORT_ERRORS = (OSError, JSONDecodeError)
"""Some of these are ValueErrors, for example an expired certificate or a proxy's page instead of a
reply.
"""
BATCH_SIZE = 100
"""Each run needs at least one round trip, so a batch takes a few seconds with a slow backend."""
MAX_CONSECUTIVE_ERRORS = 3
"""The number of consecutive errors after which the rest of the batch isn't tried."""


@dataclass(eq=False, slots=True)
class PreparedTask:
    task: Task[Any, Any]
    run_id: str
    attempt: int
    errors: int = 0
    """The number of failed tries with an error that may not be about this run."""
    enqueued_before: int = 0
    """The number of runs that the dispatcher had enqueued after the batch with the first error."""


@dataclass(slots=True)
class _Batch:
    """The result of one call of ``publish``."""

    remaining: set[int]
    """The positions of the runs that weren't enqueued."""
    failed: list[PreparedTask] = field(default_factory=list)
    """The runs whose error may not be about them."""
    cause: Exception | None = None
    """The last of these errors."""
    reasons: set[str] = field(default_factory=set)
    """The texts of all errors."""


class DjangoTaskDispatcher:
    """Enqueues runs as Django tasks. Thread-safe, because each thread has its own backend.

    The counts may be too low if threads publish at the same time.
    """

    batch_size = BATCH_SIZE

    def __init__(self) -> None:
        self._alias = settings.TASKS_BACKEND
        self._task: Task[Any, Any] = import_string(TASK)
        self._enqueued = 0
        self._unreachable = False
        """Whether the backend counts as unreachable: it accepted no run of the last batch."""

    @property
    def address(self) -> str:
        kind = type(self._backend)
        return f"task backend {self._alias!r} ({kind.__module__}.{kind.__qualname__})"

    def prepare(self, run: DueRun) -> PreparedTask:
        backend, django_task = self._backend, self._own_task(run.target)
        queue = run.queue or self.queue_of(run.target)
        if backend.queues and queue not in backend.queues:
            known = ", ".join(map(repr, sorted(backend.queues)))
            raise Undeliverable(
                f"queue {queue!r} isn't a queue of the {self.address} (allowed: {known})"
            )
        priority = django_task.priority if django_task else DEFAULT_TASK_PRIORITY
        if run.priority is not None:
            priority = priority_of(run.priority)
        # A backend without priorities refuses all but the default. Celery's brokers ignore them.
        if not backend.supports_priority:
            priority = DEFAULT_TASK_PRIORITY
        try:
            task = self._task.using(backend=self._alias, queue_name=queue, priority=priority)
        except InvalidTask as error:
            raise Undeliverable(f"the {self.address} rejects the task: {error}") from error
        return PreparedTask(task, str(run.run_id), run.attempt)

    def publish(self, prepared: Sequence[PreparedTask]) -> None:
        enqueued_before = self._enqueued
        batch = self._enqueue_batch(prepared)
        cause = batch.cause
        if (
            cause is not None
            and self._enqueued == enqueued_before
            and not self._errors_concern_runs(batch.failed)
        ):
            self._unreachable = True
        for item in batch.failed:
            if not item.errors:
                item.enqueued_before = self._enqueued
            item.errors += 1
        if cause is not None and self._unreachable:
            raise DispatchFailed(_backend_error_text(cause)) from cause
        if batch.remaining:
            raise PartlyPublished(
                "; ".join(sorted(batch.reasons)), batch.remaining, by_error=cause is not None
            ) from cause

    def _enqueue_batch(self, prepared: Sequence[PreparedTask]) -> _Batch:
        """Enqueue the runs, those without errors first, until too many consecutive errors.

        Raises ``Undeliverable`` if the batch is one run and the error is about its values.
        """
        batch = _Batch(remaining=set(range(len(prepared))))
        consecutive_errors = 0
        for position in sorted(batch.remaining, key=lambda position: prepared[position].errors):
            item = prepared[position]
            try:
                _enqueue(item)
            except Exception as error:
                if _concerns_value(error):
                    refusal = (
                        f"the {self.address} rejects the task, queue {item.task.queue_name!r}: "
                        f"{_backend_error_text(error)}"
                    )
                    if len(prepared) == 1:
                        raise Undeliverable(refusal) from error
                    batch.reasons.add(refusal)
                    continue
                batch.reasons.add(_backend_error_text(error))
                batch.cause = error
                batch.failed.append(item)
                consecutive_errors += 1
                if consecutive_errors == MAX_CONSECUTIVE_ERRORS:
                    break
            else:
                batch.remaining.discard(position)
                self._enqueued += 1
                self._unreachable = False
                consecutive_errors = 0
        return batch

    def _errors_concern_runs(self, failed: Sequence[PreparedTask]) -> bool:
        """Return whether the errors are probably about the runs that failed.

        They are if other runs were enqueued since the first failure of each of these runs, and the
        backend doesn't count as unreachable.
        """
        return not self._unreachable and all(
            item.errors and item.enqueued_before < self._enqueued for item in failed
        )

    def revoke(self, run_id: UUID, attempt: int, worker: str = "") -> None:
        """Do nothing, because enqueued tasks can't be revoked.

        A worker that receives the task later drops it. A worker that executes the run notices a
        cancellation at its next heartbeat.
        """

    def queue_of(self, target: str) -> str:
        """Return the target's default queue, for jobs without a queue."""
        django_task = self._own_task(target)
        return django_task.queue_name if django_task else default_queue(self._backend)

    def take_unstarted(self) -> list[tuple[UUID, int]]:
        return []  # the messages are with the backend

    def executing(self) -> list[str]:
        return []

    def close(self, wait: bool = True) -> None:
        """Do nothing: only Django's connections are open, one per thread."""

    @property
    def _backend(self) -> BaseTaskBackend:
        return task_backends[self._alias]

    def _own_task(self, key: str) -> Task[Any, Any] | None:
        """Return the target if it is a Django task of this backend.

        Its queue and priority apply if the job sets none.
        """
        try:
            task = targets.get(key).django_task
        except UnknownTarget:
            return None  # The worker reports the missing target on the run.
        return task if task is not None and task.backend == self._alias else None


def default_queue(backend: BaseTaskBackend) -> str:
    """Return Django's default queue, or the only queue of the backend."""
    if len(backend.queues) == 1:
        return str(next(iter(backend.queues)))
    return DEFAULT_TASK_QUEUE_NAME


def priority_of(priority: int) -> int:
    """Convert a job's priority (0 to 9) to Django's (-100 to 100).

    Higher numbers come first in both.
    """
    return round(200 * priority / HIGHEST_PRIORITY) - 100


def _enqueue(item: PreparedTask) -> None:
    try:
        item.task.enqueue(item.run_id, item.attempt)
    except (OperationalError, InterfaceError):
        _drop_broken_connections()
        item.task.enqueue(item.run_id, item.attempt)


def _drop_broken_connections() -> None:
    """Close this thread's broken connections, except those within a transaction.

    Processes other than nodes may publish within a transaction of another database.
    """
    for connection in connections.all(initialized_only=True):
        if not connection.in_atomic_block:
            connection.close_if_unusable_or_obsolete()


def _concerns_value(error: Exception) -> bool:
    return isinstance(error, VALUE_ERRORS) and not isinstance(error, TRANSPORT_ERRORS)


def _backend_error_text(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".removesuffix(": ")
