"""JSON values: whether a database can store them, which are equal, and duplicate keys."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Hashable, Iterable
from datetime import date, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

MAX_DEPTH = 30
"""The maximum nesting of lists and objects. MariaDB allows 32."""


def check_storable(value: Any) -> Any:
    """Return ``value`` if every database can store it.

    Raises ``ValueError`` for NaN, infinity, NUL, lone surrogates, and values nested too deep.
    """
    _check_depth(value)
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    text.encode()
    if r"\u0000" in text.replace(r"\\", ""):
        raise ValueError("it contains a NUL character")
    return value


def not_json(value: Any) -> str:
    """Return which part of ``value`` JSON can't represent and what to use; empty if there is none.

    The part is named by its path and its type, such as ``["since"] has the type date``. Its value
    is omitted, because it may be a secret. Keys must be text, because JSON would turn other keys
    into text.
    """
    try:
        return _first_not_json(value, "")
    except RecursionError:
        return " contains itself, or is nested too deeply. Use nested lists and dicts."


def _first_not_json(value: Any, path: str) -> str:
    if isinstance(value, dict):
        for key, inner in value.items():
            if not isinstance(key, str):
                return f"{path} has a key of type {type(key).__name__}. Use text as key."
            if problem := _first_not_json(inner, f"{path}[{key!r:.100}]"):
                return problem
    elif isinstance(value, list | tuple):
        for position, inner in enumerate(value):
            if problem := _first_not_json(inner, f"{path}[{position}]"):
                return problem
    elif not isinstance(value, str | int | float | None):
        advice = next((advice for kinds, advice in _ADVICE if isinstance(value, kinds)), "")
        if hasattr(value, "_meta"):  # a row of a model
            advice = "Use its key, such as value.pk."
        kind = type(value).__name__
        return f"{path} has the type {kind}, which isn't JSON. {advice or _OTHER_ADVICE}"
    return ""


_ADVICE: tuple[tuple[tuple[type, ...], str], ...] = (
    ((date, time), "Use text, such as value.isoformat()."),
    ((UUID, Decimal), "Use text, such as str(value)."),
    ((timedelta,), "Use a number, such as value.total_seconds()."),
    ((set, frozenset), "Use a list, such as sorted(value)."),
    ((bytes,), "Use text, such as value.decode()."),
)
_OTHER_ADVICE = "Use text, a number, True, False, None, a list or a dict."


def same_json(one: Any, other: Any) -> bool:
    """Return whether both values are equal as JSON. See ``json_identity``."""
    return json_identity(one) == json_identity(other)


def json_identity(value: Any) -> Hashable:
    """Return a hashable value, which is the same for values that are equal as JSON.

    ``true`` differs from 1, but 1.0 equals 1, because PostgreSQL stores 1.0 as 1.
    """
    if isinstance(value, bool):
        return (bool, value)
    if isinstance(value, list | tuple):
        return (list, *map(json_identity, value))
    if isinstance(value, dict):
        return frozenset((name, json_identity(inner)) for name, inner in value.items())
    identity: Hashable = value
    return identity


def duplicate_key(pairs: Iterable[tuple[str, Any]]) -> str | None:
    """Return a key that an object has more than once, or None. ``pairs``: its keys and values.

    Python's parser would keep only the last value.
    """
    times = Counter(key for key, _value in pairs)
    return next((key for key, number in times.items() if number > 1), None)


def _check_depth(value: Any) -> None:
    level = [value]
    for _depth in range(MAX_DEPTH + 1):
        level = [
            inner
            for outer in level
            if isinstance(outer, list | dict)
            for inner in (outer.values() if isinstance(outer, dict) else outer)
        ]
        if not level:
            return
    raise ValueError(f"it is nested too deeply (allowed: {MAX_DEPTH} levels of lists and objects)")
