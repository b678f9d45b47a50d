"""Forms with a preview: a view renders it from the values that the user has typed so far.

Invariants:

- The view needs the permission to save the form, and writes nothing.
- The view validates the same form as a save, and never saves the form's instance.
"""

from __future__ import annotations

from typing import Any

from django.contrib.admin.utils import quote, unquote
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseNotAllowed
from django.urls import URLPattern, path, reverse

from django_dcron.admin.base import BaseAdmin, M


class PreviewedFormAdmin(BaseAdmin[M]):
    preview_url_name: str
    preview_key: str
    """The query parameter with the key of the row that the user changes."""

    def render_preview(self, request: HttpRequest, form: Any) -> HttpResponse:
        raise NotImplementedError

    def preview_url(self, obj: M | None) -> str:
        """Return the URL for the form of ``obj``, or of a new row."""
        url = reverse(f"admin:{self.preview_url_name}", current_app=self.admin_site.name)
        if obj is None or obj._state.adding:
            return url
        return f"{url}?{self.preview_key}={quote(obj.pk)}"

    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view(self.preview_view)
        return [path("preview/", view, name=self.preview_url_name), *super().get_urls()]

    def preview_view(self, request: HttpRequest) -> HttpResponse:
        if not (self.has_add_permission(request) or self.has_change_permission(request)):
            raise PermissionDenied
        if request.method != "POST":
            return HttpResponseNotAllowed(["POST"])
        row = self._row_to_change(request)
        form_class: Any = self.get_form(request, row, change=row is not None)
        return self.render_preview(request, form_class(request.POST, instance=row))

    def _row_to_change(self, request: HttpRequest) -> M | None:
        """Return the row that the user changes, or None for a new row."""
        if self.preview_key not in request.GET:
            return None
        row = self.get_object(request, unquote(request.GET[self.preview_key]))
        if row is None:
            raise Http404
        if not self.has_change_permission(request, row):
            raise PermissionDenied
        return row
