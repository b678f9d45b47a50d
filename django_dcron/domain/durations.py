"""Durations as people write them: 90s, 5m, 1h30m, 2d."""

from __future__ import annotations

import re
from datetime import timedelta

MAX_LENGTH = 64
"""The longest text, in characters, that is read as a duration."""
_UNITS = {"days": "d", "hours": "h", "minutes": "m", "seconds": "s"}
_FRIENDLY = re.compile(
    "".join(rf"(?:(?P<{unit}>\d+(?:\.\d+)?)\s*{letter}\s*)?" for unit, letter in _UNITS.items()),
    re.IGNORECASE,
)
_SECOND = timedelta(seconds=1)


def read_duration(text: str) -> timedelta | None:
    """Read such a text; None if it is not a duration.

    Raises ``OverflowError`` for a duration that a timedelta cannot hold.
    """
    plain = text.strip()
    match = _FRIENDLY.fullmatch(plain) if 0 < len(plain) <= MAX_LENGTH else None
    if match is None:
        return None
    return timedelta(**{unit: float(number) for unit, number in match.groupdict().items() if number})


def write_duration(value: timedelta) -> str:
    """The shortest text that ``read_duration`` reads as ``value``; seconds as a number for a negative one."""
    if value < timedelta():
        return str(value.total_seconds())
    minutes, seconds = divmod(value // _SECOND, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    fraction = f".{value.microseconds:06}".rstrip("0") if value.microseconds else ""
    parts = [
        (days, "d"),
        (hours, "h"),
        (minutes, "m"),
        (f"{seconds}{fraction}" if seconds or fraction else 0, "s"),
    ]
    return "".join(f"{number}{letter}" for number, letter in parts if number) or "0s"
