"""Find the occurrences of a timetable at a time and on either side of it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from django_dcron.schedules.calendar import ExclusionPolicy
from django_dcron.schedules.exclusion import without_exclusion
from django_dcron.schedules.schedule import Schedule
from django_dcron.schedules.timetable import MICROSECOND, Timetable

MOVED_SHOWN = 1000


@dataclass(frozen=True, slots=True)
class Nearby:
    inside: tuple[datetime, ...] = ()
    out_of_bounds: tuple[datetime, ...] = ()
    """The schedule falls on these times, but the job starts later or has ended."""
    excluded: tuple[datetime, ...] = ()
    """The schedule falls on these times, but the calendar excludes them."""
    moved: tuple[datetime, ...] = ()
    """The latest times, at most ``MOVED_SHOWN``, that the calendar moved to ``inside[0]``."""
    before: datetime | None = None
    after: datetime | None = None


def nearby(timetable: Timetable, phase: datetime | None, start: datetime, end: datetime) -> Nearby:
    """Return the occurrences in the short period ``[start, end)``, and the nearest around it.

    ``phase`` is any occurrence of an ``@every`` schedule, from which the others are counted.
    Without it, no occurrence of such a schedule is known. Other schedules ignore it.
    """
    schedule, starts_at, ends_at = timetable.schedule, timetable.starts_at, timetable.ends_at
    if schedule.interval and phase is None:
        return Nearby()
    found = _between(schedule, phase, start, end)
    excluded = (
        set(_between(without_exclusion(schedule), phase, start, end)).difference(found)
        if schedule.calendar
        else ()
    )

    def is_in_bounds(instant: datetime) -> bool:
        return (starts_at is None or starts_at <= instant) and (
            ends_at is None or instant <= ends_at
        )

    before = _before(
        schedule, phase, start if ends_at is None else min(start, ends_at + MICROSECOND)
    )
    after = _next_occurrence(
        schedule,
        phase,
        end - MICROSECOND if starts_at is None else max(end - MICROSECOND, starts_at - MICROSECOND),
    )
    inside = tuple(filter(is_in_bounds, found))
    return Nearby(
        inside=inside,
        out_of_bounds=tuple(each for each in found if not is_in_bounds(each)),
        excluded=tuple(sorted(filter(is_in_bounds, excluded))),
        moved=_moved_to(schedule, inside[0]) if inside else (),
        before=before if before and is_in_bounds(before) else None,
        after=after if after and is_in_bounds(after) else None,
    )


def _moved_to(schedule: Schedule, occurrence: datetime) -> tuple[datetime, ...]:
    """Return the times before ``occurrence`` that became this occurrence, the latest first."""
    if schedule.exclusion is not ExclusionPolicy.WINDOW_END or schedule.calendar is None:
        return ()
    with_excluded = without_exclusion(schedule)
    found: list[datetime] = []
    at = with_excluded.previous_before(occurrence)
    while at is not None and len(found) < MOVED_SHOWN and schedule.next_after(at) == occurrence:
        if any(schedule.occurrences(at - MICROSECOND, at)):
            break  # not excluded
        found.append(at)
        at = with_excluded.previous_before(at)
    return tuple(found)


def _between(
    schedule: Schedule, phase: datetime | None, start: datetime, end: datetime
) -> list[datetime]:
    found = []
    occurrence = _next_occurrence(schedule, phase, start - MICROSECOND)
    while occurrence is not None and occurrence < end:
        found.append(occurrence)
        occurrence = _next_occurrence(schedule, phase, occurrence)
    return found


def _next_occurrence(
    schedule: Schedule, phase: datetime | None, instant: datetime
) -> datetime | None:
    if schedule.interval and phase:
        return phase + ((instant - phase) // schedule.interval + 1) * schedule.interval
    return schedule.next_after(instant)


def _before(schedule: Schedule, phase: datetime | None, instant: datetime) -> datetime | None:
    if schedule.interval and phase:
        return phase + (instant - phase - MICROSECOND) // schedule.interval * schedule.interval
    return schedule.previous_before(instant)
