"""The values of a job's or a calendar's fields as a document has them: read strictly, by the kind of the field; and what is wrong
with one."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from typing import Any

from django.db import models

from django_dcron.domain.durations import read_duration, write_duration
from django_dcron.domain.json_values import storable
from django_dcron.time_texts import parse_datetime, parse_duration

VALUE_SHOWN = 80


@dataclass(frozen=True, slots=True)
class Problem:
    """Of one job or calendar of a document."""

    job: str
    """What it is called."""
    field: str
    """Empty: of the job as a whole."""
    value: Any
    message: str

    def __str__(self) -> str:
        if not self.field:
            return f"{self.job}: {self.message}"
        return f"{self.job}: {self.field}: {shown(self.value)}: {self.message}"


def shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= VALUE_SHOWN else f"{text[: VALUE_SHOWN - 3]}..."


def written(value: Any) -> Any:
    if isinstance(value, timedelta):
        return write_duration(value)
    if isinstance(value, datetime):
        return value.astimezone(UTC).replace(tzinfo=None).isoformat() + "Z"
    return value


def read_values(
    item: Mapping[Any, Any], fields: Sequence[models.Field[Any, Any]], required: Collection[str], label: str
) -> tuple[dict[str, Any], list[Problem]]:
    """The values that can be read, and what is wrong with the others."""
    values, problems = {}, []
    for name, value in item.items():
        try:
            values[name] = _value(name, value, fields)
        except ValueError as error:
            problems.append(Problem(label, str(name), value, str(error)))
    known = {problem.field for problem in problems}
    missing = [name for name in required if name not in values and name not in known]
    return values, problems + [Problem(label, "", None, f"{name} is missing") for name in missing]


def _value(name: Any, value: Any, fields: Sequence[models.Field[Any, Any]]) -> Any:
    """Raises ``ValueError``, whose message says what is allowed."""
    of = next((each for each in fields if each.name == name), None)
    if of is None:
        close = get_close_matches(str(name), [each.name for each in fields], n=1)
        raise ValueError(f"there is no such field{f'; did you mean {close[0]}?' if close else ''}")
    if value is None:
        if not of.null:
            raise ValueError("it has to have a value")
        return None
    return read_value(of, value)


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
