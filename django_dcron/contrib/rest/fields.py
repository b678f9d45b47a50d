"""Strict JSON fields in the formats of ``jobs.representation``.

The project's ``REST_FRAMEWORK`` settings don't change the formats.

Fields check types only. The model checks all other rules in ``clean_fields``, so errors have the
same words and fields as in the admin. A field runs only the validators that refuse text no
database can store (NUL, lone surrogates). Its other validators only document it.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, NoReturn
from uuid import UUID

from django.core.validators import (
    MaxLengthValidator,
    ProhibitNullCharactersValidator,
    RegexValidator,
)
from django.db.models import Q
from django.utils import translation
from django.utils.translation import gettext_lazy
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers
from rest_framework.validators import ProhibitSurrogateCharactersValidator

from django_dcron.jobs.representation import (
    InvalidField,
    ValueFormat,
    from_json,
    to_json,
)
from django_dcron.models.job_validation import JSON_EXAMPLES, wrong_type
from django_dcron.utils.json_values import check_storable

UNSTORABLE = (ProhibitNullCharactersValidator, ProhibitSurrogateCharactersValidator)


def leave_rules_to_model(field: Any) -> None:
    """Reduce a field to the check of its type, and leave other rules to the model."""
    storable_validators = [each for each in field.validators if isinstance(each, UNSTORABLE)]
    # The syntax of regular expressions in JSON Schema differs from Python's.
    field.validators = [each for each in field.validators if not isinstance(each, RegexValidator)]

    def run(value: Any) -> None:
        for validator in storable_validators:
            validator(value)

    field.run_validators = run


def _read(form: ValueFormat, data: Any) -> Any:
    try:
        return from_json(form, data)
    except InvalidField as error:
        raise serializers.ValidationError(error.translate(translation), code=error.code) from None


class StrictChoiceField(serializers.ChoiceField):
    default_error_messages = {
        "invalid_choice": gettext_lazy('"{input}" is not a valid choice. Allowed: {allowed}.')
    }

    def fail(self, key: str, **values: Any) -> NoReturn:
        super().fail(key, allowed=", ".join(map(str, self.choices)), **values)


class StrictCharField(serializers.CharField):
    def to_internal_value(self, data: Any) -> str:
        text: str = _read(ValueFormat.TEXT, data)
        if self.max_length is not None:
            MaxLengthValidator(self.max_length)(text)  # the limit applies before trimming
        return super().to_internal_value(text)


class StrictIntegerField(serializers.IntegerField):
    def to_internal_value(self, data: Any) -> int:
        number: int = _read(ValueFormat.INTEGER, data)
        return number


class StrictFloatField(serializers.FloatField):
    def to_internal_value(self, data: Any) -> float:
        number: float = _read(ValueFormat.NUMBER, data)
        return number


class StrictBooleanField(serializers.BooleanField):
    def to_internal_value(self, data: Any) -> bool:
        flag: bool = _read(ValueFormat.BOOLEAN, data)
        return flag


class StrictUuidField(serializers.UUIDField):
    def to_internal_value(self, data: Any) -> UUID:
        text: str = _read(ValueFormat.TEXT, data)
        return super().to_internal_value(text)


@extend_schema_field({"type": "string", "example": "1h30m"})
class DurationTextField(serializers.Field[timedelta, Any, str, Any]):
    """A duration as text."""

    def to_internal_value(self, data: Any) -> timedelta:
        duration: timedelta = _read(ValueFormat.DURATION, data)
        return duration

    def to_representation(self, value: timedelta) -> str:
        text: str = to_json(value)
        return text


@extend_schema_field({"type": "number"})
class SecondsField(serializers.Field[timedelta, Any, float, Any]):
    """A measured duration, as a number of seconds."""

    def to_representation(self, value: timedelta) -> float:
        seconds = value.total_seconds()
        return int(seconds) if seconds.is_integer() else seconds


@extend_schema_field({"type": "string", "format": "date-time"})
class UtcTimeField(serializers.Field[datetime, Any, str, Any]):
    """An RFC 3339 time with an offset. Output is in UTC."""

    def to_internal_value(self, data: Any) -> datetime:
        instant: datetime = _read(ValueFormat.TIME, data)
        return instant

    def to_representation(self, value: datetime) -> str:
        text: str = to_json(value)
        return text


@extend_schema_field({"type": "string", "format": "date-time"})
class LocalTimeField(UtcTimeField):
    """A time that keeps the offset of its own zone."""

    def to_representation(self, value: datetime) -> str:
        return value.isoformat()


class NameField(serializers.PrimaryKeyRelatedField[Any]):
    """The name of a row, which is its key."""

    default_error_messages = {
        "does_not_exist": gettext_lazy("“{pk_value}” doesn't exist."),
        "incorrect_type": gettext_lazy("Not a valid string."),
    }

    def get_queryset(self) -> Any:
        """Return the visible rows, and the row that the instance names already."""
        rows: Any = super().get_queryset()
        scope = self.context.get("scope")
        if rows is None or scope is None or not scope.narrows(rows.model):
            return rows
        named = getattr(getattr(self.parent, "instance", None), f"{self.source}_id", None)
        return rows.filter(Q(pk__in=scope.keys(rows.model)) | Q(pk=named))

    def to_internal_value(self, data: Any) -> Any:
        if not isinstance(data, str):
            self.fail("incorrect_type")
        try:
            check_storable(data)
        except ValueError:
            self.fail("does_not_exist", pk_value=ascii(data))
        return super().to_internal_value(data)


@extend_schema_field({})
class StrictJsonField(serializers.JSONField):
    """JSON that every database can store."""

    kind: type | None = None

    def to_internal_value(self, data: Any) -> Any:
        _read(ValueFormat.JSON, data)
        if self.kind is not None and not isinstance(data, self.kind):
            example = JSON_EXAMPLES.get(self.field_name or "", "")
            raise serializers.ValidationError(wrong_type(data, self.kind, example))
        return data


@extend_schema_field({"type": "array", "items": {}})
class JsonListField(StrictJsonField):
    kind = list


@extend_schema_field({"type": "object", "additionalProperties": {}})
class JsonObjectField(StrictJsonField):
    kind = dict


@extend_schema_field({"type": "array", "items": {"type": "string"}})
class TextListField(StrictJsonField):
    """A list of texts. The model checks that the items are texts."""

    kind = list
