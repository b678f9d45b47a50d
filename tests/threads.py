"""Run functions concurrently, each in a thread with its own database connection."""

import threading
from collections.abc import Callable
from typing import TypeVar

from django.db import connections

from tests.waiting import TIMEOUT

T = TypeVar("T")


def in_threads(*functions: Callable[[], T]) -> list[T]:
    """Return the results in order. Raise the first error."""
    results: dict[int, T] = {}
    errors: list[BaseException] = []

    def guarded(number: int, function: Callable[[], T]) -> None:
        try:
            results[number] = function()
        except BaseException as error:
            errors.append(error)
        finally:
            connections.close_all()

    threads = [threading.Thread(target=guarded, args=each) for each in enumerate(functions)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT)
    if errors:
        raise errors[0]
    assert len(results) == len(functions), "a thread hangs"
    return [results[number] for number in range(len(functions))]
