"""Minutes in which many jobs start together, and what `H` in place of their minute would do about it.

Counted are starts: a job that runs each second of a minute starts once in it. A minute is crowded if at least ``MANY``
jobs start in it that could as well start in another, ``TIMES`` as many as start in the average minute, and half as many as
start in every one. A job of every minute could not start in another and is not in the average; one with an `H` or a jitter
does not need to; `@every` and `@at` have no minute. A crowd is dealt with once: its jobs are in no later one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from django_dcron.domain.fields import MINUTE, parse_field
from django_dcron.domain.load import Hours
from django_dcron.domain.schedule import WallClock
from django_dcron.domain.timetable import Timetable

MANY = 10
TIMES = 3
MOST_CROWDS = 3
LEAST_STEP = 5
"""Minutes. A job that starts more often falls together with others wherever it begins."""


@dataclass(frozen=True, slots=True)
class Group:
    """Jobs with the same timetable."""

    timetable: Timetable
    known: datetime | None
    """One of its occurrences, which gives an `@every` schedule its phase."""
    text: str
    """The schedule as they have it."""
    spread: bool
    """Whether they are spread already, by an `H` or a jitter; then the text is the first job's."""
    keys: list[str]
    """The identities from which `H` would draw."""


@dataclass(frozen=True, slots=True)
class Crowd:
    jobs: int
    """How many start in the most crowded minute."""
    minute: int
    """That minute, within its hour."""
    hours: tuple[int, ...]
    """The hours in whose same minute this is a crowd, the fullest first."""
    fewest: int
    """How many start in the least crowded of these."""
    forms: tuple[str, ...]
    """What to write for the minute: `H`, `H/15`."""
    at_most: int
    """How many of them would then start in one minute."""
    texts: tuple[tuple[str, str, int], ...]
    """Their schedules, the most common first: the text, the zone, and how many have it."""


@dataclass(frozen=True, slots=True)
class _Movable:
    """A group that could start in other minutes of its hours."""

    group: Group
    form: str
    starts: frozenset[int]
    """The minutes, of all the hours' minutes."""


def crowds(hours: Hours, groups: Sequence[Group]) -> list[Crowd]:
    """At most ``MOST_CROWDS``, the worst first."""
    starts, steady, movable = 0, 0, []
    for group in groups:
        rule = group.timetable.schedule.rule
        if not isinstance(rule, WallClock):
            continue
        if rule.cron.minute.everything and rule.cron.hour.everything:
            steady += len(group.keys)
            continue
        minutes = frozenset(_starts(hours, rule, group.timetable))
        starts += len(minutes) * len(group.keys)
        if not group.spread and (form := _form(rule.cron.minute.values)):
            movable.append(_Movable(group, form, minutes))
    enough = max(MANY, TIMES * starts / (hours.count * 60), steady / 2)
    return list(_crowds(hours, movable, enough))


def _crowds(hours: Hours, movable: list[_Movable], enough: float) -> Iterator[Crowd]:
    for _ in range(MOST_CROWDS):
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


def _crowd(hours: Hours, peak: int, jobs: int, together: list[_Movable], enough: float) -> Crowd | None:
    """None if `H` would not halve it."""
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
    crowded = sorted((-number, hour) for hour, number in starting.items() if number >= enough)
    return Crowd(
        jobs,
        minute,
        tuple(hour for _, hour in crowded),
        -crowded[-1][0],
        tuple(form for form, _ in forms.most_common()),
        at_most,
        tuple((*schedule, number) for schedule, number in texts.most_common()),
    )


def _starts(hours: Hours, rule: WallClock, timetable: Timetable) -> Iterator[int]:
    for part in hours.parts(rule, timetable):
        for minute in part.minutes(rule.cron.minute.values):
            yield part.real_minute(minute)


def _form(minutes: Sequence[int]) -> str:
    """What with `H` means as much as these minutes; empty if nothing does."""
    if len(minutes) == 1:
        return "H"
    step = minutes[1] - minutes[0]
    if step < LEAST_STEP:
        return ""
    return f"H/{step}" if minutes[0] < step and tuple(minutes) == tuple(range(minutes[0], 60, step)) else ""


def _spread(together: list[_Movable]) -> int:
    """How many would start in one minute of the hour at most if each drew its minute."""
    drawn: Counter[int] = Counter()
    for each in together:
        for key in each.group.keys:
            drawn.update(parse_field(MINUTE, each.form, key).values)
    return max(drawn.values())
