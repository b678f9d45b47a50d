"""Save and delete calendars, and move the cursors of the jobs that name them.

Invariants:

- A save or deletion names the version of the calendar that it read. If the row has another version,
  it raises ``Conflict`` and writes nothing.
- A calendar that a job names can't be deleted.
"""

from __future__ import annotations

from django.db import IntegrityError, transaction

from django_dcron.db.contention import despite_contention
from django_dcron.db.now import database_now
from django_dcron.db.routing import alias_for
from django_dcron.exceptions import NotPossible
from django_dcron.jobs.audit.recording import record_deletion, record_saves
from django_dcron.jobs.cursors import move_outdated_cursors
from django_dcron.jobs.locking import lock_named
from django_dcron.models import Calendar, Job
from django_dcron.utils.messages import gettext_noop as _


def save_calendar(calendar: Calendar, *, expected_version: int | None = None) -> Calendar:
    """Validate and save ``calendar``, and move the cursors of its jobs if its dates change.

    The cursors move after the commit of the surrounding transaction. From then on, nodes don't use
    the old dates. ``expected_version`` and the exceptions are those of ``save``.
    """
    using = alias_for(Calendar)
    calendar.full_clean()
    is_new, version = calendar._state.adding, calendar.version
    try:
        with transaction.atomic(using=using):
            before = None
            if not is_new:
                expected = version if expected_version is None else expected_version
                before = _lock_calendar(calendar.pk, expected, using)
                calendar.version = expected + 1
            calendar.save(using=using, force_insert=is_new)
            record_saves([(calendar, before)], using)
            # If there are many jobs, or this process dies here, nodes move the other cursors.
            # A lambda, because Django can't log the error of a ``partial``.
            transaction.on_commit(
                lambda: _move_cursors_of_calendar(calendar.pk, using), using=using, robust=True
            )
    except BaseException as error:
        calendar.version, calendar._state.adding = version, is_new
        if isinstance(error, IntegrityError):
            calendar.full_clean()  # another process may have taken the name
        raise
    return calendar


def delete_calendar(calendar: Calendar, *, expected_version: int | None = None) -> None:
    """Delete ``calendar``.

    ``expected_version`` is the version of the calendar as it was read; by default, any version is
    deleted. Raises ``Conflict``, or ``NotPossible`` if a job
    names the calendar.
    """
    using = alias_for(Calendar)
    despite_contention(lambda: _delete_calendar(calendar, expected_version, using), using)


def _delete_calendar(calendar: Calendar, expected_version: int | None, using: str) -> None:
    with transaction.atomic(using=using):
        row = _lock_calendar(calendar.pk, expected_version, using)
        # A save of a job that is about to name the calendar waits for this lock and then fails.
        named_by = Job.objects.using(using).filter(calendar=calendar.pk).first()
        if named_by is not None:
            raise NotPossible(
                _("%(calendar)s can't be deleted, because %(job)s uses it."),
                calendar=str(calendar),
                job=str(named_by),
                code="in_use",
            )
        record_deletion(row, using)
        Calendar.objects.using(using).filter(pk=calendar.pk).delete()


def _lock_calendar(name: str, expected_version: int | None, using: str) -> Calendar:
    deleted = _("The calendar has been deleted. Nothing was saved.")
    return lock_named(Calendar, name, expected_version, using, deleted)


def _move_cursors_of_calendar(name: str, using: str) -> None:
    move_outdated_cursors(database_now(using), Job.objects.using(using).filter(calendar=name))
