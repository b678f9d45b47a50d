"""The latest failures on the dashboard, each with the first line of its message."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.contrib import admin
from django.http import HttpRequest

from django_dcron.admin.display import change_url, link, list_url, may_view
from django_dcron.admin.visibility import admin_scope
from django_dcron.db.now import database_now
from django_dcron.db.routing import alias_for
from django_dcron.diagnosis.failures import FailedRun, latest_failures
from django_dcron.diagnosis.figures import window_start
from django_dcron.models import Attempt, Job, Run

FAILURES_SHOWN = 10


@dataclass(frozen=True, slots=True)
class FailureRow:
    failure: FailedRun
    url: str
    job: str

    @property
    def exception(self) -> str:
        """The name of the exception without its module."""
        return self.failure.exception_class.rpartition(".")[2]


def context(request: HttpRequest, site: admin.AdminSite) -> dict[str, Any]:
    now = database_now(alias_for(Run))
    since = window_start(now)
    scope = admin_scope(request, site)
    failures = latest_failures(since, FAILURES_SHOWN, scope)
    if not may_view(request, Attempt, site):  # show the shorter reason of the run instead
        failures = [FailedRun(failure.run, message=failure.run.reason) for failure in failures]
    sees_jobs = may_view(request, Job, site)

    def row(failure: FailedRun) -> FailureRow:
        run = failure.run
        return FailureRow(
            failure, change_url(run, site), link(run.job, site) if sees_jobs else str(run.job)
        )

    return {
        "now": now,
        "rows": [row(failure) for failure in failures],
        "all_url": list_url(Run, site, state__exact="failed", due_at__gte=since.isoformat()),
    }
