"""Define which runs and cursors are overdue, and which runs a worker executes.

The health verdict and the doctor share these definitions. Nothing that a freeze holds back is
overdue.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from django.db.models import Q

from django_dcron.conf import settings
from django_dcron.models.cursor import CursorQuerySet
from django_dcron.models.run import RunQuerySet
from django_dcron.runs import deliveries

REDELIVERED = 2
"""After this many deliveries, DCRON_REDELIVER_AFTER has passed at least once without a start."""


def takeover_time() -> timedelta:
    """Return the time allowed for another node to take over a dead node's work and begin it."""
    return 2 * settings.LEASE + timedelta(seconds=5)


def overdue_cursors(cursors: CursorQuerySet, now: datetime) -> CursorQuerySet:
    """Return cursors whose next occurrence no node has claimed in time."""
    return cursors.due(now - takeover_time()).not_frozen()


def overdue_runs(runs: RunQuerySet, now: datetime) -> RunQuerySet:
    """Return pending runs that no node has dispatched in time.

    A dispatched run that no worker has started is pending again until a node repeats the dispatch.
    """
    since = now - takeover_time()
    # A retry keeps the ``queued_at`` of the attempt before it.
    undispatched = Q(deliveries=0) | Q(queued_at=None) | deliveries.overdue(since)
    return runs.pending().filter(undispatched, due_at__lt=since).not_frozen()


def undelivered_runs(runs: RunQuerySet, now: datetime) -> RunQuerySet:
    """Return queued runs that no worker has started within ``DCRON_REDELIVER_AFTER``."""
    since = now - settings.REDELIVER_AFTER
    return (
        runs.queued()
        .filter(Q(queued_at__lt=since) | Q(deliveries__gte=REDELIVERED), due_at__lt=since)
        .not_frozen()
    )


def executing_runs(runs: RunQuerySet, now: datetime) -> RunQuerySet:
    """Return running runs that a worker still executes, according to their heartbeats."""
    return runs.running().filter(heartbeat_at__gte=now - settings.RUN_LEASE)


def stuck_runs(runs: RunQuerySet, now: datetime) -> RunQuerySet:
    """Return running runs whose heartbeat has stopped and that no node has declared lost."""
    return runs.running().filter(heartbeat_at__lt=now - 2 * settings.RUN_LEASE - takeover_time())
