"""What all our serializers have in common: a name that nobody knows is refused, as it may be a slip of the pen."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from django.db import models
from django.http import QueryDict
from django.utils.translation import gettext as _
from rest_framework import serializers

from django_dcron.rest import fields

if TYPE_CHECKING:
    AnySerializer = serializers.Serializer[Any]
    AnyModelSerializer = serializers.ModelSerializer[Any]
else:
    AnySerializer, AnyModelSerializer = serializers.Serializer, serializers.ModelSerializer


class Strict(AnySerializer):
    def to_internal_value(self, data: Any) -> Any:
        if isinstance(data, Mapping):
            errors = {name: _("There is no such field.") for name in data if name not in self.fields}
            if isinstance(data, QueryDict):
                twice = [name for name, values in data.lists() if len(values) > 1]
                errors |= {name: _("It is given more than once.") for name in twice}
                data = data.dict()  # of a form REST framework would pass over what is empty
            if errors:
                raise serializers.ValidationError(errors)
        return super().to_internal_value(data)


class OfModel(Strict, AnyModelSerializer):
    """A row in strict JSON."""

    serializer_field_mapping = {
        **serializers.ModelSerializer.serializer_field_mapping,
        models.CharField: fields.Text,
        models.TextField: fields.Text,
        models.BooleanField: fields.YesOrNo,
        models.FloatField: fields.Number,
        models.IntegerField: fields.WholeNumber,
        models.BigIntegerField: fields.WholeNumber,
        models.SmallIntegerField: fields.WholeNumber,
        models.PositiveIntegerField: fields.WholeNumber,
        models.PositiveSmallIntegerField: fields.WholeNumber,
        models.PositiveBigIntegerField: fields.WholeNumber,
        models.DurationField: fields.Seconds,
        models.DateTimeField: fields.Instant,
        models.JSONField: fields.JsonValue,
    }

    serializer_related_field = fields.Name

    def get_fields(self) -> Any:
        found = super().get_fields()
        for field in found.values():
            fields.leave_rules_to_model(field)
        return found

    def get_unique_together_validators(self) -> list[Any]:
        """The model's constraints are the model's to check."""
        return []

    def build_standard_field(self, field_name: str, model_field: Any) -> Any:
        """Without REST framework's arguments for its own fields (``max_digits``, ``encoder``, a widget)."""
        field_class, options = super().build_standard_field(field_name, model_field)
        if issubclass(field_class, fields.Seconds | fields.Instant | fields.JsonValue):
            kept = ("read_only", "required", "allow_null", "default", "help_text", "label")
            options = {name: value for name, value in options.items() if name in kept}
        return field_class, options
