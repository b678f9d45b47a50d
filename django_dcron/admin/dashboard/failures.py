"""The dashboard's latest failures, each with the first line of what was said."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.contrib import admin
from django.http import HttpRequest

from django_dcron.admin.display import change_url, link, list_url, may_view
from django_dcron.admin.visibility import scope_of
from django_dcron.models import Attempt, Job, Run
from django_dcron.models.database import alias_for, database_now
from django_dcron.observability.failures import Failure, latest_failures
from django_dcron.observability.figures import window_start

SHOWN = 10


@dataclass(frozen=True, slots=True)
class Row:
    failure: Failure
    url: str
    job: str

    @property
    def exception(self) -> str:
        """Without its module."""
        return self.failure.exception_class.rpartition(".")[2]


def context(request: HttpRequest, site: admin.AdminSite) -> dict[str, Any]:
    now = database_now(alias_for(Run))
    since = window_start(now)
    scope = scope_of(request, site)
    found = latest_failures(since, SHOWN, scope)
    if not may_view(request, Attempt, site):  # a run's own reason says it shorter
        found = [Failure(failure.run, message=failure.run.reason) for failure in found]
    sees_jobs = may_view(request, Job, site)

    def row(failure: Failure) -> Row:
        run = failure.run
        return Row(failure, change_url(run, site), link(run.job, site) if sees_jobs else str(run.job))

    return {
        "now": now,
        "rows": [row(failure) for failure in found],
        "all_url": list_url(Run, site, state__exact="failed", due_at__gte=since.isoformat()),
    }
