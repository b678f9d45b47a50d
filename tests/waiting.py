"""Wait with a deadline until a condition is true, so that tests need no fixed sleeps."""

import threading
import time
from collections.abc import Callable
from typing import TypeVar

Answer = TypeVar("Answer")


def wait_until(
    predicate: Callable[[], Answer],
    timeout: float = 60.0,
    *,
    what: str = "",
    interval: float = 0.02,
) -> Answer:
    """Call `predicate` until its result is true, and return the result.

    Raise `AssertionError` with `what` at the deadline.
    """
    deadline = time.monotonic() + timeout
    while not (answer := predicate()):
        if time.monotonic() >= deadline:
            name = what or getattr(predicate, "__qualname__", repr(predicate))
            raise AssertionError(
                f"waited {timeout:g} s in vain for: {name} (last answer: {answer!r})"
            )
        threading.Event().wait(interval)
    return answer
