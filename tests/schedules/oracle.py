"""A slow and simple implementation of cron schedules, to compare the engine with.

It shares no code with the engine. It tries fields value by value, days one by one, and instants
second by second (or minute by minute, where only whole minutes can match). It asks zoneinfo for the
local time.
"""

import re
import struct
from calendar import monthrange
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from importlib import resources
from itertools import pairwise
from pathlib import Path
from zoneinfo import TZPATH, ZoneInfo

SECOND = timedelta(seconds=1)
THREE_HOURS = timedelta(hours=3)
NAMES = {
    **dict(
        zip(
            ["JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"],
            range(1, 13),
            strict=True,
        )
    ),
    **dict(zip(["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"], range(7), strict=True)),
}
RANGES = ((0, 59), (0, 59), (0, 23), (1, 31), (1, 12), (0, 6), (1970, 2099))


class Oracle:
    """A cron expression of 5, 6 or 7 fields without H."""

    def __init__(self, text: str) -> None:
        fields = text.upper().split()
        self.fields = ["0", *fields] if len(fields) == 5 else fields
        self.fixed = not any(field.startswith("*") for field in self.fields[:3])
        self.times = [
            {value for value in range(low, high + 1) if _plain(field, value, low, high)}
            for field, (low, high) in zip(self.fields[:3], RANGES, strict=False)
        ]
        self.day = lru_cache(maxsize=None)(self._day)

    def _day(self, day: date) -> bool:
        month, year = self.fields[4], self.fields[6] if len(self.fields) == 7 else "*"
        if not _plain(month, day.month, 1, 12) or not (
            year == "*" or _plain(year, day.year, 1970, 2099)
        ):
            return False
        dom, dow = self.fields[3], self.fields[5]
        by_month = any(_month_day(item, day) for item in dom.split(","))
        by_week = any(_week_day(item, day) for item in dow.split(","))
        both = dom[0] in "*?" or dow[0] in "*?"
        return (by_month and by_week) if both else (by_month or by_week)

    def matches(self, local: datetime) -> bool:
        """Return whether the expression matches the local time ``local``."""
        second, minute, hour = self.times
        in_time = local.second in second and local.minute in minute and local.hour in hour
        return in_time and self.day(local.date())

    def occurrences(
        self, zone: ZoneInfo, after: datetime, until: datetime, step: timedelta
    ) -> Iterator[datetime]:
        """Yield the occurrences in `after..until` (`after` excluded), in steps of `step`."""
        at = after + step
        while at <= until:
            if self._happens(zone, at, step):
                yield at
            at += step

    def _happens(self, zone: ZoneInfo, at: datetime, step: timedelta) -> bool:
        local, before = at.astimezone(zone), (at - step).astimezone(zone)
        reading = local.replace(tzinfo=None)
        if not self.fixed:
            return self.matches(reading)
        jump = reading - before.replace(tzinfo=None) - step
        if timedelta(0) < jump <= THREE_HOURS:
            skipped = (reading - step * n for n in range(1, jump // step + 1))
            if any(self.matches(time) for time in skipped):
                return True
        first_pass = local.replace(fold=0).astimezone(UTC)
        repeated = timedelta(0) < at - first_pass <= THREE_HOURS
        return self.matches(reading) and not repeated


def _plain(field: str, value: int, low: int, high: int) -> bool:
    """Return whether a field of `*`, values, ranges and steps contains ``value``."""
    return any(_item(item, value, low, high) for item in field.split(","))


def _item(item: str, value: int, low: int, high: int) -> bool:
    span, _, step = item.partition("/")
    if span == "*":
        return (value - low) % int(step or 1) == 0
    first, dash, last = (NAMES.get(part, part) for part in span.partition("-"))
    start = int(first)
    if not dash and not step:
        return value == start
    end = int(last) if dash else high
    return start <= value <= end and (value - start) % int(step or 1) == 0


def _month_day(item: str, day: date) -> bool:
    length = monthrange(day.year, day.month)[1]
    working = [n for n in range(1, length + 1) if day.replace(day=n).weekday() < 5]
    if item == "?":
        return True
    if item == "L":
        return day.day == length
    if item == "LW":
        return day.day == working[-1]
    if item.startswith("L-"):
        return length - day.day == int(item[2:])
    if item.endswith("W"):
        wanted = int(item[:-1])
        # A tie is impossible: Friday is nearer to Saturday, and Monday is nearer to Sunday.
        return wanted <= length and day.day == min(working, key=lambda n: abs(n - wanted))
    return _item(item, day.day, 1, 31)


def _week_day(item: str, day: date) -> bool:
    weekday = day.isoweekday() % 7
    if item == "?":
        return True
    if item == "L":
        return weekday == 6
    if match := re.fullmatch("(.+)(?:L|#(.))", item):
        same = [
            n
            for n in range(1, 32)
            if n <= monthrange(day.year, day.month)[1] and (n - day.day) % 7 == 0
        ]
        wanted = int(NAMES.get(match[1], match[1])) % 7
        number = same.index(day.day) + 1
        return weekday == wanted and number == (int(match[2]) if match[2] else len(same))
    # 7 is Sunday too, also as the end of a range. A step from a value ends at Saturday.
    span, slash, step = item.partition("/")
    span = re.sub("(?<=-)SUN$", "7" if not span.startswith(("SUN", "0")) else "0", span)
    item = span + slash + step
    return _item(item, weekday, 0, 6) or (
        weekday == 0 and "*" not in item and _item(item, 7, 0, 7 if "-" in item else 6)
    )


def transitions(zone: str) -> list[tuple[datetime, timedelta]]:
    """Read the zone's changes of UTC offset from its tz database file: instants and shifts."""
    content = _zone_file(zone)
    first = _counts(content, 0)
    start = 44 + first[3] * 5 + first[4] * 6 + first[5] + first[2] * 8 + first[1] + first[0]
    _, _, _, times, types, _ = _counts(content, start)
    start += 44
    instants = struct.unpack_from(f">{times}q", content, start)
    kinds = content[start + 8 * times : start + 9 * times]
    offsets = [
        struct.unpack_from(">l", content, start + 9 * times + 6 * n)[0] for n in range(types)
    ]
    offsets_in_order = [offsets[0], *(offsets[kind] for kind in kinds)]
    return [
        (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=at), timedelta(seconds=new - old))
        for at, (old, new) in zip(instants, pairwise(offsets_in_order), strict=True)
        if new != old
    ]


def _counts(content: bytes, start: int) -> tuple[int, ...]:
    return struct.unpack_from(">6l", content, start + 20)


def _zone_file(zone: str) -> bytes:
    for folder in TZPATH:
        path = Path(folder, zone)
        if path.is_file():
            return path.read_bytes()
    return resources.files("tzdata").joinpath("zoneinfo", *zone.split("/")).read_bytes()
