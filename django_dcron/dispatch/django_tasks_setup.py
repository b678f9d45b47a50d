"""The project's setup of Django's tasks, for the system checks and the start of a node.

The functions connect to nothing. They import ``django.tasks`` only if this Django has it (6.0 and
later).
"""

from __future__ import annotations

import django

from django_dcron.conf import settings
from django_dcron.targets.django_tasks import has_tasks


def dispatch_problem() -> str | None:
    """Return why no run can be dispatched, or None."""
    if not has_tasks():
        return f"Django's own tasks need Django 6.0 or later; this is {django.get_version()}"
    alias = settings.TASKS_BACKEND
    if text := backend_problem():
        return f"there is no task backend {alias!r}: {text}"
    if text := why_no_workers():
        return f"the task backend {alias!r} {text}"
    return None


def backend_problem() -> str | None:
    """Return why the backend doesn't exist, or None."""
    from django.tasks import task_backends

    try:
        task_backends[settings.TASKS_BACKEND]
    except Exception as error:  # a third-party backend may raise anything
        return f"{type(error).__name__}: {error}"
    return None


def why_no_workers() -> str | None:
    """Return what a backend without workers does with a task, or None for other backends.

    Recognizes Django's immediate and dummy backends. The backend must exist.
    """
    from django.tasks import task_backends
    from django.tasks.backends.dummy import DummyBackend
    from django.tasks.backends.immediate import ImmediateBackend

    backend = task_backends[settings.TASKS_BACKEND]
    if isinstance(backend, ImmediateBackend):
        # In a node, the agenda's thread would execute the job's code, and due runs would wait.
        return "executes tasks immediately in the process that enqueues them, so it has no workers"
    if isinstance(backend, DummyBackend):
        return "executes nothing"
    return None
