"""The latest failed runs, and what they failed of."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from django.db.models import F
from django.db.models.functions import Substr

from django_dcron.domain.lifecycle import State
from django_dcron.models import Attempt, Run
from django_dcron.models.database import alias_for
from django_dcron.observability.scope import EVERYTHING, Scope

MESSAGE_READ = 500
"""Characters: a message may have thousands."""


@dataclass(frozen=True, slots=True)
class Failure:
    run: Run
    """With its job."""
    exception_class: str = ""
    message: str = ""

    @property
    def first_line(self) -> str:
        return next(iter(self.message.strip().splitlines()), "")


def latest_failures(since: datetime, limit: int, scope: Scope = EVERYTHING) -> list[Failure]:
    """Of the runs due ``since``, those due last first: an index gives that order. Three queries: runs, jobs, attempts."""
    failed = scope.runs.filter(state=State.FAILED, due_at__gte=since)
    runs = list(failed.order_by("-due_at").prefetch_related("job")[:limit])
    attempts = (
        Attempt.objects.using(alias_for(Attempt))
        .filter(run__in=[run.pk for run in runs], number=F("run__attempt"))
        .order_by()
        .values_list("run", "exception_class", Substr("message", 1, MESSAGE_READ))
    )
    told = {run: (exception_class, message) for run, exception_class, message in attempts}
    return [Failure(run, *told.get(run.pk, ("", run.reason))) for run in runs]
