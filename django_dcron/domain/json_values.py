"""JSON values: which ones a database can store, and which ones are equal."""

from __future__ import annotations

import json
from typing import Any

DEEPEST = 30
"""Lists and objects inside one another. MariaDB takes 32 at the most."""


def storable(value: Any) -> Any:
    """``value``; raises ``ValueError`` for NaN, infinity, NUL, half a character, and what is nested too deep."""
    _check_depth(value)
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    text.encode()
    if r"\u0000" in text.replace(r"\\", ""):
        raise ValueError("it has a NUL, of which no column has any")
    return value


def same_json(one: Any, other: Any) -> bool:
    """Whether both are equal as JSON: true is not 1, but 1.0 is, because PostgreSQL stores it as 1."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same_json, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same_json(one[name], other[name]) for name in one)
    return bool(one == other)


def _check_depth(value: Any) -> None:
    level = [value]
    for _depth in range(DEEPEST + 1):
        level = [
            inner
            for outer in level
            if isinstance(outer, list | dict)
            for inner in (outer.values() if isinstance(outer, dict) else outer)
        ]
        if not level:
            return
    raise ValueError(f"it is nested too deep (allowed: {DEEPEST} lists and objects inside one another)")
