"""Check each move of a cursor by brute force, with the timetable of the verdict.

Invariants:

- A claim moves the cursor to an occurrence. A committed run accounts for each occurrence that the
  cursor passes.
- A new definition puts the cursor on its first occurrence. A committed run accounts for each
  occurrence of the old definition that was due.
- At most a day is checked. Some jobs have no occurrence for weeks.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import NamedTuple

from tests.verdict.timetable import SECOND, NotJudged, Timetable

LONGEST, MICROSECOND = timedelta(days=1), timedelta(microseconds=1)


class Definition(NamedTuple):
    """The columns of a cursor that decide when its job occurs."""

    schedule: str
    timezone: str
    calendar: str | None
    calendar_policy: str
    starts_at: str | None
    ends_at: str | None


def instant(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def _instant_or_none(text: str | None) -> datetime | None:
    return instant(text) if text else None


def passed(definition: Definition, first: str, before: str | None) -> Iterator[str]:
    """Yield the occurrences from ``first`` on that are earlier than ``before``.

    ``first`` is an occurrence. Without ``before``, the cursor has passed all occurrences.
    """
    yield first
    timetable = _timetable(definition, first)
    if timetable is not None:
        for at in timetable.between(instant(first) + SECOND, _last_before(before, first)):
            yield f"{at:%Y-%m-%d %H:%M:%S}"


def is_occurrence(definition: Definition, next_at: str, previous_at: str) -> bool:
    """Return whether ``next_at`` is an occurrence, if ``previous_at`` is one."""
    timetable = _timetable(definition, previous_at)
    return timetable is None or timetable.occurs_at(instant(next_at))


def omitted(definition: Definition, placed_at: str, next_at: str | None) -> datetime | None:
    """Return an occurrence after ``placed_at`` that is earlier than ``next_at``, if there is one.

    Without ``next_at``, the cursor has no occurrence.
    """
    if definition.schedule.startswith("@every"):
        return None
    timetable = _timetable(definition, placed_at)
    if timetable is None:
        return None
    begin = instant(placed_at)
    between = timetable.between(begin, _last_before(next_at, placed_at))
    return next((at for at in between if at > begin), None)


def _last_before(end: str | None, begin: str) -> datetime:
    """Return the last second to check before ``end``."""
    latest = instant(begin) + LONGEST
    return min(instant(end) - MICROSECOND, latest) if end else latest


def _timetable(definition: Definition, phase: str) -> Timetable | None:
    """Return the timetable, or None if the verdict doesn't know this kind of schedule."""
    return _parsed(definition, phase if definition.schedule.startswith("@every") else None)


@lru_cache(maxsize=1000)
def _parsed(definition: Definition, phase: str | None) -> Timetable | None:
    try:
        return Timetable(
            definition.schedule,
            definition.timezone,
            starts_at=_instant_or_none(definition.starts_at),
            ends_at=_instant_or_none(definition.ends_at),
            phase=_instant_or_none(phase),
            calendar=definition.calendar,
            calendar_policy=definition.calendar_policy,
        )
    except NotJudged:
        return None
