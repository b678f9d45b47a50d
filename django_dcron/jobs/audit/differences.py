"""Find the changed fields of a job, a calendar or a limit."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain, zip_longest
from typing import Any

from django.db.models import Model

from django_dcron.jobs.representation import (
    FIELDS,
    DocumentField,
    ValueFormat,
    text_of,
    text_of_time,
    to_json,
)
from django_dcron.targets import MASK
from django_dcron.utils.bounded_text import with_ellipsis

LONGEST = 300
"""The maximum number of characters of a value in the log. A description may have thousands."""
CONTEXT = 20
"""The number of equal characters that a long value keeps before its first difference. Lists show
only the first 40 characters of a value.
"""

Values = dict[str, Any]

_BACKFILL_VALUES = ("runs", "first", "last")
_POSITIONS = {
    name: position
    for position, name in enumerate(
        dict.fromkeys(chain(chain.from_iterable(FIELDS.values()), _BACKFILL_VALUES))
    )
}
OTHER_TIMES = frozenset({"first", "last", "until"})
"""The values of an entry that are times, but not fields of its object."""
_TIMES = OTHER_TIMES | {
    name
    for fields in FIELDS.values()
    for name, field in fields.items()
    if field.format is ValueFormat.TIME
}


@dataclass(frozen=True, slots=True)
class FieldChange:
    field: str
    old: Any
    new: Any
    """JSON values; long ones are truncated."""


def values_of(row: Model) -> Values:
    """Return the values of ``row`` that the log shows. Empty unless it is a job, calendar or limit.

    These are the writable ones, and where a job was imported from.
    """
    return {
        name: field.value_of(row)
        for name, field in FIELDS.get(type(row), {}).items()
        if field.writable or name == "import_source"
    }


def differences(model: type[Model], before: Values, after: Values) -> list[FieldChange]:
    """Return the changed fields, with secrets redacted: everyone who sees the job sees the log."""
    fields = FIELDS.get(model, {})
    return [
        _change(fields[name], before[name], value)
        for name, value in after.items()
        if name in before and not fields[name].is_same(before[name], value)
    ]


def _change(field: DocumentField, before: Any, after: Any) -> FieldChange:
    """Return the change of one field. Long values begin shortly before their first difference."""
    old, new = map(_text_or_value, field.redacted_change(to_json(before), to_json(after)))
    start = 0
    if isinstance(old, str) and isinstance(new, str) and max(len(old), len(new)) > LONGEST:
        pairs = enumerate(zip_longest(old, new))
        first = next((position for position, (one, other) in pairs if one != other), 0)
        start = max(first - CONTEXT, 0)
    return FieldChange(field.name, old=_shortened(old, start), new=_shortened(new, start))


def public_value(model: type[Model], name: str, value: Any) -> Any:
    """Return one value as the log stores it."""
    return stored_value(FIELDS[model][name], value)


def is_whole(field: DocumentField, logged: Any) -> bool:
    """Return whether a value of the log is surely the whole value, neither shortened nor masked."""
    if not isinstance(logged, str):
        return True
    is_shortened = logged.startswith("…") or (len(logged) == LONGEST and logged.endswith("…"))
    return not is_shortened and not (field.confidential and MASK in logged)


def whole_value(field: DocumentField, logged: Any) -> Any:
    """Return a value of the log as a value of the row.

    Raises ``ValueError`` if the log doesn't have the whole value, or if the field can't read it.
    """
    if not is_whole(field, logged):
        raise ValueError(f"{field.name}: the log doesn't have the whole value")
    if field.format is ValueFormat.JSON and isinstance(logged, str):
        logged = json.loads(logged)  # the log has lists and objects as text
    return field.read(logged)


def shown_changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    """Return the changed values of an entry in one line, such as ``timeout: 5m -> 10m``.

    Times are in the site's time zone.
    """
    return ", ".join(
        f"{name}: {_shown_value(name, before[name])} -> {_shown_value(name, after[name])}"
        if name in before and name in after
        else f"{name}: {_shown_value(name, {**before, **after}[name])}"
        for name in names_of_changes(before, after)
    )


def _shown_value(name: str, json_value: Any) -> str:
    return text_of_time(json_value) if name in _TIMES else text_of(json_value)


def names_of_changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Return the fields in the order of the model, then others.

    Databases store JSON keys in another order.
    """
    return sorted({**before, **after}, key=lambda name: _POSITIONS.get(name, len(_POSITIONS)))


def stored_value(field: DocumentField, value: Any) -> Any:
    """Return the value as JSON without secrets, with lists and objects as text.

    The text may be shortened. A value that this function has returned stays the same.
    """
    json_value = to_json(value)
    if not isinstance(json_value, str):
        json_value = field.redacted(json_value)
    return _shortened(_text_or_value(json_value))


def _text_or_value(json_value: Any) -> Any:
    """Return lists and objects as text; other JSON values unchanged."""
    if json_value is None or isinstance(json_value, str | bool | int | float):
        return json_value
    return json.dumps(json_value, ensure_ascii=False)


def _shortened(json_value: Any, start: int = 0) -> Any:
    """Return a text from ``start`` on, at most ``LONGEST`` characters; other values unchanged."""
    if not isinstance(json_value, str):
        return json_value
    return with_ellipsis(f"…{json_value[start:]}" if start else json_value, LONGEST)
