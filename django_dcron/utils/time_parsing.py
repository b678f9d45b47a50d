"""Django's parsers of times and durations, with a maximum text length.

All code of this package calls these functions instead of ``django.utils.dateparse``, so no external
text reaches a regular expression before its length is checked.
"""

from __future__ import annotations

import re
from datetime import datetime, timedelta

from django.utils import dateparse  # noqa: TID251 (this is the place)

MAX_LENGTH = 64
"""The maximum length, in characters, of a text that is parsed as a time or a duration."""
_NUMBER = re.compile(r"[0-9.,\s]+")


def parse_datetime(text: str) -> datetime | None:
    """Parse a date and time. Return None if ``text`` isn't one.

    Raises ``ValueError`` for dates such as February 30.
    """
    return dateparse.parse_datetime(text) if len(text) <= MAX_LENGTH else None


def parse_duration(text: str) -> timedelta | None:
    """Parse a duration. Return None if ``text`` isn't one.

    Neither a blank text nor a number without a unit is a duration here, although Django reads them
    as zero and as seconds. Zero needs no unit. Raises ``OverflowError`` if the duration exceeds the
    range of ``timedelta``.
    """
    duration = dateparse.parse_duration(text) if 0 < len(text) <= MAX_LENGTH else None
    return None if duration and _NUMBER.fullmatch(text) else duration
