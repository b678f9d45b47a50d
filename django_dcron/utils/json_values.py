"""JSON values: whether a database can store them, and whether two are equal."""

from __future__ import annotations

import json
from typing import Any

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


def same_json(one: Any, other: Any) -> bool:
    """Return whether both values are equal as JSON.

    ``true`` differs from 1, but 1.0 equals 1, because PostgreSQL stores 1.0 as 1.
    """
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same_json, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same_json(one[name], other[name]) for name in one)
    return bool(one == other)


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
