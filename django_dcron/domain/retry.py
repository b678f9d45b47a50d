"""The retry policy: whether a failed attempt is followed by another, and when.

``max_attempts`` counts the first attempt. The wait before attempt n + 1 is ``backoff * factor ** (n - 1)``, at most
``backoff_max``, and then spread by up to ``jitter`` (a fraction) to either side. Exception names match any class of
the exception's MRO, as bare names (``ConnectionError``) or dotted paths (``requests.exceptions.Timeout``).
"""

from __future__ import annotations

import random
from collections.abc import Collection
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum

CONTENTION_WAIT = timedelta(seconds=1)
CONTENTION_ATTEMPTS = 3
"""Contention (a deadlock, a lock not had) clears soon or not at all: so many attempts come soon, then the backoff."""
LONGEST_WAIT = timedelta(days=3650)
"""Whatever was asked for: beyond it the calendar may end."""


class FailureClass(StrEnum):
    TRANSIENT = "transient"
    CONTENTION = "contention"
    PERMANENT = "permanent"


@dataclass(frozen=True, slots=True)
class Failure:
    kind: FailureClass
    exception_names: frozenset[str] = frozenset()
    """Bare and dotted names of every class in the exception's MRO; empty if there was none: lost, ended by force."""
    retry_wanted: bool = False
    """The job's code asked for another attempt, with ``RetryLater``."""
    retry_after: timedelta | None = None
    """When, if it said so."""


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
        """How long to wait before the next attempt; None to give up. ``attempt`` is the one that failed, from 1."""
        if attempt >= self.max_attempts or not self._retries(failure):
            return None
        if failure.retry_after is not None:
            return min(max(failure.retry_after, timedelta()), LONGEST_WAIT)
        wait = self.delay(attempt)
        if failure.kind is FailureClass.CONTENTION and attempt <= CONTENTION_ATTEMPTS:
            wait = min(wait, CONTENTION_WAIT)
        return wait * (1 + self.jitter * (rng or random).uniform(-1, 1))

    def delay(self, attempt: int) -> timedelta:
        """The wait after ``attempt`` before jitter."""
        longest = min(self.backoff_max, LONGEST_WAIT)
        try:
            return min(self.backoff * self.factor ** (attempt - 1), longest)
        except (OverflowError, ValueError):  # ValueError: a factor that is no number
            return longest

    def _retries(self, failure: Failure) -> bool:
        if failure.kind is FailureClass.PERMANENT or failure.exception_names & set(self.never_retry_on):
            return False
        if failure.retry_wanted or not failure.exception_names:
            return True
        return not self.retry_on or bool(failure.exception_names & set(self.retry_on))
