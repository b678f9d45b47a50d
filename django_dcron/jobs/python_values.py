"""Convert the Python values of a job's fields, as ``@cron`` does, before the model validates them.

Invariants:

- ``control`` accepts what ``@cron`` accepts: numbers of seconds, exception classes, tuples, tasks.
- A value of the type that the field stores stays as it is, and so do other values that JSON has.
  The model validates them, with a translated message.
- A value that can't be converted is an error of its field. Only code can pass such a value, so the
  message isn't translated.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from math import isfinite
from typing import Any

from django.core.exceptions import ValidationError
from django.core.validators import EMPTY_VALUES
from django.utils.functional import Promise

from django_dcron import targets
from django_dcron.jobs.representation import JOB_FIELDS
from django_dcron.models import Job
from django_dcron.models.job_settings import site_time_zone
from django_dcron.targets.declared_fields import (
    DURATIONS,
    EXCEPTIONS,
    FLAGS,
    INSTANTS,
    NUMBERS,
    WHOLE_NUMBERS,
    stored_value_of,
)
from django_dcron.utils.json_values import check_storable, not_json


def convert_python_values(job: Job) -> dict[str, list[ValidationError]]:
    """Convert the values of ``job`` in place. Returns the errors of the others by field."""
    errors: dict[str, list[ValidationError]] = {}
    for name, convert in _CONVERTERS.items():
        value = getattr(job, JOB_FIELDS[name].attname)
        try:
            converted = convert(name, value)
        except (TypeError, ValueError) as error:
            errors[name] = [ValidationError(str(error), code="invalid")]
        else:
            if converted is not value:
                setattr(job, JOB_FIELDS[name].attname, converted)
    for name, field in JOB_FIELDS.items():
        value = getattr(job, field.attname)
        if name not in errors and _contains_nul(value):
            text = f"{name}={value!r:.100} contains a NUL character. Remove it."
            errors[name] = [ValidationError(text, code="nul")]
    return errors


def _contains_nul(value: Any) -> bool:
    """Return whether a text, or a list with such a text, can't be stored in PostgreSQL."""
    texts = value if isinstance(value, list) else [value]
    return any(isinstance(text, str) and "\0" in text for text in texts)


def as_json(name: str, value: Any) -> Any:
    """Return ``value`` as it is read from JSON: a tuple becomes a list.

    Raises ``TypeError``, which names the part and the remedy, unless JSON and every database can
    store the value. The message omits the value of a confidential field, which may have secrets.
    """
    if problem := not_json(value):
        raise TypeError(f"{name}{problem}")
    stored = json.loads(json.dumps(value))
    try:
        return check_storable(stored)
    except ValueError as error:
        shown = name if JOB_FIELDS[name].confidential else f"{name}={value!r:.100}"
        raise TypeError(f"{shown} can't be stored: {error}.") from None


def _target(name: str, value: Any) -> Any:
    if value is None or isinstance(value, str):
        return value
    if key := targets.key_of(value):
        return key
    module, qualified = (getattr(value, each, "") for each in ("__module__", "__qualname__"))
    if module and qualified and callable(value):
        return f"{module}.{qualified}"  # the model names the reason why it isn't a target
    raise TypeError(
        f"{name}={value!r:.100} isn't a target. Use a task, a function with @cron, or text such as "
        '"shop.tasks.import_orders".'
    )


def _schedule(name: str, value: Any) -> Any:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, Promise):
        return str(value)
    raise TypeError(f"{name}={value!r:.100} isn't text. {targets.schedule_advice(value)}")


def _time_zone(name: str, value: Any) -> Any:
    return site_time_zone() if value is None else value


def _duration_or_instant(name: str, value: Any) -> Any:
    """Convert other values than text, which the model parses."""
    is_text = isinstance(value, str) and value != ""
    return value if value is None or is_text else stored_value_of(name, value)


def _text(name: str, value: Any) -> Any:
    """Refuse None, which the model takes for an empty text and then can't store."""
    if value is None:
        raise TypeError(f'{name}=None isn\'t text. Use "" for an empty text.')
    return value


def _flag(name: str, value: Any) -> Any:
    """Convert 1, 0 and texts as the model does, so that comparisons see a bool."""
    try:
        return JOB_FIELDS[name].model_field.to_python(value)
    except ValidationError:
        return value


def _whole_number(name: str, value: Any) -> Any:
    """Refuse bools, fractions and empty values, which the model converts or can't store."""
    is_fraction = isinstance(value, float) and not value.is_integer()
    is_empty = value is not None and value in EMPTY_VALUES
    is_refused = isinstance(value, bool) or is_fraction or is_empty
    return stored_value_of(name, value) if is_refused else value


def _number(name: str, value: Any) -> Any:
    if isinstance(value, bool) or (isinstance(value, float) and not isfinite(value)):
        raise TypeError(f"{name}={value!r} isn't a number. Use a number such as 1.5.")
    return value


def _name_of_row(name: str, value: Any) -> Any:
    if value is None or isinstance(value, str):
        return value or None
    raise TypeError(f"{name}={value!r:.100} isn't the name of a {name}. Use text or None.")


def _list(name: str, value: Any) -> Any:
    if not isinstance(value, list | str | bytes | Mapping) and isinstance(value, Iterable):
        value = list(value)
    return as_json(name, value)


def _mapping(name: str, value: Any) -> Any:
    if isinstance(value, Mapping) and not isinstance(value, dict):
        value = dict(value)
    return as_json(name, value)


def _names(name: str, value: Any) -> Any:
    return _unless_json(name, [value] if isinstance(value, str) else value)


def _unless_json(name: str, value: Any) -> Any:
    """Convert a value that JSON doesn't have. Other values are for the model to validate."""
    return as_json(name, stored_value_of(name, value) if not_json(value) else value)


_CONVERTERS: Mapping[str, Callable[[str, Any], Any]] = {
    "target": _target,
    "args": _list,
    "kwargs": _mapping,
    "schedule": _schedule,
    "timezone": _time_zone,
    **dict.fromkeys(sorted(INSTANTS), _duration_or_instant),
    "after": _mapping,
    **dict.fromkeys(sorted(DURATIONS), _duration_or_instant),
    **dict.fromkeys(sorted(EXCEPTIONS), _names),
    "tags": _names,
    "alerts": _unless_json,
    **dict.fromkeys(("description", "pause_reason", "queue"), _text),
    **dict.fromkeys(sorted(FLAGS), _flag),
    **dict.fromkeys(sorted(WHOLE_NUMBERS), _whole_number),
    **dict.fromkeys(sorted(NUMBERS), _number),
    **dict.fromkeys(("calendar", "limit"), _name_of_row),
}
"""The fields for which ``@cron`` accepts other values than the model, or the model accepts values
that it can't store.
"""
