"""Functions that a worker calls before one of its pool processes ends.

A pool process ends without calling Python's exit handlers. Other modules register their functions
here, so that the worker need not import these modules.
"""

from __future__ import annotations

from collections.abc import Callable

_functions: list[Callable[[], object]] = []


def before_exit(function: Callable[[], object]) -> None:
    _functions.append(function)


def run_before_exit() -> None:
    for function in _functions:
        function()
