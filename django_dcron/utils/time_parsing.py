"""Django's parsers of times and durations, with a maximum text length.

All code of this package calls these functions instead of ``django.utils.dateparse``, so no external
text reaches a regular expression before its length is checked.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from django.utils import dateparse  # noqa: TID251 (this is the place)

MAX_LENGTH = 64
"""The maximum length, in characters, of a text that is parsed as a time or a duration."""


def parse_datetime(text: str) -> datetime | None:
    """Parse a date and time. Return None if ``text`` isn't one.

    Raises ``ValueError`` for dates such as February 30.
    """
    return dateparse.parse_datetime(text) if len(text) <= MAX_LENGTH else None


def parse_duration(text: str) -> timedelta | None:
    """Parse a duration. Return None if ``text`` isn't one.

    A blank text isn't a duration here, although Django reads it as zero. Raises ``OverflowError``
    if the duration exceeds the range of ``timedelta``.
    """
    return dateparse.parse_duration(text) if 0 < len(text) <= MAX_LENGTH else None
