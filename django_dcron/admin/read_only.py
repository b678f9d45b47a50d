"""The fields of a form for users who may view its row but not change it.

Django renders the values of such fields as text, and a duration as ``0:07:00``. This module renders
durations as the form writes them: ``7m``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from django.contrib import admin
from django.core.exceptions import FieldDoesNotExist
from django.db.models import DurationField, Field, Model

from django_dcron.admin.durations import configured_duration

HIDDEN_INPUTS = ("seen_version",)


def read_only_fieldsets(fieldsets: Any, model: type[Model]) -> list[Any]:
    """Return the fieldsets without hidden inputs, and with durations as the form writes them."""
    return [
        (title, {**options, "fields": _read_only(options["fields"], model)})
        for title, options in fieldsets
    ]


def _read_only(names: Sequence[Any], model: type[Model]) -> list[Any]:
    shown: list[Any] = []
    for name in names:
        if isinstance(name, list | tuple):  # several fields in one line
            shown.append(_read_only(name, model))
        elif name not in HIDDEN_INPUTS:
            shown.append(_duration_text(name, model) or name)
    return shown


def _duration_text(name: Any, model: type[Model]) -> Callable[[Any], str] | None:
    """Return the function that renders the duration, or None if ``name`` isn't a duration."""
    try:
        field = model._meta.get_field(name) if isinstance(name, str) else None
    except FieldDoesNotExist:
        return None
    if not isinstance(field, DurationField):
        return None
    return _renderer(field)


def _renderer(field: Field[Any, Any]) -> Callable[[Any], str]:
    @admin.display(description=field.verbose_name)
    def text(row: Any) -> str:
        return configured_duration(getattr(row, field.attname))

    text.__name__ = field.name  # Django looks up the help text by it
    return text
