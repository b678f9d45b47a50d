"""Filters of a list that a user has saved under a name.

Invariants:

- Users read and change only their own filters.
- A filter is the query string of the list's URL. Following its link checks permissions and values
  like any other URL of the list.
- The list needs one query for the filters, and a user has at most ``MAX_FILTERS`` of them per list.
"""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.contrib.admin.options import IS_POPUP_VAR, TO_FIELD_VAR
from django.contrib.admin.views.main import ERROR_FLAG, PAGE_VAR
from django.core.exceptions import PermissionDenied, ValidationError
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect, QueryDict
from django.urls import URLPattern, path, reverse
from django.utils.translation import gettext as _
from django.views.decorators.http import require_POST

from django_dcron.admin.base import M
from django_dcron.admin.display import list_url
from django_dcron.admin.lists.base import ListAdmin
from django_dcron.models import SavedFilter

MAX_FILTERS = 30
NOT_SAVED = (PAGE_VAR, ERROR_FLAG, IS_POPUP_VAR, TO_FIELD_VAR)
"""The parameters of a list's URL that aren't part of a filter."""


class SavedFiltersAdmin(ListAdmin[M]):
    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view(require_POST(self.saved_filters_view))
        return [path("filters/", view, name=self._filters_url_name), *super().get_urls()]

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        query = _filter_of(request.GET)
        context = {
            "saved_filters": self._filters(request),
            "saved_filters_url": reverse(
                f"admin:{self._filters_url_name}", current_app=self.admin_site.name
            ),
            "filter_to_save": query,
            "longest_filter_name": SavedFilter._meta.get_field("name").max_length,
        }
        return super().changelist_view(request, context | (extra_context or {}))

    def saved_filters_view(self, request: HttpRequest) -> HttpResponse:
        """Save the submitted filter, or delete the named one, and return to the list."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        query = _filter_of(QueryDict(request.POST.get("query", "")))
        if "delete" in request.POST:
            self._filters(request).filter(name=request.POST["delete"]).delete()
            self.message_user(request, _("The filter was deleted."), messages.SUCCESS)
        else:
            self._save(request, request.POST.get("name", "").strip(), query)
        url = list_url(self.model, self.admin_site)
        return HttpResponseRedirect(f"{url}?{query}" if query else url)

    def _save(self, request: HttpRequest, name: str, query: str) -> None:
        saved = SavedFilter(**self._key(request), name=name, query=query)
        others = self._filters(request).exclude(name=name)
        try:
            saved.full_clean(validate_unique=False, validate_constraints=False)
            if others.count() >= MAX_FILTERS:
                text = _("You have %(number)d saved filters. Delete one of them first.")
                raise ValidationError(text % {"number": MAX_FILTERS})
        except ValidationError as error:
            text = _("The filter wasn't saved. %(problem)s") % {"problem": " ".join(error.messages)}
            self.message_user(request, text, messages.ERROR)
            return
        key: dict[str, Any] = {**self._key(request), "name": name}
        SavedFilter.objects.update_or_create({"query": query}, **key)
        self.message_user(
            request, _("The filter “%(name)s” was saved.") % {"name": name}, messages.SUCCESS
        )

    def _filters(self, request: HttpRequest) -> QuerySet[SavedFilter]:
        return SavedFilter.objects.filter(**self._key(request))

    def _key(self, request: HttpRequest) -> dict[str, str]:
        return {"owner": str(request.user.pk), "listing": str(self.opts.model_name)}

    @property
    def _filters_url_name(self) -> str:
        return f"{self.opts.app_label}_{self.opts.model_name}_filters"


def _filter_of(parameters: QueryDict) -> str:
    """Return the query string without the parameters in ``NOT_SAVED``."""
    kept = parameters.copy()
    for name in NOT_SAVED:
        kept.pop(name, None)
    return kept.urlencode()
