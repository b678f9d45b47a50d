"""Build the form field for a parameter of a target."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from django import forms
from django.core.exceptions import ValidationError
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from django_dcron.admin.jobs.argument_json import JsonArgumentField, TextOrJsonArgumentField
from django_dcron.targets.parameters import InputKind, TargetParameter

EMPTY_CHOICE = ""
DECIMAL = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)", re.ASCII)
SPELLINGS_OF_NONE = ("null", "None")


class _ChoiceFormField(forms.TypedChoiceField):
    """A choice of values. The page contains the JSON of each value."""

    def __init__(self, choices: Sequence[tuple[Any, Any]], **options: Any):
        pairs = [(json.dumps(value), label) for value, label in choices]
        super().__init__(
            choices=[(EMPTY_CHOICE, "---------"), *pairs],
            coerce=json.loads,
            empty_value=None,
            **options,
        )


class _DecimalTextField(forms.CharField):
    """A decimal number. Its value is text, because a JSON number would be rounded."""

    default_error_messages = {
        "invalid": gettext_lazy(
            "“%(value)s” isn't a decimal number. Enter digits with a point, such as 12.50."
        ),
    }

    def to_python(self, value: Any) -> str:
        typed = super().to_python(value) or ""
        if not typed:
            return ""
        if (text := decimal_text(typed)) is None:
            params = {"value": typed[:80]}
            raise ValidationError(self.error_messages["invalid"], code="invalid", params=params)
        return text


class _TextOrNoneField(forms.CharField):
    """Text for a parameter that accepts ``None``. Refuses text that may be meant as ``None``."""

    default_error_messages = {
        "ambiguous": gettext_lazy(
            "“%(value)s” may mean None or the text. For None, leave the input empty. For the text, "
            "use “Edit as JSON”."
        ),
        "ambiguous_with_default": gettext_lazy(
            "“%(value)s” may mean None or the text. For either, use “Edit as JSON”."
        ),
    }

    def __init__(self, parameter: TargetParameter, **options: Any):
        super().__init__(**options)
        self.parameter = parameter

    def validate(self, value: Any) -> None:
        super().validate(value)
        if is_ambiguous(self.parameter, value):
            code = "ambiguous" if self.parameter.omitted_is_none else "ambiguous_with_default"
            raise ValidationError(self.error_messages[code], code=code, params={"value": value})


def decimal_text(text: str) -> str | None:
    """Return the decimal number without spaces, such as ``12.50``, or None if it isn't one."""
    found = DECIMAL.fullmatch(text.strip())
    return found[0].removeprefix("+") if found else None


def is_ambiguous(parameter: TargetParameter, text: str) -> bool:
    """Return whether ``text`` may be meant as ``None``, which the parameter accepts."""
    return parameter.accepts_none and text.strip() in SPELLINGS_OF_NONE


def build_field(parameter: TargetParameter, kind: InputKind) -> forms.Field:
    """Build the field for values of the parameter. ``kind`` may differ from the parameter's."""
    help_text = _help_text(parameter)
    options: dict[str, Any] = {
        "label": parameter.name,
        "required": False,
        "help_text": help_text,
    }
    text_attributes = {"class": "vTextField", "autocomplete": "off"}
    match kind:
        case InputKind.INTEGER:
            return forms.IntegerField(**options)
        case InputKind.NUMBER:
            return forms.FloatField(**options)
        case InputKind.DECIMAL:
            decimal = forms.TextInput({**text_attributes, "inputmode": "decimal"})
            return _DecimalTextField(widget=decimal, **options)
        case InputKind.BOOLEAN:
            return _ChoiceFormField([(True, _("Yes")), (False, _("No"))], **options)
        case InputKind.CHOICE:
            return _ChoiceFormField(parameter.choices, **options)
        case InputKind.DATE:
            return forms.DateField(widget=forms.DateInput({"type": "date"}, "%Y-%m-%d"), **options)
        case InputKind.DATETIME:
            widget = forms.DateTimeInput({"type": "datetime-local", "step": 1}, "%Y-%m-%dT%H:%M:%S")
            return forms.DateTimeField(widget=widget, **options)
        case InputKind.TEXT:
            text = forms.TextInput(text_attributes)
            return _TextOrNoneField(parameter, strip=False, widget=text, **options)
    code_attributes = {**text_attributes, "class": "vTextField dcron-code", "spellcheck": "false"}
    allowed = (
        _("Text, or JSON such as 5, true or [1, 2].")
        if kind == InputKind.ANY
        else _("JSON, such as [1, 2].")
    )
    if parameter.is_named:
        options["help_text"] = f"{help_text}. {allowed}"
    field_class = TextOrJsonArgumentField if kind == InputKind.ANY else JsonArgumentField
    return field_class(widget=forms.TextInput(code_attributes), **options)


def _help_text(parameter: TargetParameter) -> str:
    if not parameter.is_named:
        return _(
            "The target has no named parameter for this argument. To remove the argument, "
            "clear the input."
        )
    if parameter.omitted_is_none:
        return _("Empty: None")
    if parameter.is_required:
        return _("Required")
    if parameter.default is None:
        return _("Optional")
    shown = json.dumps(parameter.default, ensure_ascii=False)
    return _("Default: %(value)s") % {"value": shown}
