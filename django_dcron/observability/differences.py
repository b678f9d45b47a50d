"""What a change of a job or a calendar has changed, field by field, as the history keeps it (``changes``)."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from typing import Any

from django.db.models import Model
from django.utils.text import capfirst
from django.utils.translation import override

from django_dcron.domain.durations import write_duration
from django_dcron.models import Calendar, Job
from django_dcron.observability.changes import FieldChange
from django_dcron.targets import redacted

LONGEST = 300
"""Characters of a value in the log: a description may have thousands."""

Values = dict[str, Any]

FIELDS: dict[type[Model], dict[str, Any]] = {
    model: {
        field.name: field for field in model._meta.concrete_fields if field.editable and not field.primary_key
    }
    for model in (Job, Calendar)
}


def values_of(row: Model) -> Values:
    """What a change of ``row`` may change: nothing, unless it is a job or a calendar."""
    fields = FIELDS.get(type(row), {})
    return {
        name: getattr(row, field.attname) for name, field in fields.items()
    }  # of a job's calendar, its name


def differences(before: Values, after: Values) -> list[FieldChange]:
    """Secrets are left out: everybody who sees the job sees its history."""
    return [
        FieldChange(name, _storable(_public(name, before[name])), _storable(_public(name, value)))
        for name, value in after.items()
        if name in before and before[name] != value
    ]


def _public(name: str, value: Any) -> Any:
    return redacted(value) if name in ("args", "kwargs") else value


def changed(model: type[Model], changes: list[FieldChange]) -> dict[str, Any]:
    """As Django says it, whose labels are stored untranslated."""
    with override(None):
        return {
            "changed": {
                "fields": [capfirst(str(FIELDS[model][change.field].verbose_name)) for change in changes]
            }
        }


def _storable(value: Any) -> Any:
    match value:
        case None | bool() | int() | float():
            return value
        case datetime():
            return value.isoformat()
        case timedelta():
            return write_duration(value)
        case str():
            text = value
        case _:
            text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"
