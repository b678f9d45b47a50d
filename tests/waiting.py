"""Wait until a condition is true or work is done, so that tests need no fixed sleeps."""

import threading
import time
from collections.abc import Callable
from typing import TypeVar

Answer = TypeVar("Answer")

# Seconds. Only a test that fails waits that long, so that slow machines need no other limits.
TIMEOUT = 180.0


def wait_until(
    predicate: Callable[[], Answer],
    timeout: float = TIMEOUT,
    *,
    what: str = "",
    interval: float = 0.02,
) -> Answer:
    """Call `predicate` until its result is true, and return the result.

    Raise `AssertionError` with `what` at the deadline. Wait between two calls at least as long as a
    call takes, so that polling doesn't slow down other work.
    """
    deadline = time.monotonic() + timeout
    while True:
        asked = time.monotonic()
        if answer := predicate():
            return answer
        now = time.monotonic()
        if now >= deadline:
            name = what or getattr(predicate, "__qualname__", repr(predicate))
            raise AssertionError(
                f"waited {timeout:g} s without success for: {name} (last answer: {answer!r})"
            )
        threading.Event().wait(max(interval, now - asked))


def wait_until_none(
    count: Callable[[], int], timeout: float = TIMEOUT, *, what: str = "", interval: float = 0.2
) -> None:
    """Wait until `count` returns 0. `timeout` limits the seconds without progress.

    On a slow machine, the whole wait may be much longer. Raise `AssertionError` with `what` if the
    lowest count hasn't fallen for `timeout` seconds.
    """
    lowest, deadline = count(), time.monotonic() + timeout
    while lowest:
        if time.monotonic() >= deadline:
            raise AssertionError(f"no progress for {timeout:g} s: {what} ({lowest} left)")
        threading.Event().wait(interval)
        if (left := count()) < lowest:
            lowest, deadline = left, time.monotonic() + timeout
