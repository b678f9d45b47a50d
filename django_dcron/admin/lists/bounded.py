"""Count rows up to a limit, so that the count stays fast in a table of a million rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.core.paginator import Paginator
from django.db.models import Model, QuerySet
from django.utils.functional import cached_property
from django.utils.translation import gettext as _

from django_dcron.diagnosis.bounded_count import MAX_COUNTED, count_up_to

if TYPE_CHECKING:
    RowPaginator = Paginator[Model]
else:
    RowPaginator = Paginator


def bounded_count_text(queryset: QuerySet[Any]) -> str:
    count = count_up_to(queryset)
    return str(count) if count <= MAX_COUNTED else _("more than %(limit)d") % {"limit": MAX_COUNTED}


class BoundedPaginator(RowPaginator):
    """Paginate the first ``MAX_COUNTED`` rows. Users reach older rows with a filter."""

    object_list: QuerySet[Any]

    @cached_property
    def count(self) -> int:
        return min(self._count_beyond_limit, MAX_COUNTED)

    @property
    def is_truncated(self) -> bool:
        """Whether rows exist beyond the last page."""
        return self._count_beyond_limit > MAX_COUNTED

    @property
    def limit(self) -> int:
        return MAX_COUNTED

    @cached_property
    def _count_beyond_limit(self) -> int:
        return count_up_to(self.object_list)
