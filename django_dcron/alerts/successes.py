"""When a job succeeded last, from what is counted and kept of it."""

from __future__ import annotations

from datetime import datetime

from django_dcron.domain.lifecycle import State
from django_dcron.models import Run, Statistics
from django_dcron.models.database import alias_for

LATEST = 50
"""Runs of a job among which its last success is looked for."""


def last_success(counted: Statistics, *, otherwise: datetime) -> datetime:
    """``otherwise``: for one that is not among the latest runs."""
    if counted.last_state == State.SUCCEEDED and counted.last_finished_at is not None:
        return counted.last_finished_at
    runs = Run.objects.using(alias_for(Run)).filter(job=counted.pk).order_by("-scheduled_at")
    latest = runs.values_list("state", "finished_at")[:LATEST]
    return max((at for state, at in latest if state == State.SUCCEEDED and at), default=otherwise)
