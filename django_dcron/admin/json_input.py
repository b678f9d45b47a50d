"""The form field and the widget of JSON values."""

from __future__ import annotations

from typing import Any

from django import forms
from django.core.exceptions import ValidationError
from django.forms.fields import InvalidJSONInput

from django_dcron.utils.json_values import check_storable

_PARSE_ERRORS = (RecursionError, ValueError)
"""Errors for values that no database stores, and for JSON that Python can't parse.

Python refuses JSON with too many levels, and numbers with thousands of digits.
"""


class JsonFormField(forms.JSONField):
    def prepare_value(self, value: Any) -> Any:
        return "" if value is None else super().prepare_value(value)

    def to_python(self, value: Any) -> Any:
        try:
            return check_storable(super().to_python(value))
        except _PARSE_ERRORS:
            raise ValidationError(self.error_messages["invalid"], code="invalid") from None

    def bound_data(self, data: Any, initial: Any) -> Any:
        try:
            return check_storable(super().bound_data(data, initial))
        except _PARSE_ERRORS:
            return InvalidJSONInput(data)


def json_textarea(rows: int = 2) -> forms.Textarea:
    return forms.Textarea(
        {"rows": rows, "class": "vLargeTextField dcron-code", "spellcheck": "false"}
    )
