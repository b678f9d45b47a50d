"""Escape text from users, logs and the database for a terminal."""

from __future__ import annotations

import re

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")


def printable(text: str) -> str:
    """Escape control characters as in Python source, except line ends and tabs."""
    plain = text.replace("\r\n", "\n")
    return _CONTROL.sub(lambda found: ascii(found[0])[1:-1], plain)
