"""Translate cron text of croniter to cron text of this package.

django-q2, procrastinate and django-tasks-scheduler use croniter. It differs:

- Seconds are the last field.
- Ranges may wrap.
- A day field counts as restricted unless it is exactly ``*`` or ``?``, even if it contains all
  days.
- If both day fields are restricted, either may match, even if one starts with a star.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from croniter import croniter

from django_dcron.contrib.importers.cron_text import CronPart, CronParts, cron_text
from django_dcron.contrib.importers.source_contents import EntryRefused
from django_dcron.schedules.fields import (
    DAY_OF_MONTH,
    DAY_OF_WEEK,
    HOUR,
    MINUTE,
    MONTH,
    SECOND,
    YEAR,
    FieldKind,
)

KINDS = {
    "minute": MINUTE,
    "hour": HOUR,
    "day_of_month": DAY_OF_MONTH,
    "month": MONTH,
    "day_of_week": DAY_OF_WEEK,
    "second": SECOND,
    "year": YEAR,
}
_RANDOM = re.compile(r"(?:^|[\s,])R(?:$|[\s,(/])", re.IGNORECASE)
_NEAREST_WEEKDAY = re.compile(r"W[0-9]+|[0-9]+W", re.IGNORECASE)


def from_croniter(text: str) -> str:
    """Return the equivalent cron text of this package. Raises ``EntryRefused``."""
    if _RANDOM.search(text):
        raise EntryRefused(
            f"random values (R) in {text!r:.80} are not supported; H selects a fixed value per job"
        )
    try:
        expanded, nth = croniter.expand(text)
    except ValueError as error:  # includes croniter's own errors
        raise EntryRefused(f"croniter can't read {text!r:.80}: {error}") from None
    written = text.split() if not text.startswith("@") else []
    parts = CronParts(
        **{
            name: _part(kind, values, written[n] if n < len(written) else "")
            for n, ((name, kind), values) in enumerate(zip(KINDS.items(), expanded, strict=False))
        }
    )
    if nth:
        specials = (
            f"{day}{'L' if week == 'l' else f'#{week}'}"
            for day, weeks in nth.items()
            for week in weeks
        )
        parts = replace(parts, day_of_week=CronPart((), "", tuple(sorted(specials))))
    if expanded[2] == ["*"] or expanded[4] == ["*"]:
        return cron_text(parts)
    if parts.day_of_month.specials or parts.day_of_week.specials:
        raise EntryRefused(
            f"croniter's combination of day of month and weekday in {text!r:.80} has no "
            "equivalent; write the schedule with one of the two"
        )
    every_day, every_weekday = CronPart(_every(DAY_OF_MONTH)), CronPart(_every(DAY_OF_WEEK))
    if {*parts.day_of_month.values} == {*every_day.values} or {*parts.day_of_week.values} == {
        *every_weekday.values
    }:
        return cron_text(replace(parts, day_of_month=every_day, day_of_week=every_weekday))
    return cron_text(parts, both_days=False)


def _part(kind: FieldKind, expanded: list[Any], written: str) -> CronPart:
    if expanded == ["*"]:
        return CronPart(_every(kind), written)
    if kind is DAY_OF_MONTH and _NEAREST_WEEKDAY.fullmatch(written):
        return CronPart((), "", (f"{written.upper().replace('W', '')}W",))
    last = ("L",) if kind is DAY_OF_MONTH and "l" in expanded else ()
    return CronPart({value for value in expanded if value != "l"}, written, last)


def _every(kind: FieldKind) -> range:
    return range(kind.low, kind.top + 1)
