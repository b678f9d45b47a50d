"""How long after their time runs were handed over, by the database's clock: what scenarios compare, of one time or one node with
another, as no machine owes anybody an absolute figure. What workers that are busy add is not the nodes'."""

from datetime import datetime, timedelta

from django.db.models import Q

from django_dcron.models import Run


def handed_over(*conditions: Q, after: datetime, until: datetime) -> list[tuple[datetime, datetime]]:
    """When each run was due and when it was handed over, of those that have started and whose time was in the window
    (``after`` not included)."""
    window = Run.objects.filter(*conditions, scheduled_at__gt=after, scheduled_at__lte=until)
    rows = window.exclude(started_at=None).values_list("due_at", "queued_at", "started_at")
    # A worker may be faster than the mark, and a second delivery later than both.
    return [(due_at, min(queued_at or started_at, started_at)) for due_at, queued_at, started_at in rows]


def latenesses(*conditions: Q, after: datetime, until: datetime) -> list[timedelta]:
    """Of the same, shortest first."""
    return sorted(at - due_at for due_at, at in handed_over(*conditions, after=after, until=until))


def percentile(found: list[timedelta], share: float) -> timedelta:
    """The lateness that so many percent do not exceed."""
    assert found, "no run was started"
    return found[min(int(len(found) * share / 100), len(found) - 1)]
