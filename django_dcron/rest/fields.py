"""How a value is written as JSON, and read: each type by its own JSON type and no other, and in one format whatever the project's
``REST_FRAMEWORK`` settings are.

What a value may be beyond its type is for the model to say, in ``clean_fields``: the same words at the same field as in the
admin. So a field's validators are run only for what no column takes (NUL, half a character); the others document it.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

from django.core.validators import ProhibitNullCharactersValidator, RegexValidator
from django.db.models import Q
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers
from rest_framework.validators import ProhibitSurrogateCharactersValidator

from django_dcron.domain.json_values import storable
from django_dcron.domain.timetable import BEGIN, END
from django_dcron.models.job import CALENDAR
from django_dcron.models.job_validation import TYPE_NAMES
from django_dcron.time_texts import parse_datetime

UNSTORABLE = (ProhibitNullCharactersValidator, ProhibitSurrogateCharactersValidator)
MOST_SECONDS = int(CALENDAR.limit_value.total_seconds())


def leave_rules_to_model(field: Any) -> None:
    """Its type is checked here, its rules are the model's."""
    storable_alone = [each for each in field.validators if isinstance(each, UNSTORABLE)]
    # A pattern of Python's is none of JSON Schema's.
    field.validators = [each for each in field.validators if not isinstance(each, RegexValidator)]

    def run(value: Any) -> None:
        for validator in storable_alone:
            validator(value)

    field.run_validators = run


class Text(serializers.CharField):
    def to_internal_value(self, data: Any) -> str:
        if not isinstance(data, str):
            self.fail("invalid")
        return super().to_internal_value(data)


class WholeNumber(serializers.IntegerField):
    def to_internal_value(self, data: Any) -> int:
        if isinstance(data, bool) or not isinstance(data, int):
            self.fail("invalid")
        return data


class Number(serializers.FloatField):
    def to_internal_value(self, data: Any) -> float:
        if isinstance(data, bool) or not isinstance(data, int | float):
            self.fail("invalid")
        try:
            return float(data)
        except OverflowError:
            self.fail("invalid")


class YesOrNo(serializers.BooleanField):
    default_error_messages = {"invalid": gettext_lazy("Use true or false.")}

    def to_internal_value(self, data: Any) -> bool:
        if not isinstance(data, bool):
            self.fail("invalid")
        return data


@extend_schema_field({"type": "number", "minimum": 0, "maximum": MOST_SECONDS})
class Seconds(serializers.Field[timedelta, Any, float, Any]):
    """A duration, as a number of seconds."""

    default_error_messages = {
        "invalid": gettext_lazy("Use a number of seconds, such as 90."),
        "too_large": CALENDAR.message,
    }

    def to_internal_value(self, data: Any) -> timedelta:
        if isinstance(data, bool) or not isinstance(data, int | float) or data != data:
            self.fail("invalid")
        if abs(data) > MOST_SECONDS:
            self.fail("too_large")
        return timedelta(seconds=data)

    def to_representation(self, value: timedelta) -> float:
        seconds = value.total_seconds()
        return int(seconds) if seconds.is_integer() else seconds


@extend_schema_field({"type": "string", "format": "date-time"})
class Instant(serializers.Field[datetime, Any, str, Any]):
    """RFC 3339, with an offset; UTC when it is written by us."""

    default_error_messages = {
        "invalid": gettext_lazy("Use a time such as 2026-12-01T09:00:00Z."),
        "naive": gettext_lazy("Say the time zone: 2026-12-01T09:00:00Z or 2026-12-01T09:00:00+01:00."),
        "out_of_range": gettext_lazy("Use a time in the years 1970 to 2199."),
    }

    def to_internal_value(self, data: Any) -> datetime:
        try:
            instant = parse_datetime(data) if isinstance(data, str) else None
        except ValueError:
            instant = None
        if instant is None:
            self.fail("invalid")
        if instant.utcoffset() is None:
            self.fail("naive")
        try:
            instant = instant.astimezone(UTC)
        except OverflowError:
            self.fail("out_of_range")
        if not BEGIN <= instant < END:
            self.fail("out_of_range")
        return instant

    def to_representation(self, value: datetime) -> str:
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z")


@extend_schema_field({"type": "string", "format": "date-time"})
class LocalInstant(Instant):
    """With the offset of its own zone."""

    def to_representation(self, value: datetime) -> str:
        return value.isoformat()


class Name(serializers.PrimaryKeyRelatedField[Any]):
    """Of a row that is known by its name."""

    default_error_messages = {
        "does_not_exist": gettext_lazy("There is no “{pk_value}”."),
        "incorrect_type": gettext_lazy("Not a valid string."),
    }

    def get_queryset(self) -> Any:
        """The visible rows, and the one that is named already."""
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
            storable(data)
        except ValueError:
            self.fail("does_not_exist", pk_value=ascii(data))
        return super().to_internal_value(data)


@extend_schema_field({})
class JsonValue(serializers.JSONField):
    """JSON that every database can store."""

    kind: type | None = None

    def to_internal_value(self, data: Any) -> Any:
        try:
            storable(data)
        except (ValueError, RecursionError) as error:
            raise serializers.ValidationError(
                _("It cannot be stored: %(problem)s.") % {"problem": error}
            ) from None
        if self.kind is not None and not isinstance(data, self.kind):
            told = {"value": json.dumps(data), "allowed": TYPE_NAMES[self.kind]}
            raise serializers.ValidationError(_("%(value)s is not %(allowed)s.") % told)
        return data


@extend_schema_field({"type": "array", "items": {}})
class JsonList(JsonValue):
    kind = list


@extend_schema_field({"type": "object", "additionalProperties": {}})
class JsonObject(JsonValue):
    kind = dict


@extend_schema_field({"type": "array", "items": {"type": "string"}})
class JsonTexts(JsonValue):
    """A list of texts; that they are texts is for the model to say."""

    kind = list
