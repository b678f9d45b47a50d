"""Several things at once, each in a thread with a database connection of its own."""

import threading
from collections.abc import Callable
from typing import TypeVar

from django.db import connections

T = TypeVar("T")
PATIENCE = 60.0


def in_threads(*works: Callable[[], T]) -> list[T]:
    """What each returned, in order. Raises what one raised."""
    results: dict[int, T] = {}
    errors: list[BaseException] = []

    def guarded(number: int, work: Callable[[], T]) -> None:
        try:
            results[number] = work()
        except BaseException as error:
            errors.append(error)
        finally:
            connections.close_all()

    threads = [threading.Thread(target=guarded, args=each) for each in enumerate(works)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    if errors:
        raise errors[0]
    assert len(results) == len(works), "it hangs"
    return [results[number] for number in range(len(works))]
