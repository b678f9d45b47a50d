"""Save and delete limits.

Invariants:

- A save or deletion names the version of the limit that it read. If the row has another version, it
  raises ``Conflict`` and writes nothing.
- A limit that a job names, or in which a run has a place, can't be deleted.
- A save locks the limit's row, as runs do that start and end. So each run starts under the limit
  before the change or the one after it. A node wakes the runs for which a raised limit has room.
"""

from __future__ import annotations

from django.db import IntegrityError, transaction

from django_dcron.db.contention import despite_contention
from django_dcron.db.routing import alias_for
from django_dcron.exceptions import NotPossible
from django_dcron.jobs.audit.recording import record_deletion, record_saves
from django_dcron.jobs.locking import lock_named
from django_dcron.models import Job, Limit, LimitPlace
from django_dcron.utils.messages import gettext_noop as _


def save_limit(limit: Limit, *, expected_version: int | None = None) -> Limit:
    """Validate and save ``limit``. ``expected_version`` and the exceptions are those of ``save``.

    Runs that have started keep their places, even if more of them execute than a lowered limit
    allows.
    """
    using = alias_for(Limit)
    limit.full_clean()
    is_new, version = limit._state.adding, limit.version
    try:
        with transaction.atomic(using=using):
            before = None
            if not is_new:
                expected = version if expected_version is None else expected_version
                before = _lock_limit(limit.pk, expected, using)
                limit.version = expected + 1
            limit.save(using=using, force_insert=is_new)
            record_saves([(limit, before)], using)
    except BaseException as error:
        limit.version, limit._state.adding = version, is_new
        if isinstance(error, IntegrityError):
            limit.full_clean()  # another process may have taken the name
        raise
    return limit


def delete_limit(limit: Limit, *, expected_version: int | None = None) -> None:
    """Delete ``limit``.

    ``expected_version`` is the version of the limit as it was read; by default, any version is
    deleted. Raises ``Conflict``, or ``NotPossible`` if a job names the limit or a run needs it.
    """
    using = alias_for(Limit)
    despite_contention(lambda: _delete_limit(limit, expected_version, using), using)


def _delete_limit(limit: Limit, expected_version: int | None, using: str) -> None:
    with transaction.atomic(using=using):
        row = _lock_limit(limit.pk, expected_version, using)
        # A save of a job that is about to name the limit waits for this lock and then fails.
        named_by = Job.objects.using(using).filter(limit=limit.pk).first()
        if named_by is not None:
            raise NotPossible(
                _("%(limit)s can't be deleted, because %(job)s uses it."),
                limit=str(limit),
                job=str(named_by),
                code="in_use",
            )
        places = LimitPlace.objects.using(using).filter(limit=limit.pk).select_related("run__job")
        place = places.first()
        if place is not None:
            raise NotPossible(
                _("%(limit)s can't be deleted before the end of the run %(run)s."),
                limit=str(limit),
                run=str(place.run),
                code="in_use",
            )
        record_deletion(row, using)
        Limit.objects.using(using).filter(pk=limit.pk).delete()


def _lock_limit(name: str, expected_version: int | None, using: str) -> Limit:
    deleted = _("The limit has been deleted. Nothing was saved.")
    return lock_named(Limit, name, expected_version, using, deleted)
