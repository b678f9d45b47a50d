"""Parse recurrence rules of RFC 5545: a start, and a rule with days and times of day.

Invariants:

- The start is part of the text.
- ``BYWEEKNO`` isn't supported: in a week that spans two years, dateutil deviates from RFC 5545.
- A rule has no end (``COUNT``, ``UNTIL``). A job may have one (``ends_at``).
- A rule that matches no day within the horizon is refused.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import date, datetime, time
from typing import NoReturn

from django_dcron.exceptions import InvalidSchedule
from django_dcron.schedules.recurrence import Recurrence
from django_dcron.utils.messages import any_of
from django_dcron.utils.messages import gettext_noop as _

FREQUENCIES = ("DAILY", "WEEKLY", "MONTHLY", "YEARLY")
WEEKDAYS = ("MO", "TU", "WE", "TH", "FR", "SA", "SU")
LONGEST_INTERVAL = 1000
EXAMPLE = "@rrule 2026-01-02T09:00 FREQ=WEEKLY;INTERVAL=2;BYDAY=FR"


@dataclass(frozen=True)
class ParsedRule:
    """A rule with its times of day, each field as cron text."""

    days: Recurrence
    second: str
    minute: str
    hour: str


_TEXT = re.compile(
    r"(?P<start>(?:19[789]|20[0-9])[0-9]-\d\d-\d\d(?:T\d\d:\d\d(?::\d\d)?)?)"
    r" (?:RRULE:)?(?P<rule>\S+)"
)
_DAY = re.compile(r"([+-]?[0-9]{1,2})?(MO|TU|WE|TH|FR|SA|SU)")
_NUMBER = re.compile(r"[+-]?[0-9]{1,4}")
_PARTS = (
    "FREQ",
    "INTERVAL",
    "BYMONTH",
    "BYMONTHDAY",
    "BYYEARDAY",
    "BYDAY",
    "BYSETPOS",
    "BYHOUR",
    "BYMINUTE",
    "BYSECOND",
    "WKST",
)
_DAY_PARTS = ("BYDAY", "BYMONTHDAY", "BYYEARDAY")
_ONLY_WITH = {
    "BYYEARDAY": ("YEARLY",),
    "BYSETPOS": ("MONTHLY", "YEARLY"),
    "BYMONTHDAY": ("DAILY", "MONTHLY", "YEARLY"),
}
"""The frequencies with which a part has a meaning (RFC 5545, 3.3.10)."""


def parse_recurrence(text: str) -> ParsedRule:
    """Parse a start and a rule, separated by a space. Raises ``InvalidSchedule``."""
    match = _TEXT.fullmatch(text.upper())
    start = match and _moment(match["start"])
    if match is None or start is None:
        raise InvalidSchedule(
            _(
                "@rrule %(value)s is not a start and a recurrence rule. The start is a date in "
                "the years 1970 to 2099, with or without a time. Example: %(example)s."
            ),
            value=repr(text),
            example=EXAMPLE,
            code="invalid_recurrence",
        )
    parts = _parts(match["rule"])
    days = _days(match["rule"], start.date(), parts)
    times = _times(start, parts)
    for name, values in times.items():
        if days.positions and len(values) > 1:
            _refuse_together("BYSETPOS", f"{name}={parts[name]}")
    _check_start(start, times)
    if days.at_or_after(days.start) is None:
        raise InvalidSchedule(
            _("Recurrence rule %(value)s matches no date within 50 years after its start."),
            value=repr(match["rule"]),
            code="never_matches",
        )
    return ParsedRule(days, *(",".join(map(str, values)) for values in times.values()))


def _times(start: datetime, parts: dict[str, str]) -> dict[str, tuple[int, ...]]:
    """Return seconds, minutes and hours by the names of their parts; by default, the start's."""
    return {
        name: _numbers(parts, name, 0, most) or (own,)
        for name, most, own in (
            ("BYSECOND", 59, start.second),
            ("BYMINUTE", 59, start.minute),
            ("BYHOUR", 23, start.hour),
        )
    }


def _check_start(start: datetime, times: dict[str, tuple[int, ...]]) -> None:
    """Refuse a start after the first time of its day, because it would have no occurrence then."""
    first = time(min(times["BYHOUR"]), min(times["BYMINUTE"]), min(times["BYSECOND"]))
    if start.time() > first:
        raise InvalidSchedule(
            _(
                "The start %(value)s is later than the first time of the rule, %(first)s. Enter "
                "the start without a time."
            ),
            value=f"{start:%Y-%m-%dT%H:%M:%S}",
            first=f"{first:%H:%M:%S}",
            code="late_start",
        )


def _moment(text: str) -> datetime | None:
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return None


def _parts(rule: str) -> dict[str, str]:
    """Return the values of the rule by the names of their parts."""
    parts: dict[str, str] = {}
    for item in rule.removesuffix(";").split(";"):
        name, _equals, value = item.partition("=")
        if name in ("COUNT", "UNTIL"):
            raise InvalidSchedule(
                _("A recurrence rule can't have %(part)s. Set the end of the job instead."),
                part=name,
                code="rule_with_end",
            )
        if name not in _PARTS:
            raise InvalidSchedule(
                _("Unknown part %(part)s of a recurrence rule. Use %(allowed)s."),
                part=f"{name!r:.40}",
                allowed=any_of(_PARTS),
                code="unknown_part",
            )
        if name in parts:
            raise InvalidSchedule(
                _("The recurrence rule has %(part)s twice. Use a list, such as BYDAY=MO,FR."),
                part=name,
                code="repeated_part",
            )
        parts[name] = value
    if "FREQ" not in parts:
        raise InvalidSchedule(
            _("The recurrence rule has no FREQ. Use FREQ with %(allowed)s."),
            allowed=any_of(FREQUENCIES),
            code="no_frequency",
        )
    return parts


def _days(rule: str, start: date, parts: dict[str, str]) -> Recurrence:
    frequency = _choice(parts, "FREQ", FREQUENCIES)
    for name, allowed in _ONLY_WITH.items():
        if name in parts and frequency not in allowed:
            _refuse_together(name, f"FREQ={frequency}")
    if "BYSETPOS" in parts and not any(name in parts for name in _DAY_PARTS):
        _refuse_without("BYSETPOS", _DAY_PARTS)
    months = _numbers(parts, "BYMONTH", 1, 12)
    month_days = _numbers(parts, "BYMONTHDAY", 1, 31, from_end=True)
    weekdays = _weekdays(parts, frequency)
    if not any(name in parts for name in _DAY_PARTS):
        # The start supplies what the rule leaves open.
        if frequency == "YEARLY":
            months = months or (start.month,)
        if frequency in ("MONTHLY", "YEARLY"):
            month_days = (start.day,)
        else:
            only = (start.weekday(),) if frequency == "WEEKLY" else range(7)
            weekdays = tuple((number, None) for number in only)
    return Recurrence(
        text=rule,
        start=start,
        frequency=frequency,
        interval=(_numbers(parts, "INTERVAL", 1, LONGEST_INTERVAL, most=1) or (1,))[0],
        months=months,
        month_days=month_days,
        year_days=_numbers(parts, "BYYEARDAY", 1, 366, from_end=True),
        weekdays=weekdays,
        positions=_numbers(parts, "BYSETPOS", 1, 366, from_end=True),
        week_start=WEEKDAYS.index(_choice(parts, "WKST", WEEKDAYS) if "WKST" in parts else "MO"),
    )


def _weekdays(parts: dict[str, str], frequency: str) -> tuple[tuple[int, int | None], ...]:
    if "BYDAY" not in parts:
        return ()
    in_month = frequency == "MONTHLY" or "BYMONTH" in parts
    highest = 5 if in_month else 53
    found: list[tuple[int, int | None]] = []
    for item in parts["BYDAY"].split(","):
        match = _DAY.fullmatch(item)
        if match is None or (match[1] and not 1 <= abs(int(match[1])) <= highest):
            _refuse_value(parts, "BYDAY", f"MO-SU, 1MO-{highest}SU, -1MO")
        if match[1] and frequency in ("DAILY", "WEEKLY"):
            _refuse_together(f"BYDAY={item}", f"FREQ={frequency}")
        found.append((WEEKDAYS.index(match[2]), int(match[1]) if match[1] else None))
        if (found[0][1] is None) is not (found[-1][1] is None):
            # dateutil lists only the days that match both kinds, RFC 5545 those that match either.
            _refuse_together("BYDAY=" + parts["BYDAY"].split(",")[0], f"BYDAY={item}")
    return tuple(dict.fromkeys(found))


def _numbers(
    parts: dict[str, str], name: str, low: int, high: int, *, from_end: bool = False, most: int = 99
) -> tuple[int, ...]:
    """Return the sorted numbers of a part; ``from_end`` allows negative ones, too."""
    if name not in parts:
        return ()
    items = parts[name].split(",")
    values = {int(item) for item in items if _NUMBER.fullmatch(item)}
    inside = all(low <= (abs(value) if from_end else value) <= high for value in values)
    if not inside or not all(map(_NUMBER.fullmatch, items)) or len(items) > most:
        _refuse_value(parts, name, f"{low}-{high}, -{high}--{low}" if from_end else f"{low}-{high}")
    return tuple(sorted(values))


def _choice(parts: dict[str, str], name: str, allowed: tuple[str, ...]) -> str:
    if parts[name] not in allowed:
        _refuse_value(parts, name, any_of(allowed))
    return parts[name]


def _refuse_value(parts: dict[str, str], name: str, allowed: object) -> NoReturn:
    raise InvalidSchedule(
        _("%(part)s of the recurrence rule can't be %(value)s (allowed: %(allowed)s)"),
        part=name,
        value=f"{parts[name]!r:.80}",
        allowed=allowed,
        code="invalid_part",
    )


def _refuse_together(name: str, other: str) -> NoReturn:
    raise InvalidSchedule(
        _("A recurrence rule can't have %(part)s together with %(other)s."),
        part=name,
        other=other,
        code="part_not_allowed",
    )


def _refuse_without(name: str, needed: tuple[str, ...]) -> NoReturn:
    raise InvalidSchedule(
        _("A recurrence rule with %(part)s needs %(needed)s, too."),
        part=name,
        needed=any_of(needed),
        code="part_missing",
    )
