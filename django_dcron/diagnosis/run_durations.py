"""Compute the start delay and the duration of a run or an attempt."""

from __future__ import annotations

from datetime import timedelta

from django.db.models import F, Q

from django_dcron.db import clock
from django_dcron.models import Attempt, Run
from django_dcron.policies.lifecycle import UNFINISHED, State

_NOT_STARTED = UNFINISHED - {State.RUNNING}

ENDED_BEFORE_NEXT_ATTEMPT = Q(
    attempt__gt=1,
    heartbeat_at__isnull=True,
    finished_at__isnull=False,
    started_at__lt=F("due_at"),
)
"""The runs for which ``ended_before_next_attempt`` is true."""


def ended_before_next_attempt(run: Run) -> bool:
    """Return whether the run ended while it waited for its next attempt.

    A retry keeps the start of the previous attempt, moves ``due_at`` to the end of the backoff, and
    resets the heartbeat until the next start.
    """
    return (
        run.attempt > 1
        and run.heartbeat_at is None
        and run.finished_at is not None
        and run.started_at is not None
        and run.started_at < run.due_at
    )


def start_delay(run: Run) -> timedelta | None:
    """Return the delay from due time to start of the latest attempt."""
    if run.started_at is None or run.state in _NOT_STARTED or ended_before_next_attempt(run):
        return None
    return max(run.started_at - run.due_at, timedelta())


def first_start_delay(run: Run, first: Attempt | None) -> timedelta | None:
    """Return the delay from due time to start of the first attempt.

    ``first``: the first attempt if the run had several; None if it had only one.
    """
    if first is None:
        return start_delay(run)
    return max(first.started_at - (first.due_at or run.scheduled_at), timedelta())


def total_duration(run: Run, first: Attempt | None) -> timedelta | None:
    """Return the time from the first start to the end, with the waits between the attempts.

    Return None if the run ended before its third or a later attempt started, because the end of the
    previous attempt isn't known. ``first``: see ``first_start_delay``.
    """
    if first is not None and run.attempt == 2 and ended_before_next_attempt(run):
        return run_duration(first)
    duration = run_duration(run)
    if first is None or duration is None or run.started_at is None:
        return duration
    return duration + (run.started_at - first.started_at)


def run_duration(timed: Run | Attempt) -> timedelta | None:
    """Return the time from start to end of the latest attempt, or until now while it runs.

    Return None if a run waits for its next attempt, or ended before that attempt started. Its row
    doesn't have the end of the previous attempt.
    """
    if timed.started_at is None:
        return None
    if isinstance(timed, Run) and (
        (timed.finished_at is None and timed.state != State.RUNNING)
        or ended_before_next_attempt(timed)
    ):
        return None
    return max((timed.finished_at or clock.now()) - timed.started_at, timedelta())
