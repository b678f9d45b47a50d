"""Django's own tasks (``django.tasks``, from Django 6.0 on) as targets, under their paths: ``shop.tasks.report``.

Django keeps no list of them: they are attributes of modules. A target is one that stands, under its own name, in a module of
an installed app that has been imported (every app's ``tasks`` module is, when one is first looked for, as Celery's recipe does
it), or that ``@cron`` declares. A key never has anything imported.

A job calls the task's function, in the process and the attempt of its run: nothing is enqueued, and none of the signals of
``django.tasks`` is sent for it.
"""

from __future__ import annotations

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

from django_dcron.domain import clock
from django_dcron.targets.base import Invocation, Target, TargetKind, first_line
from django_dcron.targets.signatures import check_call, in_words, signature_of

if TYPE_CHECKING:
    from inspect import Signature

    from django.tasks import Task, TaskContext

logger = logging.getLogger(__name__)

NOT_FOR_JOBS = "django_dcron."
"""The task that carries the runs."""

registered: dict[str, Any] = {}
"""Those that ``@cron`` declares, wherever they stand."""


class DjangoTaskTarget(Target):
    kind = TargetKind.DJANGO_TASK

    def __init__(self, key: str, task: Task[Any, Any]):
        self.key = key
        self.task = task

    @property
    def description(self) -> str:
        return first_line(self.task.func.__doc__)

    @property
    def signature(self) -> str:
        return in_words(self._signature())

    @property
    def django_task(self) -> Task[Any, Any]:
        return self.task

    def check_arguments(self, args: list[Any], kwargs: dict[str, Any]) -> None:
        check_call(self._signature(), args, kwargs)

    def call(self, invocation: Invocation) -> Any:
        """A coroutine function runs in an event loop of its own."""
        context = [_context(self.task, invocation)] if self.task.takes_context else []
        return self.task.call(*context, *invocation.args, **invocation.kwargs)

    def _signature(self) -> Signature | None:
        """Without the context, which is not the job's to give."""
        signature = signature_of(self.task.func)
        if signature is None or not self.task.takes_context:
            return signature
        return signature.replace(parameters=list(signature.parameters.values())[1:])


def _context(task: Task[Any, Any], invocation: Invocation) -> TaskContext[Any, Any]:
    """What a worker of the task's backend would pass: the call's id and attempt are the run's. The backend knows no such result."""
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
        worker_ids=[invocation.worker] * invocation.attempt,  # their number is the attempt's
    )
    return TaskContext(task_result=result)


def is_task(thing: object) -> bool:
    """Whether it is a Django task. Asks its type alone: a lazy object is not woken by that."""
    if not has_tasks():
        return False
    from django.tasks import Task

    return issubclass(type(thing), Task)


def has_tasks() -> bool:
    return django.VERSION >= (6, 0)


def register(task: Task[Any, Any]) -> str:
    """Make ``task`` a target, wherever it stands, and return its key."""
    key = task.module_path
    registered[key] = task
    return key


def find(key: str) -> DjangoTaskTarget | None:
    if key.startswith(NOT_FOR_JOBS) or not has_tasks():
        return None
    _import_task_modules()
    task: Any = registered.get(key)
    module, _, name = key.rpartition(".")
    if task is None and _is_of_an_app(module):
        task = _content(sys.modules.get(module)).get(name)
    return DjangoTaskTarget(key, task) if is_task(task) and task.module_path == key else None


def keys() -> list[str]:
    if not has_tasks():
        return []
    _import_task_modules()
    return [*registered, *_standing_in_apps()]


def _standing_in_apps() -> Iterator[str]:
    for path, module in list(sys.modules.items()):
        if path.startswith(NOT_FOR_JOBS) or not _is_of_an_app(path):
            continue
        for name, thing in list(_content(module).items()):
            if is_task(thing) and thing.module_path == f"{path}.{name}":
                yield thing.module_path


def _is_of_an_app(module: str) -> bool:
    return any(f"{module}.".startswith(f"{app.name}.") for app in apps.app_configs.values())


def _content(module: object) -> dict[str, Any]:
    """What stands in it by now: a lazy module is not loaded by that, nor its ``__getattr__`` asked."""
    content: dict[str, Any] = (
        object.__getattribute__(module, "__dict__") if isinstance(module, ModuleType) else {}
    )
    return content


# --- Importing the modules they stand in --------------------------------------------------------------------

_problems: list[str] | None = None
"""None: not done yet."""
_importing = threading.local()


def discovery_problem() -> str:
    """Why some apps' ``tasks`` modules could not be imported; empty if all were, or none is needed."""
    if has_tasks():
        _import_task_modules()
    return "; ".join(_problems or ())


def _import_task_modules() -> None:
    """Every app's, once; in a project that uses Django's tasks, which is one that sets ``TASKS``.

    Threads that come at the same time do it side by side, which is harmless. Within the import itself, and while Django is
    loading its apps, what is there so far has to do.
    """
    global _problems
    if _problems is not None or getattr(_importing, "now", False):
        return
    if not apps.ready or not settings.is_overridden("TASKS"):  # type: ignore[misc]  # not in the stubs
        return
    _importing.now = True
    try:
        _problems = [problem for app in apps.get_app_configs() if (problem := _import_tasks_of(app))]
    finally:
        _importing.now = False


def _import_tasks_of(app: Any) -> str:
    """Returns what went wrong, or ""."""
    try:
        if module_has_submodule(app.module, "tasks"):
            import_module(f"{app.name}.tasks")
    except Exception as error:
        extra = {"event": "tasks_not_imported"}
        logger.exception("%s.tasks could not be imported", app.name, extra=extra)
        return f"{type(error).__name__}: {error}"
    return ""
