"""What Python reads as JSON and a database does not take."""

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
