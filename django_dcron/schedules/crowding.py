"""Find minutes in which many jobs start together, and predict how ``H`` would spread them.

A start is a job's first occurrence in a minute: a job that runs each second of a minute starts once
in it.

Only movable jobs can form a crowd. These jobs aren't movable:

- A job that runs every minute: it can't move, and it isn't counted in the average.
- A job with an ``H`` or a jitter: it is already spread.
- A job with ``@every`` or ``@at``: it has no minute field, and it isn't counted in the average.
- A job with a recurrence rule: it has no minute field.
- A job with several schedule lines: it isn't counted in the average.
- A job whose minutes no ``H`` form can express, or that starts more often than every 5 minutes.

Invariants:

- A minute is crowded if enough movable jobs start in it. Their number is at least ``MANY``,
  ``TIMES`` the average of all minutes, and half the number of jobs that run every minute.
- A crowd is reported only if ``H`` would at least halve it.
- A job is in at most one crowd.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from django_dcron.schedules.fields import MINUTE, parse_field
from django_dcron.schedules.load import RealHours
from django_dcron.schedules.rules import WallClock
from django_dcron.schedules.timetable import Timetable

MANY = 10
TIMES = 3
MAX_CROWDS = 3
LEAST_STEP = 5
"""Minutes between two starts. A job that starts more often coincides with others anyway."""


@dataclass(frozen=True, slots=True)
class TimetableGroup:
    """Jobs with the same timetable."""

    timetable: Timetable
    phase: datetime | None
    """One of its occurrences, which sets the phase of an ``@every`` schedule."""
    text: str
    """The schedule as written in the jobs."""
    spread: bool
    """Whether an ``H`` or a jitter already spreads the jobs; ``text`` is then the first job's."""
    keys: list[str]
    """The hash keys from which ``H`` would draw."""


@dataclass(frozen=True, slots=True)
class CrowdedMinute:
    jobs: int
    """The number of jobs that start in the most crowded minute."""
    minute: int
    """This minute within its hour, from 0 to 59."""
    hours: tuple[int, ...]
    """The hours in which the same minute is crowded, the most crowded first."""
    fewest: int
    """The number of jobs that start in the least crowded of these minutes."""
    forms: tuple[str, ...]
    """Replacements for the minute field: ``H``, ``H/15``."""
    at_most: int
    """The maximum number of these jobs in one minute after the replacement."""
    texts: tuple[tuple[str, str, int], ...]
    """The jobs' schedules, most common first: text, time zone and number of jobs."""


@dataclass(frozen=True, slots=True)
class _MovableGroup:
    """A group that could start in other minutes of its hours."""

    group: TimetableGroup
    form: str
    starts: frozenset[int]
    """The minutes in which it starts, numbered from 0 over all hours."""


def crowded_minutes_of(hours: RealHours, groups: Sequence[TimetableGroup]) -> list[CrowdedMinute]:
    """Return at most ``MAX_CROWDS`` crowds, the worst first."""
    starts, steady, movable = 0, 0, []
    for group in groups:
        rule = group.timetable.schedule.rule
        if not isinstance(rule, WallClock):
            continue
        if rule.cron.minute.everything and rule.cron.hour.everything:
            steady += len(group.keys)
            continue
        minutes = frozenset(_start_minutes(hours, rule, group.timetable))
        starts += len(minutes) * len(group.keys)
        if group.spread or rule.cron.recurrence:
            continue
        if form := hash_form(rule.cron.minute.values):
            movable.append(_MovableGroup(group, form, minutes))
    enough = max(MANY, TIMES * starts / (hours.count * 60), steady / 2)
    return list(_crowds(hours, movable, enough))


def _crowds(
    hours: RealHours, movable: list[_MovableGroup], enough: float
) -> Iterator[CrowdedMinute]:
    for _ in range(MAX_CROWDS):
        starting: Counter[int] = Counter()
        for each in movable:
            starting.update(dict.fromkeys(each.starts, len(each.group.keys)))
        peak, jobs = max(starting.items(), key=lambda item: (item[1], -item[0]), default=(0, 0))
        if jobs < enough:
            return
        together = [each for each in movable if peak in each.starts]
        if crowd := _crowd(hours, peak, jobs, together, enough):
            yield crowd
        movable = [each for each in movable if peak not in each.starts]


def _crowd(
    hours: RealHours, peak: int, jobs: int, together: list[_MovableGroup], enough: float
) -> CrowdedMinute | None:
    """Return the crowd at minute ``peak``, or None if ``H`` wouldn't at least halve it."""
    at_most = _spread(together)
    if at_most * 2 > jobs:
        return None
    minute = peak % 60
    starting: Counter[int] = Counter()
    texts: Counter[tuple[str, str]] = Counter()
    forms: Counter[str] = Counter()
    for each in together:
        number = len(each.group.keys)
        starting.update({start // 60: number for start in each.starts if start % 60 == minute})
        texts[each.group.text, each.group.timetable.schedule.timezone] += number
        forms[each.form] += number
    crowded = {hour: number for hour, number in starting.items() if number >= enough}
    return CrowdedMinute(
        jobs=jobs,
        minute=minute,
        hours=tuple(sorted(crowded, key=lambda hour: (-crowded[hour], hour))),
        fewest=min(crowded.values()),
        forms=tuple(form for form, _ in forms.most_common()),
        at_most=at_most,
        texts=tuple((*schedule, number) for schedule, number in texts.most_common()),
    )


def _start_minutes(hours: RealHours, rule: WallClock, timetable: Timetable) -> Iterator[int]:
    for part in hours.parts(rule, timetable):
        for minute in part.minutes(rule.cron.minute.values):
            yield part.real_minute(minute)


def hash_form(minutes: Sequence[int]) -> str:
    """Return the ``H`` form equivalent to these minutes, or an empty string if there is none.

    A step that doesn't divide the hour has none: some jobs would draw fewer minutes.
    """
    if len(minutes) == 1:
        return "H"
    first, step = minutes[0], minutes[1] - minutes[0]
    is_even = first < step and tuple(minutes) == tuple(range(first, 60, step))
    return f"H/{step}" if step >= LEAST_STEP and 60 % step == 0 and is_even else ""


def _spread(together: list[_MovableGroup]) -> int:
    """Return the maximum number of jobs in one minute of the hour if each job drew its minute."""
    drawn: Counter[int] = Counter()
    for each in together:
        for key in each.group.keys:
            drawn.update(parse_field(MINUTE, each.form, key).values)
    return max(drawn.values())
