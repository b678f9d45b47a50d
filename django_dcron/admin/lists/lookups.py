"""Which lookups the address of a list may have, and which values: what no database refuses half way.

Django takes a lookup on any column of the model from the address, and finds out in the database whether the value fits. Here the
columns, lookups and values are checked before there is a query.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from datetime import UTC
from typing import Any

from django.contrib.admin.options import IncorrectLookupParameters
from django.core.exceptions import FieldDoesNotExist, ValidationError
from django.db import models

from django_dcron.domain.json_values import storable
from django_dcron.domain.timetable import BEGIN, END, WIDEST_OFFSET

COMPARING = ("exact", "in", "lt", "lte", "gt", "gte")
TEXTUAL = ("iexact", "contains", "icontains", "startswith", "istartswith")
MOST_VALUES = 100
LONGEST_VALUE = 300
NOT_LOOKED_UP = (models.JSONField, models.DurationField)
"""Columns whose values cannot be read from an address."""


def check_lookups(model: type[models.Model], parameters: Iterable[tuple[str, list[Any]]]) -> None:
    """Raise ``IncorrectLookupParameters`` if a parameter looks up a column and cannot. Others are for the filters to check."""
    for name, values in parameters:
        try:
            storable([name, *values])
            found = _column(model, name)
            if found is not None:
                for value in values:
                    _check(*found, str(value))
        except (ValueError, OverflowError, ValidationError) as error:
            raise IncorrectLookupParameters(f"{name[:LONGEST_VALUE]}: {error}") from error


def _column(model: type[models.Model], name: str) -> tuple[models.Field[Any, Any], str] | None:
    """The column that a parameter looks up, and how; None if it is not a column."""
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
    if isinstance(field, NOT_LOOKED_UP) or lookup not in (COMPARING + TEXTUAL if is_text else COMPARING):
        raise ValueError("this lookup is not taken")
    values = value.split(",") if lookup == "in" else [value]
    if len(values) > MOST_VALUES:
        raise ValueError(f"{len(values)} values are too many (allowed: {MOST_VALUES})")
    for each in filter(None, values):  # an input left empty
        _check_value(field, each)


def _check_value(field: Any, value: str) -> None:
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
