"""Form fields for arguments that are entered as JSON, or as text or JSON.

An empty input omits the argument. ``null`` and ``""`` are values like any other.
"""

from __future__ import annotations

import json
import unicodedata
from enum import Enum
from typing import Any

from django.core.exceptions import ValidationError
from django.forms.fields import InvalidJSONInput
from django.utils.translation import gettext_lazy as _

from django_dcron.admin.json_input import JsonFormField

_JSON_BEGINS = ("{", "[", '"', "'")
_CONSTANTS = frozenset({"true", "false", "none", "null", "nan", "undefined"})
_NEVER_IN_TEXT = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
"""The Unicode categories of invisible characters other than spaces, and of surrogates."""


class Omitted(Enum):
    """The value of an empty input."""

    OMITTED = "omitted"


OMITTED = Omitted.OMITTED


class JsonArgumentField(JsonFormField):
    def __init__(self, **options: Any):
        super().__init__(initial=OMITTED, **options)

    def prepare_value(self, value: Any) -> Any:
        if value is OMITTED:
            return ""
        if value is None:
            return "null"
        return super().prepare_value(value)

    def to_python(self, value: Any) -> Any:
        text = str(value or "").strip()
        return super().to_python(text) if text else OMITTED

    def bound_data(self, data: Any, initial: Any) -> Any:
        return OMITTED if data is None else super().bound_data(data, initial)

    def has_changed(self, initial: Any, data: Any) -> bool:
        try:
            typed = self.to_python(data)
        except ValidationError:
            return True
        if initial is OMITTED or typed is OMITTED:
            return typed is not initial
        # 1 and true are equal in Python.
        return json.dumps(initial, sort_keys=True) != json.dumps(typed, sort_keys=True)


class TextOrJsonArgumentField(JsonArgumentField):
    """A value of any type. Text that can't be mistaken for JSON needs no quotes."""

    default_error_messages = {
        "invalid": _(
            "“%(value)s” is neither plain text nor JSON. Enter a value such as Berlin, 5, true or "
            "[1, 2]. JSON text is in double quotes."
        ),
    }

    def prepare_value(self, value: Any) -> Any:
        is_json = isinstance(value, InvalidJSONInput) or not isinstance(value, str)
        return value if not is_json and is_plain_text(value) else super().prepare_value(value)

    def to_python(self, value: Any) -> Any:
        text = str(value or "").strip()
        return text if is_plain_text(text) else super().to_python(text)


def is_plain_text(text: str) -> bool:
    """Return whether ``text`` can only be meant as text.

    Not if it is or begins like JSON, is nearly a constant of JSON or Python, or would lose spaces.
    """
    try:
        json.loads(text)
    except json.JSONDecodeError:
        pass
    except (RecursionError, ValueError):
        return False
    else:
        return False
    is_quoted = text[:1] in _JSON_BEGINS or text.casefold() in _CONSTANTS
    is_readable = not any(unicodedata.category(each) in _NEVER_IN_TEXT for each in text)
    return text != "" and text == text.strip() and is_readable and not is_quoted
