"""Parse and format durations: 90s, 5m, 1h30m, 2d, 1w."""

from __future__ import annotations

import re
from datetime import timedelta

MAX_LENGTH = 64
"""The maximum length, in characters, of a text that is parsed as a duration."""
_UNITS = {
    "weeks": "w(?:eeks?)?",
    "days": "d(?:ays?)?",
    "hours": "h(?:ours?)?",
    "minutes": "m(?:in(?:ute)?s?)?",
    "seconds": "s(?:ec(?:ond)?s?)?",
}
_FRIENDLY = re.compile(
    "".join(rf"(?:(?P<{unit}>\d+(?:\.\d+)?)\s*{word}\s*)?" for unit, word in _UNITS.items()),
    re.IGNORECASE,
)
_SECOND = timedelta(seconds=1)


def parse_duration_text(text: str) -> timedelta | None:
    """Parse a duration such as ``1h30m``. Return None if ``text`` isn't one.

    Raises ``OverflowError`` if the duration exceeds the range of ``timedelta``.
    """
    plain = text.strip()
    match = _FRIENDLY.fullmatch(plain) if 0 < len(plain) <= MAX_LENGTH else None
    if match is None:
        return None
    return timedelta(
        **{unit: float(number) for unit, number in match.groupdict().items() if number}
    )


def write_duration(value: timedelta, separator: str = "") -> str:
    """Return the duration in days, hours, minutes and seconds, for ``parse_duration_text``.

    Pages show it with a space as the separator: 1h 30m. A negative value becomes a plain number of
    seconds.
    """
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
    return separator.join(f"{number}{letter}" for number, letter in parts if number) or "0s"
