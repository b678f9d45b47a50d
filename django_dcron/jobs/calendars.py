"""Save and delete calendars, and move the cursors of the jobs that name them.

Invariants:

- A save or deletion checks the version of the calendar (``named_rows``).
- A calendar that a job names can't be deleted.
"""

from __future__ import annotations

from django_dcron.db.now import database_now
from django_dcron.db.routing import alias_for
from django_dcron.exceptions import NotPossible
from django_dcron.jobs.cursors import move_outdated_cursors
from django_dcron.jobs.named_rows import delete_named, save_named
from django_dcron.jobs.row_arguments import require_row
from django_dcron.models import Calendar, Job
from django_dcron.utils.messages import gettext_noop as _


def save_calendar(calendar: Calendar, *, expected_version: int | None = None) -> Calendar:
    """Validate and save ``calendar``, and move the cursors of its jobs if its dates change.

    The cursors move after the commit of the surrounding transaction. From the commit on, nodes
    don't use the old dates. ``expected_version`` and the exceptions are those of ``save``.
    """
    require_row(calendar, Calendar)
    using = alias_for(Calendar)
    # If there are many jobs, or this process dies here, nodes move the other cursors.
    # A lambda, because Django can't log the error of a ``partial``.
    return save_named(
        calendar,
        expected_version=expected_version,
        after_commit=lambda: _move_cursors_of_calendar(calendar.pk, using),
    )


def delete_calendar(calendar: Calendar, *, expected_version: int | None = None) -> None:
    """Delete ``calendar``.

    ``expected_version`` is the version of the calendar as it was read; by default, any version is
    deleted. Raises ``Conflict``, or ``NotPossible`` if a job names the calendar.
    """
    require_row(calendar, Calendar)

    def check_unused(using: str) -> None:
        named_by = Job.objects.using(using).filter(calendar=calendar.pk).first()
        if named_by is not None:
            raise NotPossible(
                _("%(calendar)s can't be deleted, because %(job)s uses it."),
                calendar=str(calendar),
                job=str(named_by),
                code="in_use",
            )

    delete_named(calendar, expected_version=expected_version, check_unused=check_unused)


def _move_cursors_of_calendar(name: str, using: str) -> None:
    move_outdated_cursors(database_now(using), Job.objects.using(using).filter(calendar=name))
