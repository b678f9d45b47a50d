"""Times and durations in sentences."""

from __future__ import annotations

from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

from django.utils.timezone import get_current_timezone


def span(value: timedelta) -> str:
    """A duration in its two largest units: 12 ms, 3.4 s, 2m 03s, 1h 02m, 3d 4h."""
    seconds = value.total_seconds()
    if seconds < 0:
        return f"-{span(-value)}"
    if seconds < 0.9995:  # else it would round to 1000 ms
        return f"{seconds * 1000:.0f} ms"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days}d {hours}h"
    return f"{hours}h {minutes:02}m" if hours else f"{minutes}m {rest:02}s"


def moment(value: datetime, zone: ZoneInfo) -> str:
    """To the second; which of two passes it is, where clocks are turned back, the zone's abbreviation says."""
    return f"{value.astimezone(zone):%Y-%m-%d %H:%M:%S %Z}"


def plain_moment(value: datetime) -> str:
    """In the site's time zone, which it names."""
    return moment(value, get_current_timezone())


def clock(value: datetime) -> str:
    """The time of day as it stands, to the minute if it is a whole one."""
    return f"{value:%H:%M:%S}" if value.second else f"{value:%H:%M}"
