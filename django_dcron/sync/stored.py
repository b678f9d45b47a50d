"""The stored form of declared fields: what JSON can hold, equal if and only if the values are."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, cast

from django.conf import settings as django_settings
from django.core.exceptions import ValidationError
from django.db import models
from django.utils.duration import duration_iso_string

from django_dcron import targets
from django_dcron.models import Job


def field_of(name: str) -> models.Field[Any, Any]:
    return cast("models.Field[Any, Any]", Job._meta.get_field(name))


def wanted_by(declaration: targets.Declaration) -> dict[str, Any]:
    """The declared fields in stored form. Raises ``ValidationError`` by field."""
    fields = {"target": declaration.target, **declaration.fields}
    fields["timezone"] = fields["timezone"] or django_settings.TIME_ZONE
    stored = {}
    for name, value in fields.items():
        try:
            stored[name] = encoded(field_of(name).to_python(value))
        except (TypeError, ValueError) as error:
            raise ValidationError({name: f"{value!r:.200}: {error}"}) from error
        except ValidationError as error:
            raise ValidationError({name: error.messages}) from error
    return stored


def encoded(value: Any) -> Any:
    if isinstance(value, timedelta):
        return duration_iso_string(value)
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat()
    return json.loads(json.dumps(value, allow_nan=False))


def decoded(stored: Mapping[str, Any]) -> dict[str, Any]:
    """By the attributes of a job: of a calendar, its name."""
    return {field_of(name).attname: field_of(name).to_python(value) for name, value in stored.items()}
