"""Run functions concurrently, each in a thread with its own database connection."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from django.db import OperationalError, connections

from django_dcron.db.contention import is_contention
from tests.waiting import TIMEOUT

T = TypeVar("T")

PAUSE = 0.02
"""Seconds between two calls of the function that ``repeating`` repeats."""


@contextmanager
def repeating(work: Callable[[], object]) -> Iterator[list[BaseException]]:
    """Call ``work`` repeatedly in a thread, until the block ends or ``work`` raises.

    Yields the list that then contains the error. At the end of the block, the error is raised,
    unless the block has raised another one.
    """
    stop, errors = threading.Event(), list[BaseException]()

    def call() -> None:
        try:
            while not stop.wait(PAUSE):
                work()
        except BaseException as error:
            errors.append(error)
        finally:
            connections.close_all()

    thread = threading.Thread(target=call)
    thread.start()
    try:
        yield errors
    finally:
        stop.set()
        thread.join(TIMEOUT)
    if errors:
        raise errors[0]


def repeat_after_contention(work: Callable[[], T]) -> T:
    """Call `work` and return its result. Repeat it after contention, for at most `TIMEOUT` seconds.

    Workers likewise start a blocked run later and record a blocked outcome later.
    """
    deadline = time.monotonic() + TIMEOUT
    while True:
        try:
            return work()
        except OperationalError as error:
            if not is_contention(error) or time.monotonic() >= deadline:
                raise


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
