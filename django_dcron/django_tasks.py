"""The one Django task (``django.tasks``, from Django 6.0 on): the way in for workers of the project's task backend.

All that decides anything is in ``execution``. Imported only by who hands runs to such a backend, and by its workers.

Whatever such a worker is, it is not ended by force: nobody knows what else its process does, nor whether anybody starts it again.
"""

from __future__ import annotations

import os
import platform
from uuid import UUID

from django.tasks import DEFAULT_TASK_QUEUE_NAME, task, task_backends

from django_dcron.conf import settings
from django_dcron.exceptions import UnknownRun
from django_dcron.execution.executor import execute
from django_dcron.execution.unknown_runs import published_here, warnings

_BACKEND = settings.TASKS_BACKEND
_QUEUES = task_backends[_BACKEND].queues
"""A task must have one of them, though each run is enqueued in its own; empty: any will do."""


@task(backend=_BACKEND, queue_name=min(_QUEUES, default=DEFAULT_TASK_QUEUE_NAME))
def execute_run(run_id: str, attempt: int) -> None:
    worker = f"{platform.node()}/{os.getpid()}"
    try:
        execute(UUID(run_id), attempt, worker=worker)
    except UnknownRun:
        consequence = "The node hands the run over again after DCRON_REDELIVER_AFTER, if it exists."
        warnings.log(UUID(run_id), attempt, worker, consequence, expected=published_here(None))
