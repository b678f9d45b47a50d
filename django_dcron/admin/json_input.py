"""The form field and the widget of JSON values."""

from __future__ import annotations

from typing import Any

from django import forms
from django.core.exceptions import ValidationError
from django.forms.fields import InvalidJSONInput
from django.utils.translation import gettext_lazy as _

from django_dcron.utils.json_values import check_storable

_PARSE_ERRORS = (RecursionError, ValueError)
"""Errors for values that no database stores, and for JSON that Python can't parse.

Python refuses JSON with too many levels, and numbers with thousands of digits.
"""


class JsonFormField(forms.JSONField):
    default_error_messages = {
        "invalid": _("This isn't JSON. Enter a value such as %(example)s."),
    }

    def __init__(self, *, example: str = '"text", 5, true, null, ["a", "b"]', **options: Any):
        super().__init__(**options)
        self.example = example
        """Values for the error message."""

    def prepare_value(self, value: Any) -> Any:
        return "" if value is None else super().prepare_value(value)

    def to_python(self, value: Any) -> Any:
        try:
            return check_storable(super().to_python(value))
        except (*_PARSE_ERRORS, ValidationError):
            params = {"value": str(value)[:80], "example": self.example}
            raise ValidationError(
                self.error_messages["invalid"], code="invalid", params=params
            ) from None

    def bound_data(self, data: Any, initial: Any) -> Any:
        try:
            return check_storable(super().bound_data(data, initial))
        except _PARSE_ERRORS:
            return InvalidJSONInput(data)


def json_textarea(rows: int = 2) -> forms.Textarea:
    return forms.Textarea(
        {"rows": rows, "class": "vLargeTextField dcron-code", "spellcheck": "false"}
    )
