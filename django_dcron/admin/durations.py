"""Durations that people configure, such as 90s, 5m, 1h30m, 2d, or HH:MM:SS."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

from django import forms
from django.core.exceptions import ValidationError
from django.utils.translation import gettext_lazy as _

from django_dcron.admin.display import EMPTY
from django_dcron.models.job_fields import MAX_DURATION
from django_dcron.utils import durations
from django_dcron.utils.time_parsing import parse_duration


def parse_storable_duration(text: str) -> timedelta | None:
    """Return None if ``text`` isn't a duration or is too long to be stored."""
    try:
        duration = durations.parse_duration_text(text)
        return parse_duration(text) if duration is None else duration
    except OverflowError:
        return None


def configured_duration(value: timedelta | None) -> str:
    """Write the duration as the form does. Measured durations are written by ``admin.display``."""
    return EMPTY if value is None else durations.write_duration(value, " ")


class DurationFormField(forms.DurationField):
    default_validators = [MAX_DURATION]
    default_error_messages = {
        "invalid": _(
            "“%(value)s” isn't a duration. Enter a value such as 90s, 5m, 1h 30m, 2d or HH:MM:SS."
        ),
        "without_unit": _(
            "“%(value)s” has no unit. Enter %(value)ss for seconds, %(value)sm for minutes, "
            "%(value)sh for hours or %(value)sd for days."
        ),
    }

    def prepare_value(self, value: Any) -> Any:
        return durations.write_duration(value, " ") if isinstance(value, timedelta) else value

    def to_python(self, value: Any) -> timedelta | None:
        if value in self.empty_values:
            return None
        text = str(value).strip()
        if re.fullmatch(r"[-+\d.,\s]+", text) and not re.fullmatch(r"0+(\.0+)?", text):
            code = "without_unit" if re.fullmatch(r"\d+(\.\d+)?", text) else "invalid"
            raise ValidationError(self.error_messages[code], code=code, params={"value": text[:80]})
        duration = value if isinstance(value, timedelta) else parse_storable_duration(text)
        if duration is None:
            raise ValidationError(
                self.error_messages["invalid"], code="invalid", params={"value": str(value)[:80]}
            )
        return duration
