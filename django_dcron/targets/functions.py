"""Functions registered with ``@cron`` as targets, with the key ``module.qualname``."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from django_dcron.targets.base import Invocation, Target, TargetKind, first_line
from django_dcron.targets.parameters import TargetParameter, parameters_of
from django_dcron.targets.signatures import check_call, signature_of, signature_text

registered: dict[str, Callable[..., Any]] = {}


class FunctionTarget(Target):
    """A registered function."""

    kind = TargetKind.FUNCTION

    def __init__(self, key: str, function: Callable[..., Any]):
        self.key = key
        self.function = function

    @property
    def description(self) -> str:
        return first_line(self.function.__doc__)

    @property
    def is_async(self) -> bool:
        return inspect.iscoroutinefunction(self.function)

    @property
    def signature(self) -> str:
        return signature_text(signature_of(self.function))

    @property
    def parameters(self) -> list[TargetParameter] | None:
        return parameters_of(signature_of(self.function), self.function)

    def check_arguments(self, args: list[Any], kwargs: dict[str, Any]) -> None:
        check_call(signature_of(self.function), args, kwargs)

    def call(self, invocation: Invocation) -> Any:
        return self.function(*invocation.args, **invocation.kwargs)


def register_function(function: Callable[..., Any]) -> str:
    """Make ``function`` a target and return its key.

    A function may be registered again, also after its module was reloaded. Raises ``TypeError`` if
    it can't be a target.
    """
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    if module is None or name is None:
        raise TypeError(
            f"@cron: {function!r:.100} can't be run as a job. Decorate a function or a task."
        )
    if inspect.isclass(function):
        raise TypeError(f"@cron: {name} is a class. Decorate a function that uses it.")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise TypeError(
            f"@cron: {name} is a generator function, so calling it would do nothing. Use a "
            "function without yield."
        )
    key = f"{module}.{name}"
    known = registered.get(key)
    if known is not None and known is not function and _code(known) is _code(function):
        raise TypeError(
            f"@cron: two functions are named {key}. Declare one function, and pass "
            "different args to @cron."
        )
    registered[key] = function
    return key


def function_key_of(function: Callable[..., Any]) -> str | None:
    """Return the key of a registered function, or None."""
    return next((key for key, known in registered.items() if known is function), None)


def find(key: str) -> FunctionTarget | None:
    function = registered.get(key)
    return FunctionTarget(key, function) if function is not None else None


def keys() -> list[str]:
    return list(registered)


def _code(function: Callable[..., Any]) -> object:
    """Return the object that two functions made by one ``def`` share."""
    return getattr(function, "__code__", function)
