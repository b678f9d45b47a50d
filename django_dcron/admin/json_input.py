"""The form field and the widget of JSON values."""

from __future__ import annotations

import json
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


_JSON_BEGINS = ("{", "[", '"', "'")
_CONSTANTS = frozenset({"true", "false", "none", "null", "nan", "undefined"})


class JsonFormField(forms.JSONField):
    example = '"text", 5, true, null, ["a", "b"]'
    """Values for the error message."""
    default_error_messages = {
        "invalid": _("This isn't JSON. Enter a value such as %(example)s."),
    }

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


class TextOrJsonFormField(JsonFormField):
    """A value of any type. Text that can't be mistaken for JSON needs no quotes."""

    default_error_messages = {
        "invalid": _(
            "“%(value)s” is neither plain text nor JSON. Enter a value such as Berlin, 5, true or "
            "[1, 2]. JSON text is in double quotes."
        ),
        "empty": _("An empty input omits the argument. Enter %(value)s under “Edit as JSON”."),
    }

    def to_python(self, value: Any) -> Any:
        text = str(value or "").strip()
        if text and is_plain_text(text):
            return text
        found = super().to_python(value)
        if found in (None, "") and text:
            raise ValidationError(
                self.error_messages["empty"], code="empty", params={"value": text}
            )
        return found


def is_plain_text(text: str) -> bool:
    """Return whether ``text`` can only be meant as text.

    Not if it is or begins like JSON, or is nearly a constant of JSON or Python.
    """
    try:
        json.loads(text)
    except json.JSONDecodeError:
        pass
    except (RecursionError, ValueError):
        return False
    else:
        return False
    is_printable = text.replace("\xa0", " ").isprintable()
    return text[:1] not in _JSON_BEGINS and text.casefold() not in _CONSTANTS and is_printable


def json_textarea(rows: int = 2) -> forms.Textarea:
    return forms.Textarea(
        {"rows": rows, "class": "vLargeTextField dcron-code", "spellcheck": "false"}
    )
