"""When cron runs a line, written from crontab(5) and cron's source, without this package's code."""

from collections.abc import Iterator
from datetime import datetime, timedelta
from itertools import islice

MACROS = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
MONTHS = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]
WEEKDAYS = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"]
BOUNDS = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 7))


def minutes(line: str, after: datetime, count: int) -> list[datetime]:
    """Return the next minutes of a line, in a zone without clock changes."""
    return list(islice(_minutes(line, after), count))


def _minutes(line: str, after: datetime) -> Iterator[datetime]:
    fields = MACROS.get(line, line).split()
    minute, hour, day, month, weekday = (
        _values(field, *bounds) for field, bounds in zip(fields, BOUNDS, strict=True)
    )
    weekday = {number % 7 for number in weekday}
    both = fields[2].startswith("*") or fields[4].startswith("*")
    today = after.replace(hour=0, minute=0, second=0, microsecond=0)
    while True:
        in_month, in_week = today.day in day, today.isoweekday() % 7 in weekday
        if today.month in month and (in_month and in_week if both else in_month or in_week):
            for at in (
                today.replace(hour=h, minute=m) for h in sorted(hour) for m in sorted(minute)
            ):
                if at > after:
                    yield at
        today += timedelta(days=1)


def _values(field: str, low: int, high: int) -> set[int]:
    found: set[int] = set()
    for part in field.lower().split(","):
        span, _, step = part.partition("/")
        if span == "*":
            first, last = low, high
        else:
            start, _, end = span.partition("-")
            first = _number(start)
            last = _number(end) if end else (high if step else first)
        found |= set(range(first, last + 1, int(step or 1)))
    return found


def _number(text: str) -> int:
    if text in MONTHS:
        return MONTHS.index(text) + 1
    return WEEKDAYS.index(text) if text in WEEKDAYS else int(text)
