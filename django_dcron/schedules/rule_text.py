"""Parse one line of schedule text, without its zone prefix, into a rule."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from django_dcron.exceptions import InvalidSchedule
from django_dcron.schedules.cron import compile_recurrence, parse_cron
from django_dcron.schedules.daylight import next_instant
from django_dcron.schedules.days import HORIZON
from django_dcron.schedules.recurrence_text import EXAMPLE
from django_dcron.schedules.rules import Every, Never, Once, Rule, WallClock
from django_dcron.schedules.zones import SECOND, SLACK
from django_dcron.utils.messages import any_of
from django_dcron.utils.messages import gettext_noop as _
from django_dcron.utils.suggestions import similar_names

MACROS = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
NEVER = "@never"
_FORMS = (*MACROS, NEVER, "@every 1h30m", "@at 2026-12-01T09:00", EXAMPLE)
"""The forms that begin with ``@``, as errors suggest them."""


def parse_rule(line: str, zone: str, hash_key: str) -> Rule:
    """Return the rule of a line with single spaces; raises ``InvalidSchedule``."""
    word, _space, rest = line.partition(" ")
    if word.lower() == "@every":
        return Every(_interval(rest))
    if word.lower() == "@at":
        return Once(_moment(rest, zone))
    if word.lower() == "@rrule":
        return WallClock(compile_recurrence(rest), zone)
    if line.lower() == NEVER:
        return Never()
    return WallClock(parse_cron(_expand_macro(line), hash_key), zone)


_EVERY_SECOND_WEEK = re.compile(
    r"@?(?:bi-?weekly|fortnightly|2w|14d|every (?:2|two|2nd|second|other) "
    r"(?:weeks?|mon|tue(?:s)?|wed(?:nes)?|thu(?:rs)?|fri|sat(?:ur)?|sun)(?:day)?)"
)
_MISSPELLED = _("Unknown schedule %(value)s. Did you mean %(near)s?")


def _expand_macro(body: str) -> str:
    """Return the fields that a macro stands for; return fields unchanged."""
    if _EVERY_SECOND_WEEK.fullmatch(body.lower()):
        raise InvalidSchedule(
            _(
                "Unknown schedule %(value)s. For every second week, use %(rule)s, which counts "
                "the weeks from its date."
            ),
            value=repr(body),
            rule=EXAMPLE,
            code="unknown_macro",
        )
    if not body.startswith("@"):
        if " " not in body and (near := _nearest_form(body)):
            raise InvalidSchedule(_MISSPELLED, value=repr(body), near=near, code="unknown_macro")
        return body
    try:
        return MACROS[body.lower()]
    except KeyError:
        if near := _nearest_form(body[1:].partition(" ")[0]):
            raise InvalidSchedule(
                _MISSPELLED, value=repr(body), near=near, code="unknown_macro"
            ) from None
        raise InvalidSchedule(
            _("Unknown macro %(value)s. Use %(allowed)s."),
            value=repr(body),
            allowed=any_of(_FORMS),
            code="unknown_macro",
        ) from None


def _nearest_form(name: str) -> str:
    """Return the quoted form whose name resembles ``name``; empty if there is none."""
    forms = {form.partition(" ")[0]: form for form in _FORMS}
    near = similar_names(f"@{name}", forms, most=1)
    return repr(forms[near[0]]) if near else ""


# A week is 7 days and a day is 24 hours of elapsed time. No number of digits overflows a timedelta.
_INTERVAL = re.compile(
    r"(?:(?P<weeks>[0-9]{1,5})w)?(?:(?P<days>[0-9]{1,6})d)?(?:(?P<hours>[0-9]{1,9})h)?"
    r"(?:(?P<minutes>[0-9]{1,9})m)?(?:(?P<seconds>[0-9]{1,9})s)?"
)


def _interval(text: str) -> timedelta:
    match = _INTERVAL.fullmatch(text.lower())
    numbers = match.groupdict(default="0") if match else {}
    interval = timedelta(**{unit: int(number) for unit, number in numbers.items()})
    if not SECOND <= interval <= HORIZON:
        raise InvalidSchedule(
            _(
                "@every %(value)s is not a valid interval. Use whole weeks, days, hours, minutes "
                "and seconds, such as 2w, 1d, 1h30m or 45s, from 1s to %(most)dd."
            ),
            value=repr(text),
            most=HORIZON.days,
            code="invalid_interval",
        )
    return interval


_MOMENT = re.compile(
    r"((?:19[789]|20[0-9])[0-9]-\d\d-\d\d)[T ](\d\d:\d\d(?::\d\d(?:\.\d{1,6})?)?)"
    r"(Z|[+-]\d\d:\d\d)?",
    re.IGNORECASE,
)

_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 -- naive UTC


def _moment(text: str, zone: str) -> datetime:
    """Return the instant in naive UTC; a time without an offset is local time of ``zone``.

    Resolve gaps and overlaps as for a cron schedule at this time. Round a fraction of a second
    up, so that the instant isn't earlier than the text says.
    """
    match = _MOMENT.fullmatch(text)
    try:
        at = (
            datetime.fromisoformat(f"{match[1]}T{match[2]}{match[3] or ''}".upper())
            if match
            else None
        )
    except ValueError:
        at = None
    if at is None:
        raise _invalid_moment(text)
    fraction = timedelta(microseconds=at.microsecond)
    at -= fraction
    found: datetime | None
    if at.tzinfo is not None:
        found = at.astimezone(UTC).replace(tzinfo=None)
    else:
        found = next_instant(parse_cron(f"{at:%S %M %H %d %m ? %Y}"), zone, at - SLACK)
    if found is None:
        raise InvalidSchedule(
            _(
                "@at %(value)s does not exist in %(zone)s, because the clocks there skip it. "
                "Use another time."
            ),
            value=repr(text),
            zone=zone,
            code="skipped_time",
        )
    if found < _EPOCH:  # The text's year is 1970, but not the year in UTC.
        raise _invalid_moment(text)
    return found + SECOND if fraction else found


def _invalid_moment(text: str) -> InvalidSchedule:
    return InvalidSchedule(
        _(
            "@at %(value)s is not a valid time. Use a time such as 2026-12-01T09:00 in "
            "the years 1970 to 2099, optionally with seconds and with an offset such "
            "as Z or +02:00."
        ),
        value=repr(text),
        code="invalid_time",
    )
