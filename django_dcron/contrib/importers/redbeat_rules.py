"""Translate RedBeat's ``rrule``, a rule of dateutil, to a schedule with a start and an end.

RedBeat stores the start of a rule with its offset from UTC, and not with its time zone. Beat
therefore computes all times with this offset, so they don't follow clock changes.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from django_dcron.contrib.importers.schedule_fields import interval_fields, iso_in_site_zone
from django_dcron.contrib.importers.source_contents import EntryOmitted, EntryRefused, Warn
from django_dcron.schedules.recurrence_text import FREQUENCIES, WEEKDAYS
from django_dcron.schedules.schedule import parse_schedule
from django_dcron.schedules.timetable import END

HOUR = timedelta(hours=1)
INTERVAL_UNITS = {
    "HOURLY": HOUR,
    "MINUTELY": timedelta(minutes=1),
    "SECONDLY": timedelta(seconds=1),
}
FREQUENCY_NAMES = ("YEARLY", "MONTHLY", "WEEKLY", "DAILY", "HOURLY", "MINUTELY", "SECONDLY")
"""The frequencies, in the order of dateutil's numbers."""
DAY_PARTS = {
    "bymonth": "BYMONTH",
    "bymonthday": "BYMONTHDAY",
    "byyearday": "BYYEARDAY",
    "byweekno": "BYWEEKNO",
    "byeaster": "BYEASTER",
    "byweekday": "BYDAY",
    "bysetpos": "BYSETPOS",
}
TIME_PARTS = {"byhour": "BYHOUR", "byminute": "BYMINUTE", "bysecond": "BYSECOND"}
MAX_COUNT = 20_000
"""The maximum number of occurrences counted one by one to find the end of a rule."""


def rule_fields(rule: Any, now: datetime, warn: Warn) -> dict[str, Any]:
    """Return the fields ``schedule``, ``timezone``, ``starts_at`` and ``ends_at``.

    Raises ``EntryRefused``, ``EntryOmitted`` or ``InvalidSchedule``.
    """
    if rule.count is not None and rule.count < 1:
        raise EntryOmitted("the rule has no occurrence")
    frequency = FREQUENCY_NAMES[rule.freq]
    fields = _calendar_fields(rule, warn) if frequency in FREQUENCIES else _interval_fields(rule)
    ends = [end for end in (rule.until, _last_of_count(rule)) if end is not None]
    ends_at = min(ends, default=None)
    if ends_at is not None and ends_at < now:
        raise EntryOmitted(f"the rule ended at {iso_in_site_zone(ends_at)}")
    if ends_at is not None and ends_at >= END:
        ends_at = None
    return {**fields, "ends_at": ends_at and ends_at.astimezone(UTC)}


def _interval_fields(rule: Any) -> dict[str, Any]:
    frequency = FREQUENCY_NAMES[rule.freq]
    if restricted := _parts(rule, DAY_PARTS | TIME_PARTS):
        raise EntryRefused(
            f"a rule with FREQ={frequency} and {', '.join(restricted)} can't be imported; use a "
            "cron schedule, such as */10 8-17 * * MON-FRI"
        )
    return {
        **interval_fields(INTERVAL_UNITS[frequency] * rule.interval),
        "starts_at": rule.dtstart.astimezone(UTC),
    }


def _calendar_fields(rule: Any, warn: Warn) -> dict[str, Any]:
    start, zone = rule.dtstart, _zone(rule.dtstart, warn)
    parts = {"FREQ": FREQUENCY_NAMES[rule.freq]}
    if rule.interval != 1:
        parts["INTERVAL"] = str(rule.interval)
    parts |= _parts(rule, DAY_PARTS)
    if rule.wkst is not None:
        parts["WKST"] = _weekday(rule.wkst)
    start_text, starts_at = start.strftime("%Y-%m-%dT%H:%M:%S").removesuffix(":00"), None
    if times := _parts(rule, TIME_PARTS):
        # The day of the start may have times before the start.
        start_text, starts_at = start.strftime("%Y-%m-%d"), start.astimezone(UTC)
        own = {"BYHOUR": start.hour, "BYMINUTE": start.minute, "BYSECOND": start.second}
        parts |= {name: str(value) for name, value in own.items()} | times
    text = ";".join(f"{name}={value}" for name, value in parts.items())
    schedule = f"@rrule {start_text} {text}"
    parse_schedule(schedule, zone)
    return {"schedule": schedule, "timezone": zone, "starts_at": starts_at}


def _parts(rule: Any, names: Mapping[str, str]) -> dict[str, str]:
    """Return the parts that the rule has, as text."""
    return {
        part: _values(part, value)
        for name, part in names.items()
        if (value := getattr(rule, name)) is not None
    }


def _values(part: str, value: Any) -> str:
    values = value if isinstance(value, list | tuple) else [value]
    if part == "BYDAY":
        return ",".join(map(_weekday, values))
    if not all(type(each) is int for each in values):
        raise EntryRefused(f"{part} of the rule isn't a list of numbers: {value!r:.80}")
    return ",".join(map(str, values))


def _weekday(value: Any) -> str:
    """Return a weekday of dateutil, or its number from Monday on, as in a rule."""
    return f"{getattr(value, 'n', None) or ''}{WEEKDAYS[getattr(value, 'weekday', value)]}"


def _zone(start: datetime, warn: Warn) -> str:
    """Return the time zone that always has the offset of the start. Raises ``EntryRefused``."""
    offset = start.utcoffset() or timedelta()
    if not offset:
        return "UTC"
    text = start.strftime("%z")
    if offset % HOUR:
        raise EntryRefused(
            f"the rule counts at the fixed offset {text}, and no time zone has it; create a job "
            "with the schedule @rrule, such as @rrule 2026-01-02T09:00 FREQ=DAILY, and its time "
            "zone"
        )
    warn(
        f"RedBeat computes the rule at the fixed offset {text}, without clock changes, and the "
        "job, too; to follow the local clocks, set the job's timezone"
    )
    return f"Etc/GMT{-(offset // HOUR):+d}"  # these names have the opposite sign


def _last_of_count(rule: Any) -> datetime | None:
    """Return the last occurrence of a rule with a count. None if no datetime can express it."""
    if rule.count is None:
        return None
    if length := INTERVAL_UNITS.get(FREQUENCY_NAMES[rule.freq]):
        try:
            last: datetime = rule.dtstart + length * rule.interval * (rule.count - 1)
        except OverflowError:  # after the year 9999
            return None
        return last
    if rule.count > MAX_COUNT:
        raise EntryRefused(f"count is {rule.count} (allowed: at most {MAX_COUNT}, or no count)")
    return max(rule.rrule, default=None)
