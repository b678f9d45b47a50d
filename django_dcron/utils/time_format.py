"""Format times and durations for sentences."""

from __future__ import annotations

from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

from django.utils.timezone import get_current_timezone, get_default_timezone

from django_dcron.utils.messages import TranslatableText, ngettext
from django_dcron.utils.messages import gettext_noop as _


def format_duration(value: timedelta) -> str:
    """Format a duration in its two largest units: 12 ms, 3.4 s, 2m 03s, 1h 02m, 3d 4h."""
    seconds = value.total_seconds()
    if seconds < -0.0005:  # a shorter one would round to -0 ms
        return f"-{format_duration(-value)}"
    if seconds < 0.9995:  # it would round to 1000 ms
        return f"{abs(seconds) * 1000:.0f} ms"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days}d {hours}h"
    return f"{hours}h {minutes:02}m" if hours else f"{minutes}m {rest:02}s"


def format_time_ago(value: timedelta) -> TranslatableText:
    """Format how long ago something happened, in whole units: 5 s ago, 3 min ago, 2 days ago.

    A time in the future counts as now.
    """
    seconds = int(max(value, timedelta()).total_seconds())
    if seconds < 1:
        return TranslatableText(_("just now"))
    if seconds < 60:
        return TranslatableText(_("%(count)d s ago"), count=seconds)
    if seconds < 3600:
        return TranslatableText(_("%(count)d min ago"), count=seconds // 60)
    if seconds < 86400:
        return TranslatableText(_("%(count)d h ago"), count=seconds // 3600)
    days = seconds // 86400
    return ngettext("%(count)d day ago", "%(count)d days ago", days, count=days)


def format_time(value: datetime, zone: ZoneInfo) -> str:
    """Format a time to the second. The zone's abbreviation distinguishes repeated local times."""
    return f"{value.astimezone(zone):%Y-%m-%d %H:%M:%S %Z}"


def format_site_time(value: datetime) -> str:
    """Format a time in the site's time zone, with the zone's abbreviation."""
    return format_time(value, get_current_timezone())


def format_time_in_both(value: datetime, zone: ZoneInfo) -> str:
    """Format a time in ``zone``, and the site's time in parentheses if clocks there differ."""
    text, there = format_time(value, zone), value.astimezone(zone)
    site = value.astimezone(get_current_timezone())
    if site.utcoffset() == there.utcoffset():
        return text
    shown = f"{site:%H:%M:%S %Z}" if site.date() == there.date() else format_site_time(value)
    return f"{text} ({shown})"


def format_time_to_store(value: datetime) -> str:
    """Format a time for stored text, in ``TIME_ZONE``, regardless of the active time zone."""
    return format_time(value, get_default_timezone())


def format_time_of_day(value: datetime) -> str:
    """Format the time of day, without seconds if they are zero."""
    return f"{value:%H:%M:%S}" if value.second else f"{value:%H:%M}"
