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

COMPARING = ("exact", "in", "lt", "lte", "gt", "gte")
TEXTUAL = ("iexact", "contains", "icontains", "startswith", "istartswith")
MOST_VALUES = 100
LONGEST_VALUE = 300
NOT_LOOKED_UP = (models.JSONField, models.DurationField)
"""Columns whose values can't be parsed from a query string."""


def check_lookups(model: type[models.Model], parameters: Iterable[tuple[str, list[Any]]]) -> None:
    """Raise ``IncorrectLookupParameters`` for an invalid lookup on a column.

    Filters validate all other parameters.
    """
    for name, values in parameters:
        try:
            check_storable([name, *values])
            found = _column(model, name)
            if found is not None:
                for value in values:
                    _check(*found, str(value))
        except (ValueError, OverflowError, ValidationError) as error:
            raise IncorrectLookupParameters(f"{name[:LONGEST_VALUE]}: {error}") from error


def _column(model: type[models.Model], name: str) -> tuple[models.Field[Any, Any], str] | None:
    """Return the column and the lookup of a parameter, or None if it doesn't name a column."""
    first, *others = name.split("__")
    field = _field(model, first)
    if field is None:
        return None
    while (
        others
        and field.related_model is not None
        and (of := _field(field.related_model, others[0])) is not None
    ):
        field, others = of, others[1:]
    if len(others) > 1:
        raise ValueError("no lookups of lookups are taken")
    return field, others[0] if others else "exact"


def _field(model: Any, name: str) -> Any:
    if name == "pk":
        return model._meta.pk
    try:
        return model._meta.get_field(name)
    except FieldDoesNotExist:
        return next((each for each in model._meta.concrete_fields if each.attname == name), None)


def _check(field: Any, lookup: str, value: str) -> None:
    while getattr(field, "target_field", None) is not None and field.is_relation:
        field = field.target_field
    if lookup == "isnull":
        return
    is_text = isinstance(field, (models.CharField, models.TextField))
    if isinstance(field, NOT_LOOKED_UP) or lookup not in (
        COMPARING + TEXTUAL if is_text else COMPARING
    ):
        raise ValueError("this lookup is not taken")
    values = value.split(",") if lookup == "in" else [value]
    if len(values) > MOST_VALUES:
        raise ValueError(f"{len(values)} values are too many (allowed: {MOST_VALUES})")
    for each in filter(None, values):  # skips an empty input
        check_value(field, each)


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
    read = field.to_python(value)
    if isinstance(read, float) and not math.isfinite(read):
        raise ValueError("not a finite number")
    if isinstance(field, models.DateTimeField) and read is not None:
        offset = read.utcoffset()
        aware = read if offset is not None else read.replace(tzinfo=UTC)
        if (offset and abs(offset) > WIDEST_OFFSET) or not BEGIN <= aware < END:
            raise ValueError("not a time in the years 1970 to 2199")
    if isinstance(field, models.IntegerField) and read is not None and not -(2**63) <= read < 2**63:
        raise ValueError("out of range")
