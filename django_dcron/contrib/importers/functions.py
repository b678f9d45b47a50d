"""Helpers for sources whose entries are functions of the project's code."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from importlib import import_module
from typing import Any

from django.apps import apps
from django.utils.module_loading import autodiscover_modules, import_string

from django_dcron.contrib.importers.source_contents import EntryRefused, SourceProblem, Warn
from django_dcron.db.errors import in_one_line
from django_dcron.targets.signatures import signature_of

TASKS = "tasks"
"""The module of each app that Huey and procrastinate import to find the project's tasks."""


def load_tasks(loader: Callable[[], Any], description: str) -> Any:
    """Return what ``loader`` returns, once the task modules are imported.

    Errors contain ``description``. Raises ``SourceProblem`` for any exception of the project's
    code, and for an exit.
    """
    try:
        result = loader()
        autodiscover_modules(TASKS)
    except SourceProblem:
        raise
    except SystemExit as exiting:  # after a message on standard output
        raise SourceProblem(
            f"{description} can't be read: it exits with {exiting.code}."
        ) from exiting
    except Exception as error:
        raise SourceProblem(f"{description} can't be read: {in_one_line(error)}.") from error
    return result


def import_instance(path: str, *attributes: str) -> Any:
    """Return the object at a dotted path. Raises ``SourceProblem`` if it lacks an attribute."""
    result = load_tasks(lambda: import_string(path), f"{path!r}")
    if missing := [name for name in attributes if not hasattr(result, name)]:
        raise SourceProblem(f"{path!r} is a {type(result).__name__} without {missing[0]}.")
    return result


def import_app_instance(django_app: str, name: str, source: str, example: str) -> Any:
    """Return the attribute ``name`` of a Django app's module: the instance that the app creates.

    Error messages name ``source`` and the option ``--app`` with ``example``. Raises
    ``SourceProblem`` if the app isn't installed.
    """

    def load() -> Any:
        if not apps.is_installed(django_app):
            raise SourceProblem(
                f"{django_app!r} is missing in INSTALLED_APPS. To read another {source}, name it: "
                f"--app {example}."
            )
        return getattr(import_module(django_app), name)

    return load_tasks(load, source.split()[0])


def target_of(function: Any) -> str:
    """Return the key of the target that runs a function.

    A Celery task's key is its name. Any other function's key is ``module.function``, as for
    ``@cron``.
    """
    inner = inspect.unwrap(function, stop=_is_task)
    return str(inner.name) if _is_task(inner) else f"{inner.__module__}.{inner.__qualname__}"


def _is_task(function: Any) -> bool:
    return isinstance(getattr(function, "name", None), str) and hasattr(function, "apply_async")


def check_injected(function: Any, name: str, instead: str, warn: Warn) -> None:
    """Refuse a function that requires an argument that only the source can pass.

    ``name``: empty for the first parameter. ``instead``: what the function uses instead.
    """
    signature = signature_of(function)
    parameters = signature.parameters if signature else {}
    parameter = parameters.get(name) if name else next(iter(parameters.values()), None)
    if parameter is not None and _is_required(parameter):
        raise EntryRefused(
            f"the function requires the argument {parameter.name!r}, which a job doesn't pass; "
            f"give it a default, and use {instead} if it has no other value"
        )
    if parameter is not None:
        warn(f"the argument {parameter.name!r} isn't passed; use {instead} instead")
    elif any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters.values()):
        warn(f"the keyword argument {name!r} isn't passed; use {instead} instead")


def _is_required(parameter: inspect.Parameter) -> bool:
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return parameter.default is inspect.Parameter.empty and parameter.kind not in variable
