"""Compare a job's occurrences with its rows: a pure function from facts to differences.

Invariant: each occurrence is in exactly one row, its own or one that counts it as missed. A
backfilled run counts only for an occurrence without such a row.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import accumulate, islice
from typing import NamedTuple

from django_dcron.policies.lifecycle import Trigger
from django_dcron.schedules.timetable import MAX_LATE_COUNTED, MICROSECOND, Timetable


class RunColumns(NamedTuple):
    """The columns of a run that the account reads, in the order of its query."""

    job_id: int
    scheduled_at: datetime
    trigger: str
    state: str
    missed_before: int
    missed_from: datetime | None


@dataclass(frozen=True, slots=True)
class Occurrences:
    """The occurrences in ``(after, until]``; if truncated, only the latest ones."""

    after: datetime
    until: datetime
    instants: tuple[datetime, ...]
    truncated: bool = False


@dataclass(frozen=True, slots=True)
class Differences:
    counted_later: int
    """The number of occurrences that a later row counts as missed."""
    missing: tuple[datetime, ...]
    """Occurrences in no row."""
    counted_twice: tuple[datetime, ...]
    """Occurrences in more than one row."""
    off_schedule: tuple[datetime, ...]
    """Times of scheduled runs that aren't occurrences."""
    miscounted: tuple[RunColumns, ...]
    """Rows that count a wrong number of missed occurrences."""


def occurrences(
    timetable: Timetable, phase: datetime, after: datetime, until: datetime, limit: int
) -> Occurrences:
    """Return the timetable's occurrences in the window.

    ``phase`` is one of the occurrences, from which ``@every`` counts.
    """
    start = after if timetable.starts_at is None else max(after, timetable.starts_at - MICROSECOND)
    end = until if timetable.ends_at is None else min(until, timetable.ends_at)
    if interval := timetable.schedule.interval:
        newest = phase + (end - phase) // interval * interval
        number = max(-((start - newest) // interval), 0)  # those after start, including newest
        found = [newest - interval * back for back in range(min(number, limit + 1))][::-1]
    else:
        found = list(timetable.schedule.occurrences(start, end, limit + 1))
        if len(found) > limit:
            found = _latest(timetable, end, limit + 1)
    if len(found) <= limit:
        return Occurrences(after, until, tuple(found))
    return Occurrences(found[1] - MICROSECOND, until, tuple(found[1:]), truncated=True)


def _latest(timetable: Timetable, end: datetime, number: int) -> list[datetime]:
    found: list[datetime] = []
    before = timetable.schedule.previous_before(end + MICROSECOND)
    while before is not None and len(found) < number:
        found.append(before)
        before = timetable.schedule.previous_before(before)
    return found[::-1]


def compare_occurrences(
    expected: Occurrences, rows: Sequence[RunColumns], timetable: Timetable
) -> Differences:
    """Compare occurrences with ``rows``, the job's scheduled and backfilled runs in the window."""
    instants = expected.instants
    claimed = {row.scheduled_at for row in rows if row.trigger == Trigger.SCHEDULE}
    backfilled = {row.scheduled_at for row in rows} - claimed
    counting = _rows_counting_each(instants, rows)
    missing, counted_twice, counted_later = [], [], 0
    for instant, rows_counting_it in zip(instants, counting, strict=True):
        counted_later += rows_counting_it > 0
        rows_of_instant = rows_counting_it + (instant in claimed)
        if rows_of_instant > 1:
            counted_twice.append(instant)
        elif rows_of_instant == 0 and instant not in backfilled:
            missing.append(instant)
    return Differences(
        counted_later,
        tuple(missing),
        tuple(counted_twice),
        tuple(sorted(claimed.difference(instants))),
        tuple(
            row for row in rows if row.missed_before and not _is_missed_count_right(row, timetable)
        ),
    )


def _rows_counting_each(instants: Sequence[datetime], rows: Sequence[RunColumns]) -> list[int]:
    """Return for each occurrence the number of rows that count it as missed."""
    changes = [0] * (len(instants) + 1)
    for row in rows:
        if row.missed_before and row.missed_from:
            changes[bisect_left(instants, row.missed_from)] += 1
            changes[bisect_left(instants, row.scheduled_at)] -= 1
    return list(islice(accumulate(changes), len(instants)))


def _is_missed_count_right(row: RunColumns, timetable: Timetable) -> bool:
    """Return whether the row counts the schedule's occurrences before it since ``missed_from``."""
    if row.missed_from is None or row.missed_from >= row.scheduled_at:
        return False
    if row.missed_before >= MAX_LATE_COUNTED - 1:
        return True  # The count is a lower bound.
    interval = timetable.schedule.interval
    if interval is not None:
        return row.scheduled_at - row.missed_from == row.missed_before * interval
    between = timetable.schedule.occurrences(row.missed_from, row.scheduled_at, MAX_LATE_COUNTED)
    return sum(1 for _ in between) == row.missed_before
