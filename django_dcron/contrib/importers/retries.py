"""Translate the retries of a source to the fields of a job."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django_dcron.contrib.importers.source_contents import Warn
from django_dcron.policies.retry import LONGEST_WAIT, MAX_ATTEMPTS
from django_dcron.utils.counts import number_of

HIGHEST_FACTOR = 100.0
LONGEST_CONSTANT = 3600
"""The longest constant wait, in seconds, that replaces waits without an equivalent."""


def max_attempts_of(retries: int | None, option: str, warn: Warn) -> int:
    """Return ``max_attempts`` for a number of retries. None: no limit.

    ``option``: the name of the source's option.
    """
    if retries is None or retries >= MAX_ATTEMPTS:
        limit = "without a limit" if retries is None else retries
        warn(f"{option} {limit} is reduced to {MAX_ATTEMPTS} attempts, the highest possible")
    attempts = MAX_ATTEMPTS if retries is None else min(retries + 1, MAX_ATTEMPTS)
    warn(
        f"the job retries instead of the task, also if a worker is lost: at most "
        f"{number_of(attempts, 'attempt')}"
    )
    return attempts


def backoff_fields(
    first: timedelta, factor: float, longest: timedelta, jitter: float
) -> dict[str, Any]:
    return {
        "retry_backoff": first,
        "retry_backoff_factor": factor,
        "retry_backoff_max": longest,
        "retry_jitter": jitter,
    }


def constant_wait_fields(wait: timedelta) -> dict[str, Any]:
    return backoff_fields(wait, 1.0, wait, 0.0)


def exponential_wait_fields(first: timedelta, factor: float, attempts: int) -> dict[str, Any]:
    """Return the fields for waits that grow by ``factor`` without a limit."""
    longest = first
    for _retry in range(attempts - 2):
        longest = min(longest, LONGEST_WAIT / factor) * factor
    return backoff_fields(first, factor, longest, 0.0)
