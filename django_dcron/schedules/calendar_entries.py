"""Write the entries of a calendar, which ``calendar_text`` parses."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import date, datetime, time, timedelta

from django_dcron.schedules.days import DAY
from django_dcron.utils.batches import in_batches

ENTRIES_PER_LINE = 5
MIDNIGHT = time()


def entries_of_time(begin: datetime, stop: datetime) -> list[str]:
    """Return the entries for the local time from ``begin`` to ``stop``, in whole minutes."""
    begin = begin.replace(second=0, microsecond=0)
    if stop.second or stop.microsecond:
        stop = stop.replace(second=0, microsecond=0) + timedelta(minutes=1)
    if begin.time() == stop.time() == MIDNIGHT:
        return [_dates(begin.date(), stop.date() - DAY)]
    if stop - begin < DAY:
        return [f"{begin:%Y-%m-%d} {clock_range(begin, stop)}"]
    found = []
    first, last = begin.date(), stop.date()
    if begin.time() != MIDNIGHT:
        found.append(f"{first} {begin:%H:%M}-24:00")
        first += DAY
    if first < last:
        found.append(_dates(first, last - DAY))
    if stop.time() != MIDNIGHT:
        found.append(f"{last} 00:00-{stop:%H:%M}")
    return found


def _dates(first: date, last: date) -> str:
    return f"{first}" if first == last else f"{first}..{last}"


def clock_range(begin: datetime, stop: datetime) -> str:
    """Return the times of day of an entry, such as ``22:00-24:00``."""
    end = "24:00" if stop.time() == MIDNIGHT else f"{stop:%H:%M}"
    return f"{begin:%H:%M}-{end}"


def entry_lines(entries: Sequence[str], comment: str) -> Iterator[str]:
    """Yield lines of a few entries each, the first one with the comment if it isn't empty."""
    end = f" # {comment}" if comment else ""
    for batch in in_batches(entries, ENTRIES_PER_LINE):
        yield ", ".join(batch) + end
        end = ""
