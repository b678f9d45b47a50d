"""Save, delete and lock calendars and limits, the rows whose primary key is the name.

Invariants:

- A save or deletion names the version of the row that it read. If the row has another version, it
  raises ``Conflict`` and writes nothing.
- After a failed save, the row in memory has the version it had before.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from django.db import IntegrityError, transaction

from django_dcron.db.contention import despite_contention
from django_dcron.db.routing import alias_for
from django_dcron.exceptions import Conflict
from django_dcron.jobs.audit.recording import record_deletion, record_saves
from django_dcron.jobs.locking import changed_by_another
from django_dcron.models import Calendar, Limit
from django_dcron.utils.messages import gettext_noop as _

N = TypeVar("N", Calendar, Limit)

_DELETED: dict[type[Calendar | Limit], str] = {
    Calendar: _("The calendar has been deleted. Nothing was saved."),
    Limit: _("The limit has been deleted. Nothing was saved."),
}


def save_named(
    row: N, *, expected_version: int | None, after_commit: Callable[[], None] | None = None
) -> N:
    """Validate and save ``row``, and write the audit log.

    ``expected_version`` and the exceptions are those of ``control.save``. ``after_commit`` is
    called after the commit of the surrounding transaction.
    """
    using = alias_for(type(row))
    row.full_clean()
    is_new, version = row._state.adding, row.version
    try:
        with transaction.atomic(using=using):
            before = None
            if not is_new:
                expected = version if expected_version is None else expected_version
                before = lock_named(type(row), row.pk, expected, using)
                row.version = expected + 1
            row.save(using=using, force_insert=is_new)
            record_saves([(row, before)], using)
            if after_commit is not None:
                transaction.on_commit(after_commit, using=using, robust=True)
    except BaseException as error:
        row.version, row._state.adding = version, is_new
        if isinstance(error, IntegrityError):
            row.full_clean()  # another process may have taken the name
        raise
    return row


def delete_named(
    row: N, *, expected_version: int | None, check_unused: Callable[[str], None]
) -> None:
    """Delete ``row``, and write the audit log.

    ``expected_version`` is the version of the row as it was read; None accepts any version.
    ``check_unused`` gets the alias of the database while the row is locked, and raises
    ``NotPossible`` if the row is needed. Also raises ``Conflict``.
    """
    model, using = type(row), alias_for(type(row))

    def delete() -> None:
        with transaction.atomic(using=using):
            before = lock_named(model, row.pk, expected_version, using)
            # A save of a job that is about to name the row waits for this lock and then fails.
            check_unused(using)
            record_deletion(before, using)
            model._default_manager.using(using).filter(pk=row.pk).delete()

    despite_contention(delete, using)


def lock_named(model: type[N], name: str, expected_version: int | None, using: str) -> N:
    """Lock a calendar or a limit and check its version. None accepts any version.

    Raises ``Conflict`` if the row was deleted or has another version.
    """
    row = model._default_manager.using(using).select_for_update().filter(pk=name).first()
    if row is None:
        raise Conflict(_DELETED[model], code="deleted")
    if expected_version is not None and row.version != expected_version:
        raise changed_by_another(row)
    return row
