"""The runs of one job, newest first, and one run with its attempts.

No query depends on the length of the history: the index (job, scheduled_at) gives the order, and of runs in certain states those
among the latest ``LOOKED_AT`` are found, no others.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime

from django_dcron.models import Attempt, Job, Run
from django_dcron.models.database import alias_for

LOOKED_AT = 10_000


@dataclass(frozen=True, slots=True)
class Page:
    runs: list[Run]
    more: bool
    """There are older ones, or may be."""


def runs_of(
    job: Job,
    limit: int,
    *,
    since: datetime | None = None,
    until: datetime | None = None,
    states: Collection[str] = (),
) -> Page:
    """Those scheduled for ``since`` and later, before ``until``; ``states``: only such, if any is given. At most two queries."""
    runs = Run.objects.using(alias_for(Run)).filter(job=job.pk).order_by("-scheduled_at")
    if since is not None:
        runs = runs.filter(scheduled_at__gte=since)
    if until is not None:
        runs = runs.filter(scheduled_at__lt=until)
    if not states:
        found = list(runs[: limit + 1])
        return Page(found[:limit], len(found) > limit)
    looked_at = list(runs.values_list("pk", "state")[:LOOKED_AT])
    such = [run_id for run_id, state in looked_at if state in states]
    found = list(runs.filter(pk__in=such[:limit]))
    return Page(found, len(such) > limit or len(looked_at) == LOOKED_AT)


def attempts_of(run: Run) -> list[Attempt]:
    """In order, with their logs."""
    return list(Attempt.objects.using(alias_for(Attempt)).filter(run=run.pk).order_by("number"))
