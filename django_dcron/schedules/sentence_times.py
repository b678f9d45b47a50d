"""Read the times of day in an English sentence, and write them as fields of cron text."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import groupby

_CLOCK = r"(?:noon|midnight|\d{1,2}(?::\d{2})?(?: ?[ap]m)?)"
_AT_TIMES = rf"\bat ({_CLOCK}(?: and (?:at )?{_CLOCK})*)(?= |$)"
_CLOCK_WITHOUT_AT = r"(?<!at )(?<!and )(?<![-:\d])\b\d{1,2}(?::\d{2}(?: ?[ap]m)?| ?[ap]m)(?= |$)"
_BOUND = rf"(?:at )?({_CLOCK})"
_BETWEEN = rf"\b(?:between|from) {_BOUND} (?:and|to|until|till|through) {_BOUND}(?= |$)"
_PART_OF_DAY = (
    r"\b(?:(?P<every>every|each) |in the |at (?=night))?(?P<part>morning|afternoon|evening|night)\b"
    r"(?! (?:and|to|through|until)\b| ?-)"  # another day or time follows
)
PARTS_OF_DAY = frozenset({"morning", "afternoon", "evening", "night"})
_ALL_DAYS = frozenset({"", "daily", "every day", "each day"})
_HOURS_OF_PART = {
    "morning": {hour: hour for hour in range(12)},
    "afternoon": {12: 12} | {hour % 12: hour for hour in range(13, 19)},
    "evening": {hour % 12: hour for hour in range(17, 24)},
    "night": {hour: hour for hour in range(6)} | {hour % 12: hour for hour in range(20, 24)},
}
"""The usual hours of each part of the day, by the hour on a clock of 12 hours."""

Time = tuple[int, int]
"""Hour and minute."""


def without_match(found: re.Match[str]) -> str:
    """Return the other words of the searched text."""
    words = found.string
    return " ".join(f"{words[: found.start()]} {words[found.end() :]}".split())


def with_at(words: str) -> str:
    """Return the sentence with "at" before each time that lacks it."""
    words = re.sub(_CLOCK_WITHOUT_AT, r"at \g<0>", words)
    return re.sub(r"^(?:noon|midnight)\b", r"at \g<0>", words)


def take_times(words: str) -> tuple[str, list[Time] | None]:
    """Return the other words and the times; None if a time is impossible.

    With a part of the day, the times must ascend: in "at 8 and 6 in the evening", 8 may be a time
    in the morning. The hours after midnight belong to the night of the previous day, so they are
    only understood for all days.
    """
    words, part = _take_part_of_day(words)
    found = re.search(_AT_TIMES, words)
    if found is None:
        return words, None if part else []
    others = without_match(found)
    texts = re.split(r" and (?:at )?", found[1])
    times = [_time_in(part, text) if part else _time(text) for text in texts]
    valid = [time for time in times if time is not None]
    is_clear = not part or (
        valid == sorted(set(valid))
        and (part != "night" or others in _ALL_DAYS or all(hour >= 12 for hour, _ in valid))
    )
    return others, sorted(set(valid)) if is_clear and len(valid) == len(times) else None


def _take_part_of_day(words: str) -> tuple[str, str]:
    """Return the sentence without its part of the day, such as "morning", and this part."""
    words = re.sub(r"^nightly\b", "every night", words)
    if not (found := re.search(_PART_OF_DAY, words)):
        return words, ""
    days = "every day" if found["every"] else ""
    others = f"{words[: found.start()]} {days} {words[found.end() :]}"
    return " ".join(others.split()), found["part"]


def _time_in(part: str, text: str) -> Time | None:
    """Return the time in a part of the day: "8" is 20:00 in the evening."""
    time = _time(text)
    if time is None:
        return None
    hour, minute = time
    hours = _HOURS_OF_PART[part]
    if hour in hours.values():
        return time
    is_exact = text.startswith("0") or text.endswith("m")
    return None if is_exact or hour not in hours else (hours[hour], minute)


def take_hours(words: str) -> tuple[str, tuple[Time | None, Time | None] | None]:
    """Return the other words and the bounds of the time of day, if any are named."""
    if not (found := re.search(_BETWEEN, words)):
        return words, None
    others = without_match(found)
    bounds = found[1], found[2]
    if any(bound.isdigit() for bound in bounds) and any(bound.endswith("m") for bound in bounds):
        return others, (None, None)  # "1 and 5pm" may begin at 1am or 1pm
    return others, (_time(bounds[0]), _time(bounds[1]))


def hours_field(between: tuple[Time | None, Time | None], number: int, unit: str) -> str:
    """Return the hours field of an interval between two times; empty if they aren't whole hours.

    Between 9 and 17, every ten minutes ends at 16:50, and every hour ends at 17:00.
    """
    first, last = between
    if first is None or last is None or first[1] or last[1]:
        return ""
    start, end = first[0], last[0] or 24
    if unit != "hour":
        end -= 1
    if not start < end <= 23:
        return ""
    step = f"/{number}" if unit == "hour" and number > 1 else ""
    return f"{start}-{end}{step}"


def clock_fields(times: Iterable[Time]) -> list[str]:
    """Return minute and hour, once for each minute."""
    by_minute = sorted((minute, hour) for hour, minute in times)
    return [
        f"{minute} {','.join(str(hour) for _minute, hour in group)}"
        for minute, group in groupby(by_minute, key=lambda pair: pair[0])
    ]


def _time(text: str) -> Time | None:
    if text in {"noon", "midnight"}:
        return (12 if text == "noon" else 0), 0
    found = re.fullmatch(r"(\d+)(?::(\d+))?(?: ?([ap])m)?", text)
    assert found  # noqa: S101 (the text has matched _CLOCK)
    hour, minute, half = int(found[1]), int(found[2] or 0), found[3]
    if half:
        if not 1 <= hour <= 12:
            return None
        hour = hour % 12 + (12 if half == "p" else 0)
    return (hour, minute) if hour < 24 and minute < 60 else None
