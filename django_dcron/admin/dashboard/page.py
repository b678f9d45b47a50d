"""The dashboard's page, made of sections that are kept up to date.

Invariants:

- A section is available only to users who may view the rows behind the section.
- The cost of a section doesn't grow with the number of runs. The modules in ``diagnosis`` explain
  how; ``live`` bounds how often sections are read.
- Without JavaScript or ``django_htmx``, sections change only when the page is reloaded.
- A section contains no form with a CSRF token. It shows a recent tick as "just now", so that the
  section doesn't change at each refresh.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from django.contrib import admin
from django.contrib.auth.decorators import login_not_required
from django.core.exceptions import PermissionDenied
from django.db import OperationalError
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.template.loader import render_to_string
from django.urls import URLPattern, path, reverse
from django.utils.decorators import method_decorator
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from django_dcron.admin.auto_refresh import RELOAD_PAGE
from django_dcron.admin.base import ReadOnlyAdmin
from django_dcron.admin.dashboard import (
    cluster,
    failures,
    first_steps,
    health,
    live,
    load_heat_map,
    tiles,
    timeline,
)
from django_dcron.admin.dashboard import filter as job_filter
from django_dcron.admin.dashboard.index_line import STATUS_URL, line_context
from django_dcron.admin.dashboard.live import RenderedSection, Section
from django_dcron.admin.dashboard.viewer import Viewer
from django_dcron.db.contention import is_contention
from django_dcron.db.error_remedies import with_remedy
from django_dcron.db.routing import alias_for
from django_dcron.db.session_limits import limited_reads
from django_dcron.models import Dashboard, Job, Node, Run

LIVE_URL = "django_dcron_dashboard_live"
FIRST_STEPS = "first_steps"
"""Replaces all other sections until a job exists."""
SECTIONS = {
    "health": Section(health.context, min_interval=30, max_interval=30),
    live.FIGURES: Section(tiles.context, min_interval=30, max_interval=30),
    "timeline": Section(
        timeline.context, min_interval=60, max_interval=120, shows=(Job,), is_filtered=True
    ),
    "failures": Section(failures.context, min_interval=60, max_interval=120, shows=(Run,)),
    "cluster": Section(cluster.context, min_interval=60, max_interval=90, shows=(Node,)),
    "load": Section(
        load_heat_map.context, min_interval=120, max_interval=150, shows=(Job,), is_filtered=True
    ),
    FIRST_STEPS: Section(first_steps.context, min_interval=10, max_interval=10, shows=(Job,)),
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
            path("live/", self.live_view, name=LIVE_URL),
        ]

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        if not self.has_view_permission(request):
            raise PermissionDenied
        site = self.admin_site
        viewer = Viewer.of(request, site)
        sections = self._sections(viewer)
        if FIRST_STEPS in sections and not _has_jobs(viewer):
            sections = {FIRST_STEPS: sections[FIRST_STEPS]}
        else:
            sections.pop(FIRST_STEPS, None)
        try:
            with limited_reads(alias_for(Run)):
                shown = live.read_sections(viewer, sections)
        except OperationalError as error:
            if not is_contention(error):
                raise
            return self._locked_page(request, error)
        live.remember_viewer(viewer, request)
        context = {
            **job_filter.context(request, site),
            "title": _("Dashboard"),
            "parts": [_render_frame(name, shown[name]) for name in sections],
            "live_url": self._live_url(viewer),
        }
        return self.render_page(request, "dashboard/page.html", context | (extra_context or {}))

    def _locked_page(self, request: HttpRequest, error: Exception) -> HttpResponse:
        """Say that another session has locked a table, and how to find it."""
        text = _("The dashboard can't be read, because a table is locked: %(error)s")
        message = format_html('<p class="errornote">{}</p>', text % {"error": with_remedy(error)})
        context = {"title": _("Dashboard"), "parts": [message]}
        response = self.render_page(request, "dashboard/page.html", context)
        response.status_code = 503
        return response

    def status_line_view(self, request: HttpRequest) -> HttpResponse:
        """Return the health line, or an empty response if the cluster is healthy."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        request.current_app = self.admin_site.name
        context = line_context(request, self.admin_site, allow_cached=True)
        if context["line"].kind == "ok":
            return HttpResponse()
        return render(request, "admin/django_dcron/health_line.html", context)

    @method_decorator([login_not_required, never_cache, require_safe])
    def live_view(self, request: HttpRequest) -> HttpResponse:
        """Return the sections that differ from what the tab shows, or 204 if none does.

        Skips the check of permissions if the session passed one recently (``live.RECHECK_AFTER``).
        """
        viewer = live.remembered_viewer(request, self.admin_site)
        answer = self._changes(request, viewer) if viewer else None
        if answer is None:
            return self.admin_site.admin_view(self._checked_live_view)(request)
        return answer

    def _checked_live_view(self, request: HttpRequest) -> HttpResponse:
        if not self.has_view_permission(request):
            raise PermissionDenied
        viewer = Viewer.of(request, self.admin_site)
        answer = self._changes(request, viewer)
        live.remember_viewer(viewer, request)
        assert answer is not None  # noqa: S101 (the user is known)
        return answer

    def _changes(self, request: HttpRequest, viewer: Viewer) -> HttpResponse | None:
        permitted = self._sections(viewer)
        seen = live.seen_digests(request, permitted)
        found = live.refreshed_sections(viewer, {name: permitted[name] for name in seen})
        if found is None:
            return None
        changed = {name: shown for name, shown in found.items() if shown.digest != seen[name]}
        if not changed:
            return HttpResponse(status=204)
        if FIRST_STEPS in changed and not changed[FIRST_STEPS].html.strip():
            return HttpResponse(headers=RELOAD_PAGE)
        return HttpResponse(
            "".join(_render_frame(name, shown, replaces=True) for name, shown in changed.items())
        )

    def _sections(self, viewer: Viewer) -> dict[str, Section]:
        return {
            name: section for name, section in SECTIONS.items() if viewer.may_view(*section.shows)
        }

    def _live_url(self, viewer: Viewer) -> str:
        url = reverse(f"admin:{LIVE_URL}", current_app=self.admin_site.name)
        query = job_filter.query_parameters(viewer.chosen)
        return f"{url}?{urlencode(query)}" if query else url


def _render_frame(name: str, shown: RenderedSection, *, replaces: bool = False) -> SafeString:
    """Wrap the section in an element. In an open tab, it replaces the element of the same name."""
    context = {"name": name, "shown": shown, "replaces": replaces}
    return render_to_string("admin/django_dcron/dashboard/section.html", context)


def _has_jobs(viewer: Viewer) -> bool:
    return viewer.scope.jobs.order_by().exists()
