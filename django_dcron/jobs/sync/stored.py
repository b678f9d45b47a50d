"""The JSON form in which declared fields are stored, as defined by ``jobs.representation``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from django.conf import settings as django_settings
from django.core.exceptions import ValidationError
from django.utils import translation

from django_dcron import targets
from django_dcron.jobs.python_values import as_json
from django_dcron.jobs.representation import (
    JOB_FIELDS,
    DocumentField,
    InvalidField,
    to_json,
)


def stored_declaration(declaration: targets.Declaration) -> dict[str, Any]:
    """Return the declared fields in stored form. Raises ``ValidationError`` by field."""
    fields = {"target": declaration.target, **declaration.fields}
    fields["timezone"] = fields["timezone"] or django_settings.TIME_ZONE
    stored = {}
    for name, value in fields.items():
        try:
            if name in ("args", "kwargs"):
                value = as_json(name, value)
            stored[name] = to_stored(JOB_FIELDS[name].model_field.to_python(value))
        except (TypeError, ValueError) as error:
            shown = "" if JOB_FIELDS[name].confidential else f"{value!r:.200}: "
            raise ValidationError({name: f"{shown}{error}"}) from error
        except ValidationError as error:
            raise ValidationError({name: error.messages}) from error
    return stored


def to_stored(value: Any) -> Any:
    """Return a field's value as plain JSON."""
    return json.loads(json.dumps(to_json(value), allow_nan=False))


def from_stored(stored: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values by the job's attributes. Raises ``ValidationError`` by field."""
    values = {}
    for name, json_value in stored.items():
        try:
            values[JOB_FIELDS[name].attname] = JOB_FIELDS[name].read(json_value)
        except InvalidField as error:
            raise ValidationError(
                {name: ValidationError(error.translate(translation), code=error.code)}
            ) from error
    return values


def stored_default(field: DocumentField) -> Any:
    return to_stored(field.model_field.get_default())


def value_in_declaration(field: DocumentField, declared: Mapping[str, Any]) -> Any:
    """Return the field's value in a stored declaration. An omitted field has its default."""
    if field.name not in declared:
        return stored_default(field)
    return _upgrade_stored_value(field, declared[field.name])


def _upgrade_stored_value(field: DocumentField, json_value: Any) -> Any:
    """Return a value that an earlier release stored, in the form of this release."""
    try:
        return to_stored(field.read(json_value))
    except InvalidField:
        return json_value
