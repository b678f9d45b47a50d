"""Escape characters that end a line, control a terminal, reorder text or can't be encoded."""

from __future__ import annotations

import re

_CONTROL_CHARACTERS = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
"""The characters to escape. Tab and newline aren't among them.

The last range contains lone surrogates, with which Python decodes file names that aren't UTF-8. A
log handler that writes UTF-8 would drop a record that contains one.
"""


def escape_control_characters(text: str) -> str:
    """Escape control characters as in Python source, and change CRLF to newlines."""
    plain = text.replace("\r\n", "\n")
    return _CONTROL_CHARACTERS.sub(lambda found: ascii(found[0])[1:-1], plain)


def escape_line_breaks(text: str) -> str:
    """Escape control characters and newlines, so that the text is one line."""
    return escape_control_characters(text).replace("\n", "\\n")
