"""Write the value sets of another scheduler's cron fields as cron text of this package.

Invariants:

- The text means exactly these sets. If no text does, ``EntryRefused`` is raised.
- A field keeps the source's spelling wherever it has the same meaning here.

The two day fields are the difficult part. In APScheduler and Celery, both must always match. Here,
both must match only if one of them starts with ``*``; otherwise, either may match. So one field
must start with ``*``: ``*/31`` means only the 1st, and ``*/7`` means only Sunday. Days of month
that form whole weeks become ``n#k``.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from django_dcron.contrib.importers.source_contents import EntryRefused
from django_dcron.exceptions import InvalidSchedule
from django_dcron.schedules.fields import (
    DAY_OF_MONTH,
    DAY_OF_WEEK,
    HOUR,
    MINUTE,
    MONTH,
    SECOND,
    YEAR,
    FieldKind,
    parse_field,
)

WEEKS = ((1, 7), (8, 14), (15, 21), (22, 28), (29, 31))
"""The days of month on which a weekday is the first, second, ... in its month."""
DAYS_NOT_EXPRESSIBLE = (
    "day of month and weekday must both match, and no schedule can express this for these "
    "days; schedule one of the two, and check the other in the job's code"
)


@dataclass(frozen=True, slots=True)
class CronPart:
    """A field: its values, and the source's text if there is one."""

    values: Collection[int]
    text: str = ""
    specials: tuple[str, ...] = field(default=())
    """In the syntax of this package, such as ``L`` or ``5#2``."""


@dataclass(frozen=True, slots=True)
class CronParts:
    minute: CronPart
    hour: CronPart
    day_of_month: CronPart
    month: CronPart
    day_of_week: CronPart
    second: CronPart = field(default=CronPart((0,)))
    year: CronPart | None = None


def cron_text(parts: CronParts, *, both_days: bool = True) -> str:
    """Return cron text. ``both_days``: whether both day fields must match, instead of either."""
    days, weekdays = _days(parts.day_of_month, parts.day_of_week, both=both_days)
    time = f"{_text(MINUTE, parts.minute)} {_text(HOUR, parts.hour)}"
    text = f"{time} {days} {_text(MONTH, parts.month)} {weekdays}"
    if parts.year and not _is_all(YEAR, parts.year):
        return f"{_text(SECOND, parts.second)} {text} {_text(YEAR, parts.year)}"
    return text if set(parts.second.values) == {0} else f"{_text(SECOND, parts.second)} {text}"


def _days(month_days: CronPart, weekdays: CronPart, *, both: bool) -> tuple[str, str]:
    if _is_all(DAY_OF_WEEK, weekdays):
        return _text(DAY_OF_MONTH, month_days), "*"
    if _is_all(DAY_OF_MONTH, month_days):
        return "*", _text(DAY_OF_WEEK, weekdays)
    if not both:
        return _text(DAY_OF_MONTH, month_days, star=False), _text(DAY_OF_WEEK, weekdays, star=False)
    texts = _text(DAY_OF_MONTH, month_days), _text(DAY_OF_WEEK, weekdays)
    if any(text.startswith("*") for text in texts):
        return texts
    if not month_days.specials and not weekdays.specials:
        weeks = [
            n
            for n, week in enumerate(WEEKS, 1)
            if set(range(week[0], week[1] + 1)) <= set(month_days.values)
        ]
        if {day for n in weeks for day in range(WEEKS[n - 1][0], WEEKS[n - 1][1] + 1)} == set(
            month_days.values
        ):
            return "*", ",".join(f"{day}#{n}" for n in weeks for day in sorted(weekdays.values))
    if 1 in month_days.values:
        return _format_star("*/31", DAY_OF_MONTH, month_days, 1), texts[1]
    if 0 in weekdays.values:
        return texts[0], _format_star("*/7", DAY_OF_WEEK, weekdays, 0)
    raise EntryRefused(DAYS_NOT_EXPRESSIBLE)


def _format_star(star: str, kind: FieldKind, part: CronPart, first: int) -> str:
    """Return the field's text with ``star`` for the single value ``first``."""
    rest = sorted(set(part.values) - {first})
    return ",".join([star, *([_format_list(rest)] if rest else []), *part.specials])


def _text(kind: FieldKind, part: CronPart, *, star: bool = True) -> str:
    if star and _is_all(kind, part):
        return "*"
    if (star or not part.text.startswith("*")) and _means(kind, part.text, part):
        return part.text
    values = sorted(set(part.values))
    step = values[1] - values[0] if len(values) > 1 else 0
    if (
        star
        and not part.specials
        and step > 1
        and values == list(range(kind.low, kind.top + 1, step))
    ):
        return f"*/{step}"
    return ",".join([*([_format_list(values)] if values else []), *part.specials])


def _means(kind: FieldKind, text: str, part: CronPart) -> bool:
    if not text or part.specials or "H" in text.upper() or " " in text:
        return False
    try:
        parsed = parse_field(kind, text.upper())
    except InvalidSchedule:
        return False
    return not parsed.specials and set(parsed.values) == set(part.values)


def _is_all(kind: FieldKind, part: CronPart) -> bool:
    return set(part.values) >= set(range(kind.low, kind.top + 1))


def _format_list(values: list[int]) -> str:
    """List values, with three or more consecutive ones as a range."""
    runs: list[list[int]] = []
    for value in values:
        if runs and value == runs[-1][-1] + 1:
            runs[-1].append(value)
        else:
            runs.append([value])
    return ",".join(
        f"{run[0]}-{run[-1]}" if len(run) > 2 else ",".join(map(str, run)) for run in runs
    )
