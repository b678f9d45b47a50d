"""Find the last success of a job in its statistics and latest runs."""

from __future__ import annotations

from datetime import datetime

from django_dcron.db.routing import alias_for
from django_dcron.models import Run, Statistics
from django_dcron.policies.lifecycle import State

LATEST = 50
"""How many of the latest runs are searched."""


def last_success(statistics: Statistics, *, otherwise: datetime) -> datetime:
    """Return the time of the last success, or ``otherwise`` if it isn't among the latest runs."""
    if statistics.last_state == State.SUCCEEDED and statistics.last_finished_at is not None:
        return statistics.last_finished_at
    runs = Run.objects.using(alias_for(Run)).filter(job=statistics.pk).order_by("-scheduled_at")
    latest = runs.values_list("state", "finished_at")[:LATEST]
    return max((at for state, at in latest if state == State.SUCCEEDED and at), default=otherwise)
