"""Look for jobs that were changed without ``save``, some of the jobs at a time.

Invariants:

- One call compares at most ``COMPARED_AT_ONCE`` jobs with their cursors, so its cost doesn't grow
  with the number of jobs.
- Calls that follow one another compare all jobs in turn. Jobs that fail don't keep the place.
"""

from __future__ import annotations

from datetime import datetime

from django_dcron.jobs.cursors import MOVED_AT_ONCE, find_outdated, move_cursors
from django_dcron.models import Job
from django_dcron.models.job import JobQuerySet

COMPARED_AT_ONCE = 100_000


class OutdatedCursors:
    def __init__(self) -> None:
        self._first = 0
        """The lowest key that the next call compares."""

    def move(self, now: datetime, jobs: JobQuerySet) -> int:
        """Move the cursors of the next ``jobs`` that were changed without ``save``.

        Returns their number. The next call continues with the same jobs if there may be more.
        """
        moved, following = _move_from(self._first, now, jobs)
        self._first = following or 0
        return moved


def move_all_outdated(now: datetime, jobs: JobQuerySet) -> int:
    """Move the cursors of all ``jobs`` that were changed without ``save``. Returns their number."""
    total, following = _move_from(0, now, jobs)
    while following is not None:
        moved, following = _move_from(following, now, jobs)
        total += moved
    return total


def _move_from(first: int, now: datetime, jobs: JobQuerySet) -> tuple[int, int | None]:
    """Return how many cursors were moved, and the key to continue from; None after the last job."""
    end = _end_after(first, jobs.db)
    outdated = find_outdated(jobs, first, end)
    moved = move_cursors(outdated, now, jobs.db)
    may_be_more = len(outdated) >= MOVED_AT_ONCE and moved > 0
    return moved, first if may_be_more else end


def _end_after(first: int, using: str) -> int | None:
    """Return the key at which the comparison ends; None if it includes the last job.

    This counts the jobs of all shards and namespaces, because the index of the keys has no others.
    """
    keys = Job.with_deleted.using(using).filter(pk__gte=first).order_by("pk")
    return keys.values_list("pk", flat=True)[COMPARED_AT_ONCE : COMPARED_AT_ONCE + 1].first()
