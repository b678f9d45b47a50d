"""Counting that stays fast over a million rows: it stops at a limit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.core.paginator import Paginator
from django.db.models import Model, QuerySet
from django.utils.functional import cached_property
from django.utils.translation import gettext as _

from django_dcron.observability.bounded import LIMIT, count_up_to

if TYPE_CHECKING:
    RowPaginator = Paginator[Model]
else:
    RowPaginator = Paginator

__all__ = ["LIMIT", "BoundedPaginator", "count_up_to", "in_words"]


def in_words(queryset: QuerySet[Any], limit: int = LIMIT) -> str:
    found = count_up_to(queryset, limit)
    return str(found) if found <= limit else _("more than %(limit)d") % {"limit": limit}


class BoundedPaginator(RowPaginator):
    """Pages over the first ``LIMIT`` rows; who looks for older ones narrows the list by a filter."""

    object_list: QuerySet[Any]

    @cached_property
    def count(self) -> int:
        return min(self._found, LIMIT)

    @property
    def is_cut(self) -> bool:
        """Whether there are rows beyond the last page."""
        return self._found > LIMIT

    @property
    def limit(self) -> int:
        return LIMIT

    @cached_property
    def _found(self) -> int:
        return count_up_to(self.object_list)
