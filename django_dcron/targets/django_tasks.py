"""Django tasks (``django.tasks``, Django 6.0) as targets, under their paths: ``shop.tasks.report``.

Django keeps no list of its tasks: they are attributes of modules. Two kinds of tasks are targets:

- A task in a module of an installed app, under its own name, if the module has been imported. The
  first lookup imports the ``tasks`` module of every app, as Celery does.
- A task that ``@cron`` declares.

A key never determines which module is imported. An attempt of a run calls the task's function
directly: no task is enqueued, and no signals of ``django.tasks`` are sent.
"""

from __future__ import annotations

import inspect
import logging
import sys
import threading
from collections.abc import Iterator
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

import django
from django.apps import apps
from django.conf import settings
from django.utils.module_loading import module_has_submodule

from django_dcron.db import clock
from django_dcron.targets.base import Invocation, Target, TargetKind, first_line
from django_dcron.targets.parameters import TargetParameter, parameters_of
from django_dcron.targets.signatures import check_call, signature_of, signature_text

if TYPE_CHECKING:
    from inspect import Signature

    from django.tasks import Task, TaskContext

logger = logging.getLogger(__name__)

RESERVED_PREFIX = "django_dcron."
"""Prefix of the task that carries the runs."""

registered: dict[str, Any] = {}
"""Tasks that ``@cron`` declares, in any module."""


class DjangoTaskTarget(Target):
    kind = TargetKind.DJANGO_TASK

    def __init__(self, key: str, task: Task[Any, Any]):
        self.key = key
        self.task = task

    @property
    def description(self) -> str:
        return first_line(self.task.func.__doc__)

    @property
    def is_async(self) -> bool:
        return inspect.iscoroutinefunction(self.task.func)

    @property
    def signature(self) -> str:
        return signature_text(self._signature())

    @property
    def parameters(self) -> list[TargetParameter] | None:
        return parameters_of(self._signature(), self.task.func)

    @property
    def django_task(self) -> Task[Any, Any]:
        return self.task

    def check_arguments(self, args: list[Any], kwargs: dict[str, Any]) -> None:
        check_call(self._signature(), args, kwargs)

    def call(self, invocation: Invocation) -> Any:
        """Call the task's function."""
        context = [_context(self.task, invocation)] if self.task.takes_context else []
        return self.task.func(*context, *invocation.args, **invocation.kwargs)

    def _signature(self) -> Signature | None:
        """Return the signature without the context, which the job doesn't provide."""
        signature = signature_of(self.task.func)
        if signature is None or not self.task.takes_context:
            return signature
        return signature.replace(parameters=list(signature.parameters.values())[1:])


def _context(task: Task[Any, Any], invocation: Invocation) -> TaskContext[Any, Any]:
    """Return the context that a worker of the task's backend would pass.

    It has the run's id and attempt. The backend doesn't store this result.
    """
    from django.tasks import TaskContext, TaskResult, TaskResultStatus

    now = clock.now()
    result: TaskResult[Any, Any] = TaskResult(
        task=task,
        id=invocation.call_id,
        status=TaskResultStatus.RUNNING,
        enqueued_at=now,
        started_at=now,
        last_attempted_at=now,
        finished_at=None,
        args=invocation.args,
        kwargs=invocation.kwargs,
        backend=task.backend,
        errors=[],
        worker_ids=[invocation.worker] * invocation.attempt,  # their number is the attempt
    )
    return TaskContext(task_result=result)


def is_django_task(value: object) -> bool:
    """Return whether ``value`` is a Django task, without evaluating a lazy object."""
    if not has_tasks():
        return False
    from django.tasks import Task

    return issubclass(type(value), Task)


def has_tasks() -> bool:
    """Return whether this Django has ``django.tasks``."""
    return django.VERSION >= (6, 0)


def register_django_task(task: Task[Any, Any]) -> str:
    """Make ``task`` from any module a target and return its key."""
    key = task.module_path
    registered[key] = task
    return key


def find(key: str) -> DjangoTaskTarget | None:
    if key.startswith(RESERVED_PREFIX) or not has_tasks():
        return None
    _import_task_modules()
    task: Any = registered.get(key)
    module, _, name = key.rpartition(".")
    if task is None and _is_in_an_app(module):
        task = attributes_of(sys.modules.get(module)).get(name)
    return DjangoTaskTarget(key, task) if is_django_task(task) and task.module_path == key else None


def keys() -> list[str]:
    if not has_tasks():
        return []
    _import_task_modules()
    return [*registered, *_tasks_in_apps()]


def _tasks_in_apps() -> Iterator[str]:
    for path, module in list(sys.modules.items()):
        if path.startswith(RESERVED_PREFIX) or not _is_in_an_app(path):
            continue
        for name, value in list(attributes_of(module).items()):
            if is_django_task(value) and value.module_path == f"{path}.{name}":
                yield value.module_path


def _is_in_an_app(module: str) -> bool:
    return any(f"{module}.".startswith(f"{app.name}.") for app in apps.app_configs.values())


def attributes_of(module: object) -> dict[str, Any]:
    """Return the module's present attributes.

    This neither loads a lazy module nor calls its ``__getattr__``.
    """
    content: dict[str, Any] = (
        object.__getattribute__(module, "__dict__") if isinstance(module, ModuleType) else {}
    )
    return content


# --- Importing the modules that define tasks ------------------------------------------------------

_problems: list[str] | None = None
"""The errors of modules that failed to import; None until the import."""
_importing = threading.local()


def discovery_problem() -> str:
    """Return why ``tasks`` modules of apps failed to import; empty if none did."""
    if has_tasks():
        _import_task_modules()
    return "; ".join(_problems or ())


def _import_task_modules() -> None:
    """Import the ``tasks`` modules of all apps once, if the project sets ``TASKS``.

    Concurrent threads may repeat the import, which is harmless. During the import, and while Django
    loads its apps, the tasks known so far are used.
    """
    global _problems
    if _problems is not None or getattr(_importing, "now", False):
        return
    if not apps.ready or not settings.is_overridden("TASKS"):  # type: ignore[misc]  # not in the stubs
        return
    _importing.now = True
    try:
        _problems = [
            problem for app in apps.get_app_configs() if (problem := _import_tasks_of(app))
        ]
    finally:
        _importing.now = False


def _import_tasks_of(app: Any) -> str:
    """Import the module. Returns the error, or "" if there was none."""
    try:
        if module_has_submodule(app.module, "tasks"):
            import_module(f"{app.name}.tasks")
    except Exception as error:
        extra = {"event": "tasks_not_imported"}
        logger.exception("task modules not imported: module=%s.tasks", app.name, extra=extra)
        return f"{type(error).__name__}: {error}"
    return ""
