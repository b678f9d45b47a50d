"""Escape characters that end a line, control a terminal, reverse text or can't be encoded."""

from __future__ import annotations

import re

_CONTROL_CHARACTERS = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
"""All of them except tab and newline.

The last range are lone surrogates: Python reads file names that aren't UTF-8 into them. A handler
that writes UTF-8 would drop the whole record.
"""


def without_control_characters(text: str) -> str:
    """Escape these characters as in Python source. Line ends become newlines."""
    plain = text.replace("\r\n", "\n")
    return _CONTROL_CHARACTERS.sub(lambda found: ascii(found[0])[1:-1], plain)
