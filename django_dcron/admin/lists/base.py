"""What the lists have in common: a row of links on top, what an empty one says, and bounds over a million rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from django.contrib.admin import ShowFacets
from django.contrib.admin.options import IncorrectLookupParameters
from django.contrib.admin.views.main import ChangeList
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse

from django_dcron.admin.base import BaseAdmin, M, ReadOnlyAdmin
from django_dcron.admin.lists.bounded import BoundedPaginator
from django_dcron.admin.lists.lookups import check_lookups

if TYPE_CHECKING:
    from django_stubs_ext import StrOrPromise


MOST_WORDS = 8
"""Of a search: each makes the query longer, and a database takes no query of any length."""


def words_of(search_term: str) -> list[str]:
    return search_term.split()[:MOST_WORDS]


class ShortRows(ChangeList):
    """A list whose rows are read without the columns that it does not show."""

    def get_results(self, request: HttpRequest) -> None:
        super().get_results(request)
        ours: Any = self.model_admin
        self.result_list = ours.listed(self.result_list)


class ListAdmin(BaseAdmin[M]):
    """Its template is ``admin/django_dcron/change_list.html``, by Django's own rule."""

    quick_links: Sequence[tuple[StrOrPromise, str]] = ()
    """Label and query string of each."""
    nothing_yet: StrOrPromise = ""
    """What an empty list says: where its rows come from."""
    searched: StrOrPromise = ""
    """What the search looks at. Not Django's ``search_help_text``, beside which the search has no visible label."""
    show_facets = ShowFacets.NEVER  # each would be counted over the whole table

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        here = request.GET.urlencode()
        links = [(label, query, query == here) for label, query in self.quick_links]
        shown = {"quick_links": links, "nothing_yet": self.nothing_yet, "searched": self.searched}
        return super().changelist_view(request, shown | (extra_context or {}))

    def get_changelist_instance(self, request: HttpRequest) -> ChangeList:
        """What a query string asks for may be no value of its column. Some of it only a database, or its driver, finds."""
        check_lookups(self.model, request.GET.lists())
        try:
            return super().get_changelist_instance(request)
        except (ValueError, OverflowError) as error:
            raise IncorrectLookupParameters(error) from error

    def listed(self, rows: QuerySet[M]) -> QuerySet[M]:
        """The rows of a page, without long columns that the list does not show."""
        return rows

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        return ShortRows

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[M], search_term: str
    ) -> tuple[QuerySet[M], bool]:
        return super().get_search_results(request, queryset, " ".join(words_of(search_term)))


class HistoryAdmin(ReadOnlyAdmin[M], ListAdmin[M]):
    """Of a table that may have a million rows: one order, that of an index, and no count over all."""

    sortable_by = ()
    show_full_result_count = False
    paginator = BoundedPaginator
    list_per_page = 50
    list_max_show_all = 0
