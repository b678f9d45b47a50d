"""Dispatch lag of runs, by the database's clock.

Scenarios compare the lag of two periods or two nodes, because absolute figures depend on the
machine. The lag doesn't include the time that a message waits for a busy worker.
"""

from datetime import datetime, timedelta

from django.db.models import Q

from django_dcron.models import Run


def dispatched(*conditions: Q, after: datetime, until: datetime) -> list[tuple[datetime, datetime]]:
    """The due time and dispatch time of each started run that was scheduled in the window.

    The window excludes ``after`` and includes ``until``.
    """
    window = Run.objects.filter(*conditions, scheduled_at__gt=after, scheduled_at__lte=until)
    rows = window.exclude(started_at=None).values_list("due_at", "queued_at", "started_at")
    # A worker may start the run before the node stores ``queued_at``, and a redelivery stores a
    # later one.
    return [
        (due_at, min(queued_at or started_at, started_at)) for due_at, queued_at, started_at in rows
    ]


def dispatch_lags(*conditions: Q, after: datetime, until: datetime) -> list[timedelta]:
    """The lags of the same runs, shortest first."""
    return sorted(at - due_at for due_at, at in dispatched(*conditions, after=after, until=until))


def percentile(found: list[timedelta], share: float) -> timedelta:
    """The lag that ``share`` percent of the runs don't exceed."""
    assert found, "no run was started"
    return found[min(int(len(found) * share / 100), len(found) - 1)]
