"""Keyset pagination: a page costs only its own rows, even in a list of millions of rows.

Invariants:

- Rows come in the order of an index, and a page starts after the last key of the previous page.
  Nothing is counted or skipped.
- If a row is inserted or deleted between two pages, every other row still appears exactly once.
- Filters without an index apply to the next ``READ_LIMIT`` rows of the order. Such a page may have
  few rows or none, and still a next page.
- A cursor contains a key and the name of its order. A cursor of another order, or with an invalid
  key, is refused.
"""

from __future__ import annotations

import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from django.core.exceptions import ValidationError as Unreadable
from django.db.models import DateTimeField, Model, Q, QuerySet
from django.utils.translation import gettext as _
from rest_framework import serializers
from rest_framework.exceptions import ValidationError
from rest_framework.request import Request
from rest_framework.response import Response

from django_dcron.contrib.rest.base_serializers import StrictSerializer
from django_dcron.contrib.rest.fields import UtcTimeField
from django_dcron.utils.json_values import check_storable

PAGE = 50
LARGEST_PAGE = 500
READ_LIMIT = 20_000
"""The maximum number of rows that a page examines for filters without an index."""

M = TypeVar("M", bound=Model)
Narrow = Callable[[QuerySet[M]], QuerySet[M]]


class PageQuery(StrictSerializer):
    limit = serializers.IntegerField(
        min_value=1, max_value=LARGEST_PAGE, default=PAGE, help_text="The maximum number of rows."
    )
    cursor = serializers.CharField(
        required=False,
        max_length=2000,
        help_text="The cursor in the `next` URL of the previous page.",
    )


class NextPage(serializers.URLField):
    """The field ``next`` of a page."""

    def __init__(self) -> None:
        help_text = "The URL of the next page. Null on the last page."
        super().__init__(read_only=True, allow_null=True, help_text=help_text)


@dataclass(frozen=True, slots=True)
class PageOrder:
    name: str
    fields: tuple[str, ...]
    """The fields of an index. Together they are unique."""
    descending: bool = False

    def sorted(self, rows: QuerySet[M]) -> QuerySet[M]:
        return rows.order_by(*(f"-{name}" if self.descending else name for name in self.fields))

    def key_of(self, row: Model) -> tuple[Any, ...]:
        return tuple(getattr(row, name) for name in self.fields)

    def after(self, rows: QuerySet[M], key: Sequence[Any]) -> QuerySet[M]:
        beyond = "lt" if self.descending else "gt"
        return self._rows_beyond(rows, key, beyond, last=beyond)

    def up_to(self, rows: QuerySet[M], key: Sequence[Any]) -> QuerySet[M]:
        """Return the rows up to ``key``, including its row."""
        within = "gt" if self.descending else "lt"
        return self._rows_beyond(rows, key, within, last=f"{within}e")

    def _rows_beyond(
        self, rows: QuerySet[M], key: Sequence[Any], beyond: str, last: str
    ) -> QuerySet[M]:
        """Return the rows on one side of ``key``.

        The separate bound on the first field lets databases seek the index.
        """
        first, *others = self.fields
        if not others:
            return rows.filter(**{f"{first}__{last}": key[0]})
        (second,) = others
        same_first = Q(**{first: key[0], f"{second}__{last}": key[1]})
        bound = {f"{first}__{beyond}e": key[0]}
        return rows.filter(Q(**{f"{first}__{beyond}": key[0]}) | same_first, **bound)


@dataclass(frozen=True, slots=True)
class Page(Generic[M]):
    rows: list[M]
    order: PageOrder
    next_key: tuple[Any, ...] | None


def page_of(
    rows: QuerySet[M],
    order: PageOrder,
    query: Mapping[str, Any],
    narrow: Narrow[M] | None = None,
) -> Page[M]:
    """Return the page that a ``PageQuery`` requests, with at most two queries.

    ``rows``: filtered by what an index in ``order`` finds. ``narrow``: applies the other filters.
    Raises ``ValidationError`` if the cursor is invalid.
    """
    limit = query["limit"]
    rows = order.sorted(rows)
    if "cursor" in query:
        rows = order.after(rows, read_cursor(query["cursor"], order, rows.model))
    edge = None
    if narrow is not None:
        edge = next(iter(rows.values_list(*order.fields)[READ_LIMIT - 1 : READ_LIMIT]), None)
        rows = narrow(order.up_to(rows, edge) if edge else rows)
    found = list(rows[: limit + 1])
    if len(found) > limit:
        return Page(found[:limit], order, order.key_of(found[limit - 1]))
    return Page(found, order, edge)


def page_response(request: Request, page: Page[Any], results: Any) -> Response:
    """Return the response with the results, which represent the rows of the page."""
    return Response({"next": _next_url(request, page), "results": results})


def _write_cursor(order: PageOrder, key: Sequence[Any]) -> str:
    values = [value if isinstance(value, int) else str(value) for value in key]
    text = json.dumps([order.name, *values], ensure_ascii=False)
    return urlsafe_b64encode(text.encode()).decode().rstrip("=")


def read_cursor(text: str, order: PageOrder, model: type[Model]) -> list[Any]:
    """Parse a cursor. Raises ``ValidationError``."""
    try:
        padded = text.encode("ascii") + b"=" * (-len(text) % 4)
        name, *values = check_storable(json.loads(urlsafe_b64decode(padded)))
        if name != order.name or len(values) != len(order.fields):
            raise ValueError("the cursor belongs to another order")
        return [_read(model, each, value) for each, value in zip(order.fields, values, strict=True)]
    except (ValueError, TypeError, OverflowError, RecursionError, Unreadable, ValidationError):
        message = _(
            "The cursor is not valid for the order %(order)s. Use the `next` URL of the "
            "previous page unchanged."
        )
        raise ValidationError({"cursor": [message % {"order": order.name}]}) from None


def _read(model: type[Model], name: str, value: Any) -> Any:
    field: Any = model._meta.get_field(name)
    if isinstance(field, DateTimeField):
        return UtcTimeField().to_internal_value(value)
    read = field.clean(value, None)
    if read is None or (isinstance(read, int) and not 0 <= read < 2**63):
        raise ValueError("not a valid key")
    return read


def _next_url(request: Request, page: Page[Any]) -> str | None:
    if page.next_key is None:
        return None
    query = request.query_params.copy()
    query["cursor"] = _write_cursor(page.order, page.next_key)
    return request.build_absolute_uri(f"{request.path}?{query.urlencode()}")
