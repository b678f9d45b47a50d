"""The dashboard's page, made of sections that refresh themselves.

Invariants:

- A section and its URL are available only to users who may view the rows behind the section.
- The cost of a section doesn't grow with the number of runs. The modules in ``diagnosis`` explain
  how.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.db.models import Model
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils.translation import gettext as _

from django_dcron.admin.auto_refresh import REFRESH, PagePart
from django_dcron.admin.base import ReadOnlyAdmin
from django_dcron.admin.dashboard import (
    cluster,
    failures,
    first_steps,
    health,
    load,
    tiles,
    timeline,
)
from django_dcron.admin.dashboard import filter as job_filter
from django_dcron.admin.dashboard.index_line import STATUS_URL, line_context
from django_dcron.admin.display import may_view
from django_dcron.admin.visibility import admin_scope
from django_dcron.models import Dashboard, Job, Node, Run


@dataclass(frozen=True, slots=True)
class Section:
    context: Callable[[HttpRequest, admin.AdminSite], dict[str, Any]]
    interval: int = 5
    """Seconds between two refreshes."""
    shows: tuple[type[Model], ...] = ()
    """Only users who may view all of these models get the section."""


FIRST_STEPS = "first_steps"
"""Replaces all other sections until a job exists."""
SECTIONS = {
    "health": Section(health.context),
    "tiles": Section(tiles.context),
    "timeline": Section(timeline.context, interval=10, shows=(Job,)),
    "failures": Section(failures.context, shows=(Run,)),
    "cluster": Section(cluster.context, shows=(Node,)),
    "load": Section(load.context, interval=60, shows=(Job,)),
    FIRST_STEPS: Section(first_steps.context, shows=(Job,)),
}
"""Sections in the order of the page. Each has a template of the same name."""


@admin.register(Dashboard)
class DashboardAdmin(ReadOnlyAdmin[Dashboard]):
    class Media:
        css = {"all": ["django_dcron/dashboard.css", "django_dcron/dashboard_pictures.css"]}

    def get_urls(self) -> list[URLPattern]:
        """Omit Django's other URLs, because there are no rows to add, change or delete."""
        view = self.admin_site.admin_view
        return [
            path("", view(self.changelist_view), name="django_dcron_dashboard_changelist"),
            path("status/", view(self.status_line_view), name=STATUS_URL),
            path("part/<str:name>/", view(self.part_view), name="django_dcron_dashboard_part"),
        ]

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        if not self.has_view_permission(request):
            raise PermissionDenied
        site = self.admin_site
        parts = [
            self._part(name, request).render(section.context(request, site), request)
            for name, section in self._sections(request).items()
        ]
        context = {
            **site.each_context(request),
            **job_filter.context(request, site),
            "title": _("Dashboard"),
            "opts": self.opts,
            "media": self.media,
            "parts": parts,
        }
        return TemplateResponse(
            request, "admin/django_dcron/dashboard/page.html", context | (extra_context or {})
        )

    def status_line_view(self, request: HttpRequest) -> HttpResponse:
        """Return the health line if something is wrong, else nothing."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        request.current_app = self.admin_site.name
        context = line_context(request, self.admin_site, may_be_older=True)
        if context["line"].kind == "ok":
            return HttpResponse()
        return render(request, "admin/django_dcron/health_line.html", context)

    def part_view(self, request: HttpRequest, name: str) -> HttpResponse:
        section = SECTIONS.get(name)
        if section is None:
            raise Http404
        if not (self.has_view_permission(request) and self._may_see(request, section)):
            raise PermissionDenied
        if name == FIRST_STEPS and _has_jobs(request, self.admin_site):
            return HttpResponse(headers=REFRESH)
        context = section.context(request, self.admin_site)
        return self._part(name, request).refresh_response(context, request)

    def _sections(self, request: HttpRequest) -> dict[str, Section]:
        visible = {
            name: section for name, section in SECTIONS.items() if self._may_see(request, section)
        }
        if FIRST_STEPS in visible and not _has_jobs(request, self.admin_site):
            return {FIRST_STEPS: visible[FIRST_STEPS]}
        visible.pop(FIRST_STEPS, None)
        return visible

    def _may_see(self, request: HttpRequest, section: Section) -> bool:
        return all(may_view(request, model, self.admin_site) for model in section.shows)

    def _part(self, name: str, request: HttpRequest) -> PagePart:
        url = reverse(
            "admin:django_dcron_dashboard_part", args=[name], current_app=self.admin_site.name
        )
        if query := job_filter.query(request):
            url += f"?{urlencode(query)}"
        template = f"admin/django_dcron/dashboard/{name}.html"
        return PagePart(f"dcron-{name}", template, url, SECTIONS[name].interval)


def _has_jobs(request: HttpRequest, site: admin.AdminSite) -> bool:
    return admin_scope(request, site).jobs.order_by().exists()
