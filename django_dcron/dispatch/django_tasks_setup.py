"""How the project has set up Django's own tasks: asked by the system checks, and before runs are handed to them. Connects to nothing.

Django has them from 6.0 on, so nothing of them is imported before that is known.
"""

from __future__ import annotations

import django

from django_dcron.conf import settings
from django_dcron.targets.django_tasks import has_tasks


def problem() -> str | None:
    """Why nothing can be handed over as the project stands, or None."""
    if not has_tasks():
        return f"Django's own tasks need Django 6.0 or later; this is {django.get_version()}"
    alias = settings.TASKS_BACKEND
    if said := backend_problem():
        return f"there is no task backend {alias!r}: {said}"
    if said := workerless():
        return f"the task backend {alias!r} {said}"
    return None


def backend_problem() -> str | None:
    """Why there is no such backend, or None."""
    from django.tasks import task_backends

    try:
        task_backends[settings.TASKS_BACKEND]
    except Exception as error:  # whatever a backend of somebody else's raises
        return f"{type(error).__name__}: {error}"
    return None


def workerless() -> str | None:
    """What the backend does instead, if it is one of Django's own two that have no workers. Asked only if there is one."""
    from django.tasks import task_backends
    from django.tasks.backends.dummy import DummyBackend
    from django.tasks.backends.immediate import ImmediateBackend

    backend = task_backends[settings.TASKS_BACKEND]
    if isinstance(backend, ImmediateBackend):
        # In a node that would be the agenda's thread: whatever is due meanwhile would wait for the job's code.
        return (
            "executes what it is given there and then, in the process that hands it over: it has no workers"
        )
    if isinstance(backend, DummyBackend):
        return "executes nothing"
    return None
