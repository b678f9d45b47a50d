"""Look for jobs that were changed without ``save``, some of the jobs at a time.

Invariants:

- One call compares the rows of at most ``COMPARED_AT_ONCE`` keys, so its cost doesn't grow with the
  number of jobs.
- Calls that follow one another compare all jobs in turn.
"""

from __future__ import annotations

from datetime import datetime

from django_dcron.jobs.cursors import MOVED_AT_ONCE, move_outdated_cursors
from django_dcron.models.job import JobQuerySet

COMPARED_AT_ONCE = 100_000


class OutdatedCursors:
    def __init__(self) -> None:
        self._from = 0
        """The lowest key that the next call compares."""

    def move(self, now: datetime, jobs: JobQuerySet) -> int:
        """Move the cursors of the next ``jobs`` that were changed without ``save``.

        Returns their number. If it is ``MOVED_AT_ONCE``, the next call continues with the same
        jobs.
        """
        lowest = _lowest_key(jobs, self._from)
        if lowest is None:
            lowest = _lowest_key(jobs, 0)
        if lowest is None:
            return 0
        end = lowest + COMPARED_AT_ONCE
        moved = move_outdated_cursors(now, jobs.filter(pk__gte=lowest, pk__lt=end))
        self._from = lowest if moved >= MOVED_AT_ONCE else end
        return moved


def _lowest_key(jobs: JobQuerySet, minimum: int) -> int | None:
    return jobs.filter(pk__gte=minimum).order_by("pk").values_list("pk", flat=True).first()
