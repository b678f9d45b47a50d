"""Noting who did what, in Django's own log: what was done in the admin, and by the REST API, is there side by side (``changes``
says what an entry holds).

Invariants:

- It names a user that the project's table has: one that only a token speaks of leaves no entry, nor is there any without the admin.
- What is noted has been done, and is committed. A deed that changed no field of a job is noted as its text alone.
- Who ran a job is in the history of the run: programs do so all day, and what is on record of jobs is read with their pages.
- An entry that cannot be written takes nothing with it of the transaction it is in.
"""

from __future__ import annotations

import json
from typing import Any

from django.apps import apps
from django.contrib.auth import get_user_model
from django.db import router, transaction
from django.db.models import Model

from django_dcron.models import Calendar, Job
from django_dcron.observability.changes import write
from django_dcron.observability.differences import Values, changed, differences, values_of

ADDITION, CHANGE, DELETION = 1, 2, 3
"""As Django's log has them."""


def note_addition(user: Any, row: Job | Calendar) -> None:
    _note(user, row, row.pk, ADDITION, write([{"added": {}}], [], row.version))


def note_edit(user: Any, row: Job | Calendar, before: Values) -> None:
    """``before``: what ``values_of`` said of it as it was read for the change."""
    changes = differences(before, values_of(row))
    parts = [changed(type(row), changes)] if changes else []
    _note(user, row, row.pk, CHANGE, write(parts, changes, row.version))


def note_deed(user: Any, row: Model, before: Values, said: str) -> None:
    """What a verb did to a job or a run, in words. ``before``: as for ``note_edit``."""
    changes = differences(before, values_of(row))
    if changes and isinstance(row, Job):
        _note(user, row, row.pk, CHANGE, write([changed(Job, changes)], changes, row.version, said))
    else:
        _note(user, row, row.pk, CHANGE, said)


def note_deletion(user: Any, row: Job | Calendar, key: Any) -> None:
    """``key``: what was the row's."""
    _note(user, row, key, DELETION, "")


def _note(user: Any, row: Model, key: Any, flag: int, message: str | list[dict[str, Any]]) -> None:
    if not apps.is_installed("django.contrib.admin") or not isinstance(user, get_user_model()):
        return
    from django.contrib.admin.models import LogEntry
    from django.contrib.contenttypes.models import ContentType

    with transaction.atomic(using=router.db_for_write(LogEntry)):
        LogEntry.objects.create(
            user_id=user.pk,
            content_type_id=ContentType.objects.get_for_model(row).pk,
            object_id=str(key),
            object_repr=str(row)[:200],
            action_flag=flag,
            change_message=message if isinstance(message, str) else json.dumps(message),
        )
