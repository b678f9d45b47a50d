"""The retry policy: whether and when a failed attempt is followed by another.

``max_attempts`` includes the first attempt. The wait before attempt n + 1 is
``backoff * factor ** (n - 1)``, at most ``backoff_max``. ``jitter`` (a fraction) then spreads it in
both directions. Exception names match any class in the exception's MRO, as bare names
(``ConnectionError``) or dotted paths (``requests.exceptions.Timeout``).
"""

from __future__ import annotations

import random
from collections.abc import Collection
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum

CONTENTION_WAIT = timedelta(seconds=1)
CONTENTION_ATTEMPTS = 3
"""After contention (a deadlock or a lock timeout), the first three retries wait about 1 s at most.

Contention usually clears soon or not at all, so later retries use the backoff.
"""
LONGEST_WAIT = timedelta(days=3650)
"""The upper limit of every wait. A longer one could leave the range of ``datetime``."""
MAX_ATTEMPTS = 100
"""The highest ``max_attempts`` of a job."""


def exception_name(cls: type[BaseException]) -> str:
    """Return the name of an exception class, as the policy compares it."""
    if cls.__module__ == "builtins":
        return cls.__qualname__
    return f"{cls.__module__}.{cls.__qualname__}"


_REFUSED = "asked for a retry, but the job allows "
_NOTE = "The task "


def refused_retry_message(max_attempts: int) -> str:
    """Return the message of a last attempt whose code asked for another one."""
    attempts = "one attempt" if max_attempts == 1 else f"{max_attempts} attempts"
    return f"{_REFUSED}{attempts}"


def refused_retry_note(max_attempts: int) -> str:
    """Return the last line of the traceback of an attempt for which Celery wanted another one."""
    return f"{_NOTE}{refused_retry_message(max_attempts)}."


def find_refused_retry_note(traceback: str) -> str:
    """Return the ``refused_retry_note`` at the end of the traceback; empty if there is none."""
    last = next(reversed(traceback.splitlines()), "")
    return last if last.startswith(f"{_NOTE}{_REFUSED}") else ""


def without_refused_retry(message: str) -> str:
    """Return the message without the prefix that ``refused_retry_message`` returns."""
    refused, _, text = message.partition(": ")
    return text if refused.startswith(_REFUSED) else message


class FailureClass(StrEnum):
    TRANSIENT = "transient"
    CONTENTION = "contention"
    PERMANENT = "permanent"


@dataclass(frozen=True, slots=True)
class Failure:
    kind: FailureClass
    exception_names: frozenset[str] = frozenset()
    """Bare and dotted names of every class in the exception's MRO.

    For a ``RetryLater`` that was raised from another exception, also the names of that exception.
    Empty if there was no exception: the attempt was lost or killed.
    """
    retry_wanted: bool = False
    """The job's code raised ``RetryLater``."""
    retry_after: timedelta | None = None
    """The wait that ``RetryLater`` asks for. None: it asks for none."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    max_attempts: int = 1
    backoff: timedelta = timedelta(seconds=10)
    factor: float = 2.0
    backoff_max: timedelta = timedelta(hours=1)
    jitter: float = 0.1
    retry_on: Collection[str] = ()
    never_retry_on: Collection[str] = ()

    def retry_after(
        self, failure: Failure, attempt: int, rng: random.Random | None = None
    ) -> timedelta | None:
        """Return the wait before the next attempt, or None to give up.

        ``attempt`` is the attempt that failed, counted from 1.
        """
        if attempt >= self.max_attempts or self.why_not_retried(failure):
            return None
        if failure.retry_after is not None:
            return min(max(failure.retry_after, timedelta()), LONGEST_WAIT)
        wait = self.delay(attempt)
        if failure.kind is FailureClass.CONTENTION and attempt <= CONTENTION_ATTEMPTS:
            wait = min(wait, CONTENTION_WAIT)
        return wait * (1 + self.jitter * (rng or random).uniform(-1, 1))

    def delay(self, attempt: int) -> timedelta:
        """Return the wait after ``attempt``, without jitter."""
        longest = min(self.backoff_max, LONGEST_WAIT)
        try:
            return min(self.backoff * self.factor ** (attempt - 1), longest)
        except (OverflowError, ValueError):
            # ValueError: the factor is NaN.
            return longest

    def why_not_retried(self, failure: Failure) -> str:
        """Return what forbids a retry after the failure; empty if only the attempts limit it."""
        if failure.kind is FailureClass.PERMANENT:
            return "permanent failure"
        if failure.exception_names & set(self.never_retry_on):
            return "listed in never_retry_on"
        if failure.retry_wanted or not failure.exception_names or not self.retry_on:
            return ""
        return "" if failure.exception_names & set(self.retry_on) else "not listed in retry_on"
