"""The first lines of the dashboard and of the admin's index: how the system is, what is wrong and what to do."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from django.contrib import admin
from django.db.models import Model
from django.http import HttpRequest
from django.utils import translation
from django.utils.translation import gettext as _

from django_dcron.admin.display import list_url, may_view
from django_dcron.admin.visibility import scope_of
from django_dcron.domain.system_health import Issue, Problem, Severity, SystemFacts, Verdict, assess
from django_dcron.models import Job, Node, Run
from django_dcron.observability.system_health import read_facts

Listing = tuple[type[Model], dict[str, str]]
"""A list of the admin, and its filters."""

_QUEUED: Listing = (Run, {"state__exact": "queued"})
_PENDING: Listing = (Run, {"state__exact": "pending"})
_RUNNING: Listing = (Run, {"state__exact": "running"})
_FAILED: Listing = (Run, {"state__exact": "failed"})
_LISTINGS: dict[Problem, Listing] = {
    Problem.NO_WORKER: _QUEUED,
    Problem.QUEUE_UNSERVED: _QUEUED,
    Problem.WORKERS_BEHIND: _QUEUED,
    Problem.RUN_UNKNOWN_TO_WORKER: _QUEUED,
    Problem.TASK_UNKNOWN_TO_WORKER: _QUEUED,
    Problem.BROKER_AWAY: _PENDING,
    Problem.RUN_OVERDUE: _PENDING,
    Problem.RUN_STUCK: _RUNNING,
    Problem.RUN_OVERLONG: _RUNNING,
    Problem.EVERY_RUN_FAILS: _FAILED,
    Problem.JOBS_FAILING: _FAILED,
    Problem.QUARANTINED: (Job, {"state": "problem", "enabled__exact": "1"}),
    Problem.JOB_PAUSED_ITSELF: (Job, {"enabled__exact": "0"}),
    Problem.CURSOR_OVERDUE: (Job, {}),
}
"""Where a person sees what a problem is about; of all others the list of nodes."""


@dataclass(frozen=True, slots=True)
class Line:
    """One problem, or that there is none."""

    summary: str
    remedy: str = ""
    kind: str = "ok"
    """ok, warning or error."""
    url: str = ""
    link: str = ""

    @property
    def is_error(self) -> bool:
        return self.kind == Severity.ERROR


def context(request: HttpRequest, site: admin.AdminSite) -> dict[str, Any]:
    """``health``: the lines, the most urgent first. With the names that this person may see."""
    verdict = assess(_visible(read_facts(), request, site))
    return {"health": list(_lines(verdict, request, site)), "status": verdict.status.value}


def _visible(facts: SystemFacts, request: HttpRequest, site: admin.AdminSite) -> SystemFacts:
    """Where jobs, or nodes, are narrowed, none of them is named."""
    scope = scope_of(request, site)
    return facts.visible(
        jobs=may_view(request, Job, site) and not scope.narrows(Job),
        nodes=may_view(request, Node, site) and not scope.narrows(Node),
    )


def _lines(verdict: Verdict, request: HttpRequest, site: admin.AdminSite) -> Iterator[Line]:
    for issue in verdict.issues:
        url, link = _link(issue, request, site)
        summary, remedy = issue.summary.said(translation), issue.remedy.said(translation)
        yield Line(summary, remedy, issue.severity.value, url, link)
    if not verdict.issues:
        yield Line(verdict.summary.said(translation))


def _link(issue: Issue, request: HttpRequest, site: admin.AdminSite) -> tuple[str, str]:
    """URL and text; empty if this person may not view that list."""
    model, filters = _LISTINGS.get(issue.problem, (Node, {}))
    if not may_view(request, model, site):
        return "", ""
    texts = {Run: _("View these runs"), Job: _("View these jobs"), Node: _("View the nodes")}
    return list_url(model, site, **filters), texts[model]
