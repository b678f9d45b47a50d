"""Which runs and cursors are overdue. The health verdict counts them, the doctor names them: by the same rules."""

from __future__ import annotations

from datetime import datetime, timedelta

from django.db.models import Q

from django_dcron.conf import settings
from django_dcron.models.cursor import CursorQuerySet
from django_dcron.models.run import RunQuerySet

REDELIVERED = 2
"""So many deliveries mean that DCRON_REDELIVER_AFTER has passed at least once without a start."""


def patience() -> timedelta:
    """How long anything may stay undone while a dead node's work moves to another node, and a busy node gets to it."""
    return 2 * settings.LEASE + timedelta(seconds=5)


def overdue_cursors(cursors: CursorQuerySet, now: datetime) -> CursorQuerySet:
    """Cursors whose next occurrence nobody has claimed."""
    return cursors.due(now - patience())


def overdue_runs(runs: RunQuerySet, now: datetime) -> RunQuerySet:
    """Pending runs that nobody has handed over."""
    return runs.pending().filter(due_at__lt=now - patience())


def undelivered_runs(runs: RunQuerySet, now: datetime) -> RunQuerySet:
    """Queued runs that no worker has started within DCRON_REDELIVER_AFTER."""
    since = now - settings.REDELIVER_AFTER
    return runs.queued().filter(Q(queued_at__lt=since) | Q(deliveries__gte=REDELIVERED), due_at__lt=since)


def stuck_runs(runs: RunQuerySet, now: datetime) -> RunQuerySet:
    """Running runs whose heartbeat has stopped, and that no node has declared lost."""
    return runs.running().filter(heartbeat_at__lt=now - 2 * settings.RUN_LEASE - patience())
