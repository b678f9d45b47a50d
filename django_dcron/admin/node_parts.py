"""The parts of the node pages that refresh automatically.

Invariants:

- Runs and attempts are shown only to users who may view them, within the rows that they may see.
- The refresh of the list keeps its filters, its search, its order and its page.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from django.contrib.admin.options import IncorrectLookupParameters
from django.contrib.admin.utils import unquote
from django.contrib.admin.views.main import ChangeList
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse
from django.urls import URLPattern, path, reverse
from django.utils.html import conditional_escape

from django_dcron.admin.auto_refresh import RELOAD_PAGE, SEEN, PagePart
from django_dcron.admin.base import ReadOnlyAdmin
from django_dcron.admin.display import list_url, may_view
from django_dcron.admin.lists.base import ListAdmin
from django_dcron.admin.lists.filters import WorkerFilter
from django_dcron.admin.themes import UNFOLD, theme
from django_dcron.admin.visibility import admin_scope
from django_dcron.diagnosis import cluster
from django_dcron.diagnosis.workload import (
    Workload,
    latest_worker_replies,
    runs_sent_by,
    workloads,
)
from django_dcron.models import Attempt, Job, Node, Run

LIST_URL, PAGE_URL = "django_dcron_node_list_part", "django_dcron_node_part"
REFRESH_EVERY = 5


class LiveNodeAdmin(ReadOnlyAdmin[Node], ListAdmin[Node]):
    live_columns: tuple[str, ...] = ()
    """The columns of a node that change while it runs."""

    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view
        return [
            path("part/list/", view(self.list_part_view), name=LIST_URL),
            path("<path:object_id>/part/", view(self.page_part_view), name=PAGE_URL),
            *super().get_urls(),
        ]

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        response = super().changelist_view(request, extra_context)
        context = getattr(response, "context_data", None)
        if context and "cl" in context:
            request.current_app = self.admin_site.name
            part = self._list_part(request)
            context["live_list"] = part.render(self._list_context(request, context["cl"]), request)
        return response

    def list_part_view(self, request: HttpRequest) -> HttpResponse:
        if not self.has_view_permission(request):
            raise PermissionDenied
        received = request.GET
        filters = received.copy()
        filters.pop(SEEN, None)
        request.GET = filters  # type: ignore[assignment]  # Django's own copies are mutable, too
        request.current_app = self.admin_site.name
        try:
            changelist: Any = self.get_changelist_instance(request)
        except IncorrectLookupParameters:
            return HttpResponse(headers=RELOAD_PAGE)
        changelist.formset = None  # the template tag of the list reads it
        # Links lead back to the filtered list. Django knows only the list's own URL.
        query = filters.urlencode()
        changelist.preserved_filters = urlencode({"_changelist_filters": query}) if query else ""
        context = self._list_context(request, changelist)
        part = self._list_part(request)
        request.GET = received
        return part.refresh_response(context, request)

    def page_part_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        if not self.has_view_permission(request):
            raise PermissionDenied
        node = self.get_object(request, unquote(object_id))
        if node is None:
            raise Http404
        if not self.has_view_permission(request, node):
            raise PermissionDenied
        request.current_app = self.admin_site.name
        return self._page_part(node).refresh_response(self._page_context(request, node), request)

    def add_form_context(
        self, request: HttpRequest, context: dict[str, Any], obj: Node | None
    ) -> None:
        super().add_form_context(request, context, obj)
        if obj is not None:
            request.current_app = self.admin_site.name
            context["live_page"] = self._page_part(obj).render(
                self._page_context(request, obj), request
            )

    def _list_part(self, request: HttpRequest) -> PagePart:
        url = reverse(f"admin:{LIST_URL}", current_app=self.admin_site.name)
        query = request.GET.urlencode()
        url = f"{url}?{query}" if query else url
        return PagePart("dcron-nodes", "admin/django_dcron/node/list.html", url, REFRESH_EVERY)

    def _page_part(self, node: Node) -> PagePart:
        url = reverse(f"admin:{PAGE_URL}", args=[node.pk], current_app=self.admin_site.name)
        return PagePart("dcron-node", "admin/django_dcron/node/status.html", url, REFRESH_EVERY)

    def _list_context(self, request: HttpRequest, changelist: ChangeList) -> dict[str, Any]:
        return {
            "cl": changelist,
            "rows_template": f"admin/django_dcron/node/{_rows_template()}.html",
            "opts": self.opts,
            **self._workers_context(request),
        }

    def _page_context(self, request: HttpRequest, node: Node) -> dict[str, Any]:
        sees_runs = self._may_view(request, Run, Job)
        scope = admin_scope(request, self.admin_site)
        facts = []
        for name in self.live_columns:
            column = getattr(self, name)
            facts.append((name, column.short_description, conditional_escape(column(node))))
        return {
            "facts": facts,
            "sees_runs": sees_runs,
            "runs": runs_sent_by(node, scope) if sees_runs else [],
        }

    def _workers_context(self, request: HttpRequest) -> dict[str, Any]:
        """Return the workers, and whether none replied to the nodes' latest request.

        Users who may not view attempts see neither.
        """
        if not self._may_view(request, Attempt, Run, Job):
            return {}
        scope = admin_scope(request, self.admin_site)
        found = [] if scope.narrows(Node) else list(filter(cluster.is_live, cluster.nodes()))
        return {
            "workers": [(load, self._attempts_url(load)) for load in workloads(found, scope)],
            "no_worker_replies": latest_worker_replies(found) == (),
        }

    def _attempts_url(self, load: Workload) -> str:
        """Return the URL of the list of the worker's attempts, or "" if it executes none."""
        if not load.attempts:
            return ""
        lookups = {str(WorkerFilter.parameter_name): load.attempts[0].worker}
        return list_url(Attempt, self.admin_site, **lookups)

    def _may_view(self, request: HttpRequest, *models: type[Any]) -> bool:
        return all(may_view(request, model, self.admin_site) for model in models)


def _rows_template() -> str:
    """Return the name of the template that renders a list's rows in the admin's theme."""
    return "rows_unfold" if theme() == UNFOLD else "rows"
