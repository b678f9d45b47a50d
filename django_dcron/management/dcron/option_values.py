"""Parse numbers, times and durations from the command line."""

from __future__ import annotations

import json
import re
from argparse import ArgumentTypeError, _ActionsContainer
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, time, timedelta, tzinfo
from typing import Any

from django.core.management.base import CommandParser
from django.utils.timezone import get_current_timezone

from django_dcron.jobs.portable import quoted_json
from django_dcron.management.dcron.exits import usage_error
from django_dcron.schedules.timetable import BEGIN, END
from django_dcron.utils.durations import parse_duration_text
from django_dcron.utils.json_values import duplicate_key
from django_dcron.utils.time_ahead import next_time_of_day
from django_dcron.utils.time_format import format_site_time
from django_dcron.utils.time_parsing import parse_datetime

LONGEST = timedelta(days=36_500)
DAY, SECOND = timedelta(days=1), timedelta(seconds=1)
TIME_FORMATS = "a time such as 2026-12-01T09:00, or a span such as 90s, 30m, 6h, 2d, 1w or +2h"
CLOCK_TIME_FORMATS = f"a time of day such as 14:30, {TIME_FORMATS}"
UNTIL_FORMATS = (
    "a duration such as 2h or 1w, a time of day such as 18:00, or a time such as 2026-12-01T09:00"
)
WEEKDAY = re.compile(r"(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) (?=[0-9]{4}-)")
ABBREVIATED = re.compile(r"([0-9]{4}-[0-9]{2}-[0-9]{2}[ T][0-9:]{5,8}) ([A-Z]{2,5})")
CLOCK_TIME = re.compile(r"([0-9]{1,2}):([0-9]{2})(?::([0-9]{2}))?")


def parse_json(label: str, text: str) -> Any:
    """Return the value of a JSON text.

    Raises ``CommandError`` with ``label`` for an object that has a key more than once. Raises
    ``ValueError`` or ``RecursionError`` if the text isn't JSON.
    """

    def as_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if (key := duplicate_key(pairs)) is not None:
            raise usage_error(f"{label}: The object has the key {quoted_json(key)} more than once.")
        return dict(pairs)

    return json.loads(text, object_pairs_hook=as_object)


def parse_whole_number(low: int, high: int) -> Callable[[str], int]:
    """Return a parser of integers. argparse reports invalid values and exits with 2."""

    def checked(text: str) -> int:
        number = int(text) if text.isascii() and text.isdecimal() and len(text) < 19 else -1
        if not low <= number <= high:
            raise ArgumentTypeError(f"{text!r} isn't an integer from {low} to {high}")
        return number

    return checked


def time_help(zone: str = "in the site's time zone") -> str:
    """Return the help text for a time option.

    ``zone`` is the zone of a time without an offset. It should be the zone in which results are
    shown.
    """
    return (
        f"ISO time ({zone} unless it has an offset), span in the past (90s, 30m, 6h, 2d) or "
        "future (+2h), or now"
    )


def past_time_help() -> str:
    """Return the help text for ``--since`` and ``--until`` of commands that show the past."""
    return (
        "ISO time or time of day (18:00: the last one) in the site's time zone unless it has an "
        "offset, span in the past (90s, 30m, 6h, 2d) or future (+2h), or now"
    )


def until_help() -> str:
    """Return the help text for ``--until``."""
    return "ISO time or time of day (18:00) in the site's time zone, or a duration (2h, 1w)"


def parse_time_option(
    label: str, text: str, now: datetime, zone: tzinfo, *, allowed: str = TIME_FORMATS
) -> datetime:
    """Return an aware time; raises ``CommandError`` for invalid text.

    ``label`` names the value in errors, such as ``--since``. ``allowed`` describes the formats that
    the caller accepts. A time without an offset is in ``zone`` and keeps that time zone, because
    clocks there may skip it. Instead of an offset, the time may have the abbreviation of a zone, as
    in the output of commands.
    """
    if text == "now":
        return now
    ahead = text.startswith("+")
    if (length := _span(text.removeprefix("+"))) is not None:
        return min(now + length, END - SECOND) if ahead else max(now - length, BEGIN)
    written = WEEKDAY.sub("", text, count=1) if WEEKDAY.match(text) else text
    try:
        found = (
            _abbreviated_time(label, written, zone)
            or parse_datetime(written)
            or datetime.fromisoformat(written)
        )
    except ValueError:
        raise usage_error(f"Invalid {label} {text!r} (allowed: {allowed}).") from None
    if found.tzinfo is None:
        found = found.replace(tzinfo=zone)
    if not BEGIN <= found < END:
        raise usage_error(f"{label} {text!r} is out of range (allowed: years 1970 to 2199).")
    return found


def _abbreviated_time(label: str, text: str, zone: tzinfo) -> datetime | None:
    """Return the time of ``2026-12-01 09:00:00 CET``, or None for other text.

    The abbreviation distinguishes repeated local times. Raises ``CommandError`` unless it is UTC or
    one that clocks in ``zone`` have at that time.
    """
    parts = ABBREVIATED.fullmatch(text)
    local = parse_datetime(parts[1]) if parts else None
    if parts is None or local is None:
        return None
    times = (local.replace(tzinfo=each, fold=fold) for each in (zone, UTC) for fold in (0, 1))
    for at in times:
        if at.tzname() == parts[2]:
            return at
    raise usage_error(
        f"{label} {text!r} has the abbreviation {parts[2]!r} (allowed: UTC, an abbreviation that "
        f"{zone} has at that time, or an offset such as +01:00)."
    )


def parse_past_time(label: str, text: str, now: datetime, zone: tzinfo) -> datetime:
    """Return an aware time; raises ``CommandError`` for invalid text.

    A time of day is the last one in ``zone``. Other formats are those of ``parse_time_option``.
    """
    return last_clock_time(text, now, zone) or parse_time_option(
        label, text, now, zone, allowed=CLOCK_TIME_FORMATS
    )


def add_period(parser: _ActionsContainer, verb: str = "") -> None:
    """Add ``--since`` and ``--until``. ``verb``: what happened in the period: ``scheduled``."""
    start = f"{verb} at or after this time".lstrip()
    end = f"{verb} before this time".lstrip()
    parser.add_argument("--since", metavar="TIME", help=f"{start}: {past_time_help()}")
    parser.add_argument("--until", metavar="TIME", help=f"{end}, same formats")


def parse_period(
    options: Mapping[str, Any], now: datetime
) -> tuple[datetime | None, datetime | None]:
    """Return the times of ``add_period``'s options; None for an option that isn't given.

    Raises ``CommandError`` if a time is invalid, or unless ``--since`` is before ``--until``.
    """
    since, until = (
        parse_past_time(f"--{name}", options[name], now, get_current_timezone())
        if options[name] is not None
        else None
        for name in ("since", "until")
    )
    if since is not None and until is not None:
        require_before(since, until)
    return since, until


def require_before(since: datetime, until: datetime) -> None:
    """Raise ``CommandError`` unless ``--since`` is before ``--until``."""
    if since >= until:
        raise usage_error(
            f"--since ({format_site_time(since)}) must be before --until "
            f"({format_site_time(until)})."
        )


def parse_until_option(text: str, now: datetime, zone: tzinfo) -> datetime:
    """Return the aware time of ``--until``; raises ``CommandError`` unless it is after ``now``.

    A duration counts from ``now``. A time of day is the next one in ``zone``.
    """
    if (length := _span(text.removeprefix("+"))) is not None:
        found = min(now + length, END - SECOND)
    else:
        found = next_time_of_day(text, now, zone) or parse_time_option(
            "--until", text, now, zone, allowed=UNTIL_FORMATS
        )
    if found <= now:
        raise usage_error(
            f"--until {text!r} is in the past (allowed: a future time, as {UNTIL_FORMATS})."
        )
    return found


def add_end(parser: CommandParser, what: str, default: str) -> None:
    """Add ``--until`` and ``--for``.

    ``what``: what ends. ``default``: when it ends without these options.
    """
    end = parser.add_mutually_exclusive_group()
    end.add_argument(
        "--until",
        metavar="TIME",
        help=f"end {what} at this time: {until_help()} (default: {default})",
    )
    end.add_argument(
        "--for",
        dest="duration",
        metavar="DURATION",
        help=f"end {what} after this duration, such as 30m",
    )


def parse_end(options: Mapping[str, Any], now: datetime) -> datetime | None:
    """Return the time of ``add_end``'s options. None: there is no end yet."""
    if (text := options["duration"]) is not None:
        if not (length := parse_duration_option("--for", text)):
            raise usage_error(f"--for {text!r} is too short (allowed: a duration above 0).")
        return now + length
    if options["until"] is not None:
        return parse_until_option(options["until"], now, get_current_timezone())
    return None


def last_clock_time(text: str, now: datetime, zone: tzinfo) -> datetime | None:
    """Return the last time up to ``now`` at which clocks in ``zone`` showed ``14:30``.

    Returns None if ``text`` isn't a time of day. The result keeps the time zone, because clocks
    there may skip it.
    """
    parts = CLOCK_TIME.fullmatch(text)
    if parts is None:
        return None
    try:
        hour, minute, second = (int(part or 0) for part in parts.groups())
        shown = time(hour, minute, second)
    except ValueError:
        raise usage_error(
            f"Invalid time of day {text!r} (allowed: 00:00 to 23:59, or 00:00:00 to 23:59:59)."
        ) from None
    found = datetime.combine(now.astimezone(zone).date(), shown, tzinfo=zone)
    return found if found <= now else found - DAY


def parse_duration_option(label: str, text: str) -> timedelta:
    """Parse a duration: ``90s``, ``1h30m``, ``2d``."""
    length = _span(text)
    if length is None:
        near = f" Did you mean {text}s?" if text.isascii() and text.isdigit() else ""
        raise usage_error(
            f"Invalid {label} {text!r} (allowed: a duration such as 90s, 1h30m or 2d, at most "
            f"{LONGEST.days}d).{near}"
        )
    return length


def _span(text: str) -> timedelta | None:
    """Return the duration, or None if the text is invalid or the duration too long."""
    try:
        length = parse_duration_text(text)
    except OverflowError:
        return None
    return length if length is not None and length <= LONGEST else None
