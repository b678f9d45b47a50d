"""Base classes of the change lists: quick links, texts for empty lists, bounds for many rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from django.contrib.admin import ShowFacets
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.options import IncorrectLookupParameters
from django.contrib.admin.views.main import ChangeList
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse

from django_dcron.admin.base import BaseAdmin, M, ReadOnlyAdmin
from django_dcron.admin.lists.bounded import BoundedPaginator
from django_dcron.admin.lists.lookups import check_lookups, could_be_key

if TYPE_CHECKING:
    from django_stubs_ext import StrOrPromise


MAX_WORDS = 8
"""The maximum number of words in a search. Databases limit the length of a query."""
LONGEST_SEARCH = 1_000
"""The maximum number of characters of a search. SQLite refuses long patterns."""


def search_words(search_term: str) -> list[str]:
    return search_term[:LONGEST_SEARCH].split()[:MAX_WORDS]


def rows_to_show(response: HttpResponse) -> list[Any]:
    """Return the rows that the page of a change list will show.

    The template shows these objects, so a view can attach values to them. A response that isn't a
    list, such as a redirect, has no rows.
    """
    context: dict[str, Any] = getattr(response, "context_data", None) or {}
    changelist = context.get("cl")
    if changelist is None:
        return []
    rows = list(changelist.result_list)
    changelist.result_list = rows
    return rows


class ShortRowsChangeList(ChangeList):
    """A change list that doesn't load the columns that it doesn't show."""

    def get_results(self, request: HttpRequest) -> None:
        super().get_results(request)
        model_admin: Any = self.model_admin
        self.result_list = model_admin.without_long_columns(self.result_list)


class ListAdmin(BaseAdmin[M]):
    """Admin with a change list, for which Django finds the app's ``change_list.html``."""

    quick_links: Sequence[tuple[StrOrPromise, str]] = ()
    """Pairs of label and query string."""
    empty_text: StrOrPromise = ""
    """Text of an empty list, which names the source of its rows."""
    search_note: StrOrPromise = ""
    """Text about what the search covers.

    It replaces Django's ``search_help_text``, which leaves the search without a visible label.
    """
    show_facets = ShowFacets.NEVER  # a facet counts the whole table

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        current_query = request.GET.urlencode()
        links = [(label, query, query == current_query) for label, query in self.quick_links]
        context = {
            "quick_links": links,
            "empty_text": self.empty_text,
            "search_note": self.search_note,
        }
        return super().changelist_view(request, context | (extra_context or {}))

    def get_changelist_instance(self, request: HttpRequest) -> ChangeList:
        """Report invalid values in the query string.

        For some of them, only the database or its driver raises an error.
        """
        check_lookups(self.model, request.GET.lists())
        try:
            return super().get_changelist_instance(request)
        except (ValueError, OverflowError) as error:
            raise IncorrectLookupParameters(error) from error

    def response_action(
        self, request: HttpRequest, queryset: QuerySet[M], *args: Any, **options: Any
    ) -> HttpResponse | None:
        """Drop the submitted keys that no row can have."""
        data = request.POST.copy()
        keys = data.getlist(ACTION_CHECKBOX_NAME)
        data.setlist(ACTION_CHECKBOX_NAME, [key for key in keys if could_be_key(self.model, key)])
        request.POST = data  # type: ignore[assignment]  # mutable, like Django's own copies
        return super().response_action(request, queryset, *args, **options)

    def without_long_columns(self, rows: QuerySet[M]) -> QuerySet[M]:
        """Return the rows of a page without the long columns that the list doesn't show."""
        return rows

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        return ShortRowsChangeList

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[M], search_term: str
    ) -> tuple[QuerySet[M], bool]:
        return super().get_search_results(request, queryset, " ".join(search_words(search_term)))


class HistoryAdmin(ReadOnlyAdmin[M], ListAdmin[M]):
    """Admin of a table with up to millions of rows.

    The order is the order of an index, and no query counts all rows.
    """

    sortable_by = ()
    show_full_result_count = False
    paginator = BoundedPaginator
    list_per_page = 50
    list_max_show_all = 0
