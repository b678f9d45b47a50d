"""Cron text as croniter reads it (django-q2's), written as ours.

It differs from ours in where seconds stand (last), in ranges that wrap, and in the days: a day field that says anything but ``*`` or
``?``, be it all days, is one of two of which either will do, with or without a star in it.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from croniter import croniter

from django_dcron.domain.fields import DAY_OF_MONTH, DAY_OF_WEEK, HOUR, MINUTE, MONTH, SECOND, YEAR, FieldKind
from django_dcron.moving.cron_text import Part, Parts, cron_text
from django_dcron.moving.found import Refused

KINDS = {
    "minute": MINUTE,
    "hour": HOUR,
    "day_of_month": DAY_OF_MONTH,
    "month": MONTH,
    "day_of_week": DAY_OF_WEEK,
    "second": SECOND,
    "year": YEAR,
}
_NEAREST_WEEKDAY = re.compile(r"W[0-9]+|[0-9]+W", re.IGNORECASE)


def from_croniter(text: str) -> str:
    """Raises ``Refused``."""
    try:
        expanded, nth = croniter.expand(text)
    except ValueError as error:  # croniter's own are such
        raise Refused(f"croniter itself cannot read {text!r}: {error}") from None
    written = text.split() if not text.startswith("@") else []
    parts = Parts(
        **{
            name: _part(kind, values, written[n] if n < len(written) else "")
            for n, ((name, kind), values) in enumerate(zip(KINDS.items(), expanded, strict=False))
        }
    )
    if nth:
        specials = (
            f"{day}{'L' if week == 'l' else f'#{week}'}" for day, weeks in nth.items() for week in weeks
        )
        parts = replace(parts, day_of_week=Part((), "", tuple(sorted(specials))))
    if expanded[2] == ["*"] or expanded[4] == ["*"]:
        return cron_text(parts)
    if parts.day_of_month.specials or parts.day_of_week.specials:
        raise Refused(f"what croniter makes of both days in {text!r} is no rule that could be written down")
    every_day, every_weekday = Part(_every(DAY_OF_MONTH)), Part(_every(DAY_OF_WEEK))
    if {*parts.day_of_month.values} == {*every_day.values} or {*parts.day_of_week.values} == {
        *every_weekday.values
    }:
        return cron_text(replace(parts, day_of_month=every_day, day_of_week=every_weekday))
    return cron_text(parts, both_days=False)


def _part(kind: FieldKind, expanded: list[Any], written: str) -> Part:
    if expanded == ["*"]:
        return Part(_every(kind), written)
    if kind is DAY_OF_MONTH and _NEAREST_WEEKDAY.fullmatch(written):
        return Part((), "", (f"{written.upper().replace('W', '')}W",))
    last = ("L",) if kind is DAY_OF_MONTH and "l" in expanded else ()
    return Part({value for value in expanded if value != "l"}, written, last)


def _every(kind: FieldKind) -> range:
    return range(kind.low, kind.top + 1)
