"""Validate the lookups and values in the query string of a list before a query runs.

Django accepts a lookup on any column of the model and leaves the validation of the value to the
database.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from datetime import UTC
from typing import Any

from django.contrib.admin.options import IncorrectLookupParameters
from django.core.exceptions import FieldDoesNotExist, ValidationError
from django.db import models

from django_dcron.schedules.timetable import BEGIN, END, WIDEST_OFFSET
from django_dcron.utils.json_values import check_storable

COMPARISON_LOOKUPS = ("exact", "in", "lt", "lte", "gt", "gte")
TEXT_LOOKUPS = ("iexact", "contains", "icontains", "startswith", "istartswith")
MAX_VALUES = 100
LONGEST_VALUE = 300
UNSUPPORTED_FIELDS = (models.JSONField, models.DurationField)
"""Columns whose values can't be parsed from a query string."""


def check_lookups(model: type[models.Model], parameters: Iterable[tuple[str, list[Any]]]) -> None:
    """Raise ``IncorrectLookupParameters`` for an invalid lookup on a column.

    Filters validate all other parameters.
    """
    for name, values in parameters:
        try:
            check_storable([name, *values])
            column_and_lookup = _column(model, name)
            if column_and_lookup is not None:
                for value in values:
                    _check(*column_and_lookup, str(value))
        except (ValueError, OverflowError, ValidationError) as error:
            raise IncorrectLookupParameters(f"{name[:LONGEST_VALUE]}: {error}") from error


def _column(model: type[models.Model], name: str) -> tuple[models.Field[Any, Any], str] | None:
    """Return the column and the lookup of a parameter, or None if it doesn't name a column."""
    first, *rest = name.split("__")
    field = _field(model, first)
    if field is None:
        return None
    while (
        rest
        and field.related_model is not None
        and (related := _field(field.related_model, rest[0])) is not None
    ):
        field, rest = related, rest[1:]
    if len(rest) > 1:
        raise ValueError("nested lookups aren't supported")
    return field, rest[0] if rest else "exact"


def _field(model: Any, name: str) -> Any:
    if name == "pk":
        return model._meta.pk
    try:
        return model._meta.get_field(name)
    except FieldDoesNotExist:
        return next((field for field in model._meta.concrete_fields if field.attname == name), None)


def _check(field: Any, lookup: str, value: str) -> None:
    while getattr(field, "target_field", None) is not None and field.is_relation:
        field = field.target_field
    if lookup == "isnull":
        return
    is_text = isinstance(field, (models.CharField, models.TextField))
    if isinstance(field, UNSUPPORTED_FIELDS) or lookup not in (
        COMPARISON_LOOKUPS + TEXT_LOOKUPS if is_text else COMPARISON_LOOKUPS
    ):
        raise ValueError("this lookup isn't supported")
    values = value.split(",") if lookup == "in" else [value]
    if len(values) > MAX_VALUES:
        raise ValueError(f"{len(values)} values are too many (allowed: {MAX_VALUES})")
    for item in filter(None, values):  # skips an empty input
        check_value(field, item)


def could_be_key(model: type[models.Model], text: str) -> bool:
    """Return whether a row could have ``text`` as its primary key.

    A database raises an error for some texts that no key can have.
    """
    try:
        check_storable(text)
        check_value(model._meta.pk, text)
    except (ValueError, OverflowError, ValidationError):
        return False
    return True


def check_value(field: Any, value: str) -> None:
    """Raise an error if the column can't store the value.

    The error is a ``ValueError``, an ``OverflowError`` or a ``ValidationError``.
    """
    if len(value) > LONGEST_VALUE:
        raise ValueError(f"{len(value)} characters are too many (allowed: {LONGEST_VALUE})")
    parsed = field.to_python(value)
    if isinstance(parsed, float) and not math.isfinite(parsed):
        raise ValueError("not a finite number")
    if isinstance(field, models.DateTimeField) and parsed is not None:
        offset = parsed.utcoffset()
        aware = parsed if offset is not None else parsed.replace(tzinfo=UTC)
        if (offset and abs(offset) > WIDEST_OFFSET) or not BEGIN <= aware < END:
            raise ValueError("not a time in the years 1970 to 2199")
    if (
        isinstance(field, models.IntegerField)
        and parsed is not None
        and not -(2**63) <= parsed < 2**63
    ):
        raise ValueError("out of range")
