"""Times and durations as people write them on a command line."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, tzinfo

from django_dcron.domain.durations import read_duration
from django_dcron.domain.timetable import BEGIN, END
from django_dcron.management.dcron.exits import cannot
from django_dcron.time_texts import parse_datetime

LONGEST = timedelta(days=36_500)
SECOND = timedelta(seconds=1)


def time_help(zone: str = "in the site's time zone") -> str:
    """``zone``: in which a time without an offset is meant; it should be the one in which the answer's times are shown."""
    return f"an ISO time ({zone} unless it has an offset), how long ago (90s, 30m, 6h, 2d) or ahead (+2h), or now"


def instant(label: str, text: str, now: datetime, zone: tzinfo = UTC) -> datetime:
    """Aware. ``label``: what the error calls it, such as ``--since``. ``zone``: in which a time without an offset is meant; an
    instant given so is returned in it, as clocks there may skip it."""
    if text == "now":
        return now
    ahead = text.startswith("+")
    if (length := _span(text.removeprefix("+"))) is not None:
        return min(now + length, END - SECOND) if ahead else max(now - length, BEGIN)
    try:
        found = parse_datetime(text) or datetime.fromisoformat(text)
    except ValueError:
        raise cannot(
            f"{label} {text!r} is neither a time such as 2026-12-01T09:00 nor a span such as 90s, 30m, 6h, 2d or +2h."
        ) from None
    if found.tzinfo is None:
        found = found.replace(tzinfo=zone)
    if not BEGIN <= found < END:
        raise cannot(f"{label} {text!r} is out of range (allowed: years 1970 to 2199).")
    return found


def duration(label: str, text: str) -> timedelta:
    """``90s``, ``1h30m``, ``2d``."""
    length = _span(text)
    if length is None:
        raise cannot(
            f"{label} {text!r} is not a duration (allowed: such as 90s, 1h30m or 2d, at most {LONGEST.days}d)."
        )
    return length


def _span(text: str) -> timedelta | None:
    """None: it is none, or too long a one."""
    try:
        length = read_duration(text)
    except OverflowError:
        return None
    return length if length is not None and length <= LONGEST else None
