"""Pages of a list that may have a million rows, each at the cost of its own rows.

Invariants:

- Rows come in the order of an index, each page after the last key of the one before: nothing is counted, and nothing is skipped
  over. A row that is made or goes meanwhile makes no other come twice, or not at all.
- What no index finds is looked for among the ``LOOKED_AT`` next rows of that order, and at no more: such a page may have few rows,
  or none, and yet a next one, from there on.
- A cursor is a key and its order. One that is of another order, or no key of it, is refused.
"""

from __future__ import annotations

import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from django.core.exceptions import ValidationError as Unreadable
from django.db.models import DateTimeField, Model, Q, QuerySet
from django.utils.translation import gettext as _
from rest_framework import serializers
from rest_framework.exceptions import ValidationError
from rest_framework.request import Request

from django_dcron.domain.json_values import storable
from django_dcron.rest.fields import Instant
from django_dcron.rest.serializing import Strict

PAGE = 50
LARGEST_PAGE = 500
LOOKED_AT = 20_000
"""How many rows a page looks at, at the most, for what no index finds."""

M = TypeVar("M", bound=Model)
Narrow = Callable[[QuerySet[M]], QuerySet[M]]


class PageQuery(Strict):
    limit = serializers.IntegerField(
        min_value=1, max_value=LARGEST_PAGE, default=PAGE, help_text="How many rows at the most."
    )
    cursor = serializers.CharField(
        required=False, max_length=1000, help_text="As the `next` of the page before has it."
    )


@dataclass(frozen=True, slots=True)
class Order:
    name: str
    fields: tuple[str, ...]
    """Of an index; together unique."""
    descending: bool = False

    def sorted(self, rows: QuerySet[M]) -> QuerySet[M]:
        return rows.order_by(*(f"-{name}" if self.descending else name for name in self.fields))

    def key_of(self, row: Model) -> tuple[Any, ...]:
        return tuple(getattr(row, name) for name in self.fields)

    def after(self, rows: QuerySet[M], key: Sequence[Any]) -> QuerySet[M]:
        beyond = "lt" if self.descending else "gt"
        return self._compared(rows, key, beyond, last=beyond)

    def up_to(self, rows: QuerySet[M], key: Sequence[Any]) -> QuerySet[M]:
        """With the row of ``key``."""
        within = "gt" if self.descending else "lt"
        return self._compared(rows, key, within, last=f"{within}e")

    def _compared(self, rows: QuerySet[M], key: Sequence[Any], beyond: str, last: str) -> QuerySet[M]:
        """A bound on the first field by itself, besides, or a database reads the index from its end."""
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
    next_key: tuple[Any, ...] | None


def page_of(
    rows: QuerySet[M],
    order: Order,
    *,
    limit: int,
    after: Sequence[Any] | None,
    narrow: Narrow[M] | None = None,
) -> Page[M]:
    """``rows``: filtered by what an index finds in ``order``. ``narrow``: by the rest. Two queries at the most."""
    rows = order.sorted(rows)
    if after is not None:
        rows = order.after(rows, after)
    edge = None
    if narrow is not None:
        edge = next(iter(rows.values_list(*order.fields)[LOOKED_AT - 1 : LOOKED_AT]), None)
        rows = narrow(order.up_to(rows, edge) if edge else rows)
    found = list(rows[: limit + 1])
    if len(found) > limit:
        return Page(found[:limit], order.key_of(found[limit - 1]))
    return Page(found, edge)


def write_cursor(order: Order, key: Sequence[Any]) -> str:
    values = [value if isinstance(value, int) else str(value) for value in key]
    return urlsafe_b64encode(json.dumps([order.name, *values]).encode()).decode().rstrip("=")


def read_cursor(text: str, order: Order, model: type[Model]) -> list[Any]:
    """Raises ``ValidationError``."""
    try:
        padded = text.encode("ascii") + b"=" * (-len(text) % 4)
        name, *values = storable(json.loads(urlsafe_b64decode(padded)))
        if name != order.name or len(values) != len(order.fields):
            raise ValueError("of another order")
        return [_read(model, each, value) for each, value in zip(order.fields, values, strict=True)]
    except (ValueError, TypeError, OverflowError, RecursionError, Unreadable, ValidationError):
        told = _(
            "It is no cursor of the order %(order)s; take that of the page before, with the same parameters."
        )
        raise ValidationError({"cursor": [told % {"order": order.name}]}) from None


def _read(model: type[Model], name: str, value: Any) -> Any:
    field: Any = model._meta.get_field(name)
    if isinstance(field, DateTimeField):
        return Instant().to_internal_value(value)
    read = field.clean(value, None)
    if isinstance(read, int) and not 0 <= read < 2**63:
        raise ValueError("no number of a row")
    return read


def next_url(request: Request, page: Page[Any], order: Order) -> str | None:
    if page.next_key is None:
        return None
    query = request.query_params.copy()
    query["cursor"] = write_cursor(order, page.next_key)
    return request.build_absolute_uri(f"{request.path}?{query.urlencode()}")
