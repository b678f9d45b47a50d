"""The form above the dashboard's pictures: which jobs they show."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.contrib import admin
from django.http import HttpRequest

from django_dcron.admin.display import may_view
from django_dcron.admin.visibility import scope_of
from django_dcron.models import Job
from django_dcron.observability.selection import Selection

NAMESPACES_LISTED = 50
LENGTHS = {"namespace": 64, "q": 120}


@dataclass(frozen=True, slots=True)
class Filter:
    chosen: Selection
    namespaces: tuple[str, ...]
    """The first of them, and the chosen one."""

    @property
    def is_set(self) -> bool:
        return self.chosen != Selection()


def selection(request: HttpRequest) -> Selection:
    return Selection(_read(request, "namespace"), _read(request, "q"))


def query(request: HttpRequest) -> dict[str, str]:
    """What was chosen, as the page's query has it."""
    chosen = selection(request)
    return {name: text for name, text in {"namespace": chosen.namespace, "q": chosen.name}.items() if text}


def _read(request: HttpRequest, name: str) -> str:
    """No longer than what it may be found in, and nothing that a database refuses."""
    return request.GET.get(name, "").replace("\0", "").strip()[: LENGTHS[name]]


def context(request: HttpRequest, site: admin.AdminSite) -> dict[str, Any]:
    """No filter where there is nothing to choose from, or nothing is shown."""
    if not may_view(request, Job, site):
        return {"filter": None}
    jobs = scope_of(request, site).jobs.order_by("namespace")
    namespaces = set(jobs.values_list("namespace", flat=True).distinct()[:NAMESPACES_LISTED])
    if not namespaces:
        return {"filter": None}
    chosen = selection(request)
    return {"filter": Filter(chosen, tuple(sorted(namespaces | ({chosen.namespace} - {""}))))}
