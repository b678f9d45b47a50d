"""The values of a job's fields as a document has them: read strictly, by the kind of the field."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from django.db import models
from django.utils.dateparse import parse_datetime, parse_duration

from django_dcron.domain.durations import read_duration
from django_dcron.domain.json_values import storable


def read_value(field: models.Field[Any, Any], value: Any) -> Any:
    """Raises ``ValueError``, whose message says what is allowed."""
    for kind, reader in READERS.items():
        if isinstance(field, kind):
            return reader(value)
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("allowed: text, in quotes")
    storable(value)
    return value


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError("allowed: true or false")
    return value


def _whole(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError("allowed: a whole number")
    return value


def _number(value: Any) -> float:
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or value != value
        or abs(value) == float("inf")
    ):
        raise ValueError("allowed: a number")
    return float(value)


def _duration(value: Any) -> timedelta:
    found = None
    if isinstance(value, str):
        try:
            found = read_duration(value)
            found = parse_duration(value) if found is None else found
        except OverflowError:
            found = None
    if found is None:
        raise ValueError('allowed: a duration such as "90s", "1h30m" or "2d"')
    return found


def _moment(value: Any) -> datetime:
    try:
        found = value if isinstance(value, datetime) else parse_datetime(value)
    except (TypeError, ValueError):
        found = None
    if found is None:
        raise ValueError("allowed: a time such as 2026-12-01T09:00:00Z")
    if found.tzinfo is None:
        raise ValueError("it needs its offset, such as 2026-12-01T09:00:00Z")
    try:
        return found.astimezone(UTC)
    except OverflowError:
        raise ValueError("allowed: a time in the years 1970 to 2199") from None


def _json(value: Any) -> Any:
    """What YAML has besides JSON is refused: sets, dates, keys that are no text."""
    try:
        text = json.dumps(value, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ValueError(f"allowed: what JSON can hold ({error})") from None
    if json.loads(text) != value:
        raise ValueError("allowed: what JSON can hold (keys are texts)")
    storable(value)
    return value


READERS: dict[type[models.Field[Any, Any]], Callable[[Any], Any]] = {
    models.BooleanField: _flag,
    models.FloatField: _number,
    models.IntegerField: _whole,
    models.DurationField: _duration,
    models.DateTimeField: _moment,
    models.JSONField: _json,
    models.CharField: _text,
    models.TextField: _text,
    models.ForeignKey: _text,
}
