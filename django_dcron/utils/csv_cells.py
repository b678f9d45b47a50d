"""Cells of CSV files that spreadsheets don't interpret as formulas."""

from __future__ import annotations

import json
from typing import Any

FORMULA_STARTS = tuple("=+-@\t\r\n\uff1d\uff0b\uff0d\uff20")
"""Characters that start a formula in spreadsheets, including full-width signs."""


def csv_cell(value: Any) -> Any:
    """Return a JSON value as a cell."""
    if isinstance(value, (list, dict)):
        value = json.dumps(value, ensure_ascii=False)
    if isinstance(value, str) and value.startswith(FORMULA_STARTS):
        return f"'{value}"
    return value
