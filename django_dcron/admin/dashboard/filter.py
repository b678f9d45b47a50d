"""The filter above the dashboard's charts, which selects jobs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.contrib import admin
from django.http import HttpRequest

from django_dcron.admin.display import may_view
from django_dcron.admin.visibility import admin_scope
from django_dcron.diagnosis.job_filters.selection import JobSelection
from django_dcron.models import Job

NAMESPACES_LISTED = 50
LENGTHS = {"namespace": 64, "q": 120}


@dataclass(frozen=True, slots=True)
class Filter:
    chosen: JobSelection
    namespaces: tuple[str, ...]
    """The first namespaces, and always the chosen one."""

    @property
    def is_set(self) -> bool:
        return self.chosen != JobSelection()


def selection_of(request: HttpRequest) -> JobSelection:
    return JobSelection(_parameter(request, "namespace"), _parameter(request, "q"))


def query_parameters(chosen: JobSelection) -> dict[str, str]:
    """Return the chosen filter as parameters of the page's query string."""
    return {
        name: text
        for name, text in {"namespace": chosen.namespace, "q": chosen.name}.items()
        if text
    }


def _parameter(request: HttpRequest, name: str) -> str:
    """Read a parameter, limited to the length of its column and without NUL characters."""
    return request.GET.get(name, "").replace("\0", "").strip()[: LENGTHS[name]]


def context(request: HttpRequest, site: admin.AdminSite) -> dict[str, Any]:
    """Return the filter, or None if no job exists or the user may not view jobs."""
    if not may_view(request, Job, site):
        return {"filter": None}
    jobs = admin_scope(request, site).jobs.order_by("namespace")
    namespaces = set(jobs.values_list("namespace", flat=True).distinct()[:NAMESPACES_LISTED])
    if not namespaces:
        return {"filter": None}
    chosen = selection_of(request)
    return {"filter": Filter(chosen, tuple(sorted(namespaces | ({chosen.namespace} - {""}))))}
