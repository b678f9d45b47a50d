"""Preview the next occurrences of a job, saved or not."""

from __future__ import annotations

from datetime import datetime

from django_dcron.db.now import database_now
from django_dcron.db.routing import alias_for
from django_dcron.jobs import placement
from django_dcron.jobs.row_arguments import require_row
from django_dcron.models import Cursor, Job
from django_dcron.schedules.timetable import Timetable


def preview(job: Job, count: int = 10, *, after: datetime | None = None) -> list[datetime]:
    """Return the next ``count`` occurrences of a job, as if the job were enabled.

    The occurrences are aware UTC datetimes. The job needn't be saved. ``after`` is an aware
    datetime to begin from instead of now. Raises ``InvalidSchedule``.
    """
    require_row(job, Job)
    timetable = placement.timetable_of(job)
    return list_occurrences(timetable, count, after, interval_phase(job, timetable))


def list_occurrences(
    timetable: Timetable, count: int, after: datetime | None, phase: datetime | None
) -> list[datetime]:
    """Return up to ``count`` occurrences after ``after``, or after now.

    ``phase``: the instant from which an interval is counted.
    """
    occurrence = timetable.first_after(after or database_now(alias_for(Job)), phase)
    occurrences: list[datetime] = []
    while occurrence is not None and len(occurrences) < count:
        occurrences.append(occurrence)
        occurrence = timetable.next_after(occurrence)
    return occurrences


def interval_phase(job: Job, timetable: Timetable) -> datetime | None:
    """Return the occurrence from which an interval without a start is counted.

    Returns None if there is none, so that the interval is counted from now. It isn't the next
    occurrence of the cursor if there is an earlier one: the cursor has passed the claimed
    occurrences, which are still upcoming.
    """
    if timetable.schedule.interval is None or job.pk is None:
        return None
    cursor = Cursor.objects.using(alias_for(Job)).filter(pk=job.pk).first()
    if cursor is None:
        return None
    return cursor.previous_at or (
        cursor.next_at if placement.matches_definition(cursor, job) else None
    )
