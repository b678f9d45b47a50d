"""Preview the next occurrences of a job, saved or not."""

from __future__ import annotations

from datetime import datetime

from django_dcron.db.now import database_now
from django_dcron.db.routing import alias_for
from django_dcron.jobs import placement
from django_dcron.jobs.row_arguments import require_row
from django_dcron.models import Cursor, Job


def preview(job: Job, count: int = 10, *, after: datetime | None = None) -> list[datetime]:
    """Return the next ``count`` occurrences of a job, as if the job were enabled.

    The occurrences are aware UTC datetimes. The job needn't be saved. ``after`` is an aware
    datetime to begin from instead of now. Raises ``InvalidSchedule``.
    """
    require_row(job, Job)
    using = alias_for(Job)
    timetable = placement.timetable_of(job)
    # Not from the cursor: it has passed the claimed occurrences, which are still upcoming.
    phase = _phase(job, using) if timetable.schedule.interval else None
    occurrence = timetable.first_after(after or database_now(using), phase)
    occurrences: list[datetime] = []
    while occurrence is not None and len(occurrences) < count:
        occurrences.append(occurrence)
        occurrence = timetable.next_after(occurrence)
    return occurrences


def _phase(job: Job, using: str) -> datetime | None:
    """Return the occurrence from which an interval is counted, or None if there is none."""
    cursor = Cursor.objects.using(using).filter(pk=job.pk).first() if job.pk else None
    if cursor is None:
        return None
    return cursor.previous_at or (
        cursor.next_at if placement.matches_definition(cursor, job) else None
    )
