"""Django's parsers of times and durations, for texts of a bounded length.

All code of this package calls these instead of ``django.utils.dateparse``, so that no text from outside reaches a regular
expression before its length is known.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from django.utils import dateparse  # noqa: TID251 (this is the place)

MAX_LENGTH = 64
"""The longest text, in characters, that is read as a time or a duration."""


def parse_datetime(text: str) -> datetime | None:
    """None if ``text`` is not a time. Raises ``ValueError`` for a time that does not exist, such as February 30."""
    return dateparse.parse_datetime(text) if len(text) <= MAX_LENGTH else None


def parse_duration(text: str) -> timedelta | None:
    """None if ``text`` is not a duration. Raises ``OverflowError`` for a duration that a timedelta cannot hold."""
    return dateparse.parse_duration(text) if len(text) <= MAX_LENGTH else None
