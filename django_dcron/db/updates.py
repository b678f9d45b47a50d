"""Update many rows, each with its own values, in few statements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from django.db import connections
from django.db.models import Case, Field, JSONField, Model, QuerySet, Value, When
from django.db.models.functions import Cast

from django_dcron.utils.batches import in_batches
from django_dcron.utils.json_values import same_json

M = TypeVar("M", bound=Model)


def same_value(field: Field[Any, Any], one: Any, other: Any) -> bool:
    """Return whether the field's column stores both values in the same way."""
    return same_json(one, other) if isinstance(field, JSONField) else bool(one == other)


def update_each(
    rows: QuerySet[M], instances: Sequence[M], fields: Sequence[Field[Any, Any]], **shared: Any
) -> None:
    """Write ``fields`` of each instance to its row, and ``shared`` to all of these rows.

    One statement writes a batch. A batch is as large as the database's limit on parameters allows.
    """
    for batch in in_batches(instances, _batch_size(rows.db, instances, fields)):
        columns = {field.attname: _column(field, batch, rows.db) for field in fields}
        rows.filter(pk__in=[each.pk for each in batch]).update(**columns, **shared)


def _batch_size(using: str, instances: Sequence[M], fields: Sequence[Field[Any, Any]]) -> int:
    key: Any = instances[0]._meta.pk
    # For each row: its key in the filter, and for each field the key (WHEN) and the value (THEN).
    parameters = [key, *(each for field in fields for each in (key, field))]
    return int(connections[using].ops.bulk_batch_size(parameters, instances))


def _column(field: Field[Any, Any], batch: Sequence[Model], using: str) -> Any:
    """Return the new value of a column: the same for all rows, or one for each key."""
    values = [getattr(each, field.attname) for each in batch]
    if all(same_value(field, value, values[0]) for value in values):
        return values[0]
    by_key = [
        When(pk=each.pk, then=Value(value, output_field=field))
        for each, value in zip(batch, values, strict=True)
    ]
    chosen = Case(*by_key, output_field=field)
    casts = connections[using].features.requires_casted_case_in_updates
    return Cast(chosen, output_field=field) if casts else chosen
