"""The one task that workers of Django's tasks execute (Django 6.0 and later).

All decisions are made in ``execution``. Only dispatchers and workers of such a backend import this
module.

If a run ignores its timeout, its process isn't killed. The process may be doing other work, and
perhaps nothing would restart it.
"""

from __future__ import annotations

import os
import platform
from uuid import UUID

from django.tasks import DEFAULT_TASK_QUEUE_NAME, task, task_backends

from django_dcron.conf import settings
from django_dcron.exceptions import UnknownRun
from django_dcron.execution.executor import execute
from django_dcron.execution.unknown_runs import is_published_here, unknown_run_log

_BACKEND = settings.TASKS_BACKEND
_QUEUES = task_backends[_BACKEND].queues
"""The queues of the backend. A task must declare one of them, but each run is enqueued in its own
queue. Empty: any queue.
"""


@task(backend=_BACKEND, queue_name=min(_QUEUES, default=DEFAULT_TASK_QUEUE_NAME))
def execute_run(run_id: str, attempt: int) -> None:
    worker = f"{platform.node()}/{os.getpid()}"
    try:
        execute(UUID(run_id), attempt, worker=worker)
    except UnknownRun:
        consequence = "If the run exists, a node dispatches it again after DCRON_REDELIVER_AFTER."
        unknown_run_log.log(
            UUID(run_id), attempt, worker, consequence, expected=is_published_here(None)
        )
