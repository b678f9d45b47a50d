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
        end = _end_after(self._first, jobs.db)
        outdated = find_outdated(jobs, self._first, end)
        moved = move_cursors(outdated, now, jobs.db)
        if len(outdated) < MOVED_AT_ONCE or not moved:
            self._first = end or 0
        return moved

    def move_all(self, now: datetime, jobs: JobQuerySet) -> int:
        """Compare all jobs once, whatever was compared before. Returns the number of moves."""
        self._first = 0
        moved = self.move(now, jobs)
        while self._first:
            moved += self.move(now, jobs)
        return moved


def _end_after(first: int, using: str) -> int | None:
    """Return the key at which the comparison ends; None if it includes the last job.

    This counts the jobs of all shards and namespaces, because the index of the keys has no others.
    """
    keys = Job.with_deleted.using(using).filter(pk__gte=first).order_by("pk")
    return keys.values_list("pk", flat=True)[COMPARED_AT_ONCE : COMPARED_AT_ONCE + 1].first()
