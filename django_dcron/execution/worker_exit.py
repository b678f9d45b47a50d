"""Functions that a worker calls before one of its pool processes ends.

A pool process ends without calling the exit handlers of Python. Optional parts register here, so
that the worker doesn't import them.
"""

from __future__ import annotations

from collections.abc import Callable

_functions: list[Callable[[], object]] = []


def before_exit(function: Callable[[], object]) -> None:
    _functions.append(function)


def run_before_exit() -> None:
    for function in _functions:
        function()
