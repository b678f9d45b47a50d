"""How late a run started, and how long a run or an attempt took."""

from __future__ import annotations

from datetime import datetime, timedelta

from django_dcron.domain import clock
from django_dcron.domain.lifecycle import UNFINISHED, State
from django_dcron.models import Attempt, Run

_NOT_STARTED = UNFINISHED - {State.RUNNING}


def lateness(run: Run) -> timedelta | None:
    """How long after its due time the latest attempt started."""
    if run.started_at is None or run.state in _NOT_STARTED:
        return None
    return max(run.started_at - run.due_at, timedelta())


def duration(timed: Run | Attempt, now: datetime | None = None) -> timedelta | None:
    """From start to end, or to now."""
    if timed.started_at is None:
        return None
    if timed.finished_at is None and isinstance(timed, Run) and timed.state != State.RUNNING:
        return None  # it waits for its next attempt
    return max((timed.finished_at or now or clock.now()) - timed.started_at, timedelta())
