"""Base classes of the REST API's serializers. They refuse unknown fields: most are typos."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from django.core.exceptions import ValidationError
from django.db import models
from django.http import QueryDict
from django.utils import translation
from django.utils.translation import gettext as _
from rest_framework import serializers
from rest_framework.exceptions import ErrorDetail

from django_dcron.contrib.rest import fields
from django_dcron.contrib.rest.problems import by_fields
from django_dcron.jobs.representation import FIELDS, unknown_field

if TYPE_CHECKING:
    AnySerializer = serializers.Serializer[Any]
    AnyModelSerializer = serializers.ModelSerializer[Any]
else:
    AnySerializer, AnyModelSerializer = serializers.Serializer, serializers.ModelSerializer


class StrictSerializer(AnySerializer):
    """A serializer that refuses unknown fields and repeated parameters.

    It reports the errors of all fields at once.
    """

    def to_internal_value(self, data: Any) -> Any:
        if isinstance(data, Mapping):
            unknown = [name for name in data if name not in self.fields]
            suggest = len(unknown) <= 5  # comparing many long names would take long
            errors: dict[Any, str] = {
                name: self._unknown_field_error(name, suggest=suggest) for name in unknown
            }
            if isinstance(data, QueryDict):  # the parameters of a URL, or a form
                repeated = [name for name, values in data.lists() if len(values) > 1]
                errors |= {name: _("The parameter is given more than once.") for name in repeated}
                # REST framework drops the empty values of a QueryDict instead of refusing them.
                data = data.dict()
            if errors:
                raise serializers.ValidationError(errors | self._other_errors(data, errors))
        return super().to_internal_value(data)

    def _other_errors(self, data: Mapping[Any, Any], errors: Mapping[Any, Any]) -> Any:
        """Return the errors of the fields that aren't in ``errors``, for the same response."""
        try:
            super().to_internal_value({k: v for k, v in data.items() if k not in errors})
        except serializers.ValidationError as error:
            return error.detail
        return {}

    def _unknown_field_error(self, name: Any, *, suggest: bool) -> ErrorDetail:
        error = unknown_field(str(name), self.fields, suggest=suggest)
        return ErrorDetail(error.translate(translation), error.code)


class EmptySerializer(StrictSerializer):
    """A body without fields."""


class StrictModelSerializer(StrictSerializer, AnyModelSerializer):
    """A serializer of a model: strict about JSON types. The model validates the values."""

    serializer_field_mapping = {
        **serializers.ModelSerializer.serializer_field_mapping,
        models.CharField: fields.StrictCharField,
        models.TextField: fields.StrictCharField,
        models.BooleanField: fields.StrictBooleanField,
        models.FloatField: fields.StrictFloatField,
        models.IntegerField: fields.StrictIntegerField,
        models.BigIntegerField: fields.StrictIntegerField,
        models.SmallIntegerField: fields.StrictIntegerField,
        models.PositiveIntegerField: fields.StrictIntegerField,
        models.PositiveSmallIntegerField: fields.StrictIntegerField,
        models.PositiveBigIntegerField: fields.StrictIntegerField,
        models.DurationField: fields.DurationTextField,
        models.DateTimeField: fields.UtcTimeField,
        models.JSONField: fields.StrictJsonField,
    }

    serializer_choice_field = fields.StrictChoiceField
    serializer_related_field = fields.NameField

    def get_fields(self) -> Any:
        found = super().get_fields()
        for field in found.values():
            fields.leave_rules_to_model(field)
        return found

    def get_unique_together_validators(self) -> list[Any]:
        """Return no validators, because the model checks its constraints."""
        return []

    def build_standard_field(self, field_name: str, model_field: Any) -> Any:
        """Drop the arguments that the fields of this API don't accept, such as ``encoder``.

        A missing value gets the model field's own text for an empty value, if it has one.
        """
        field_class, options = super().build_standard_field(field_name, model_field)
        if issubclass(
            field_class, fields.DurationTextField | fields.UtcTimeField | fields.StrictJsonField
        ):
            kept = ("read_only", "required", "allow_null", "default", "help_text", "label")
            options = {name: value for name, value in options.items() if name in kept}
        if text := model_field.deconstruct()[3].get("error_messages", {}).get("blank"):
            options["error_messages"] = {"blank": text, "required": text}
        if issubclass(field_class, fields.StrictCharField):
            options["trim_whitespace"] = False  # so that a client can send back what it read
        return field_class, options


class DocumentSerializer(StrictModelSerializer):
    """A job, calendar or limit, represented as in exports (``jobs.representation``).

    If a field has the wrong type, the response also has the model's errors about the other fields.
    """

    def to_internal_value(self, data: Any) -> Any:
        values = None
        errors = self.other_errors(data)
        try:
            values = super().to_internal_value(data)
        except serializers.ValidationError as error:
            detail: Any = error.detail
            errors |= detail
        if errors:
            raise serializers.ValidationError(errors | self._model_errors(data, errors))
        return values

    def other_errors(self, data: Any) -> dict[str, Any]:
        """Return errors by field that don't concern a value's type."""
        return {}

    def _model_errors(self, data: Any, errors: Mapping[str, Any]) -> Any:
        """Return the model's errors about the fields that aren't in ``errors``.

        Checks that read a job's calendar or limit are omitted, because each would need a query.
        """
        if not isinstance(data, Mapping):
            return {}
        model: Any = self.Meta.model
        blank = model()
        row = copy.copy(self.instance or blank)
        unchecked = {*errors, *(name for name, field in self.fields.items() if field.read_only)}
        field: Any
        for field in self._writable_fields:
            name, source = field.field_name, field.source
            is_related = isinstance(field, fields.NameField)
            if name not in data and not self.partial:
                setattr(row, source, getattr(blank, source))
            elif name in data and name not in errors and not is_related:
                setattr(row, source, field.run_validation(data[name]))
            if is_related and (name in data or getattr(row, f"{source}_id")):
                unchecked.add(name)
        try:
            row.clean_fields(exclude=unchecked)
        except ValidationError as error:
            return by_fields(error).detail
        return {}

    def set_validated_values(self) -> None:
        """Set the values on the instance. Unless ``partial``, omitted fields get their defaults."""
        row: Any = self.instance
        blank = type(row)()
        written: Any = () if self.partial else self._writable_fields
        omitted = {field.source: getattr(blank, field.source) for field in written}
        for name, value in (omitted | self.validated_data).items():
            setattr(row, name, value)

    def to_representation(self, instance: Any) -> dict[str, Any]:
        represented = FIELDS[type(instance)].items()
        return {name: field.json_of(instance) for name, field in represented if name in self.fields}
