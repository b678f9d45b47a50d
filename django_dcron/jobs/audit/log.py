"""Record in Django's admin log who changed what in the admin and the REST API.

``jobs.audit.entries`` defines the content of an entry.

Invariants:

- An entry refers to a row of the project's user model. The action of a user who is known only from
  a token isn't recorded. Without ``django.contrib.admin``, nothing is recorded.
- Only completed, committed changes are recorded. An action that changed no field of a job is
  recorded as text only.
- Manual runs of a job are recorded with the run, not the job. Programs start runs all day, and a
  job's page reads all of its entries.
- Each entry sends the signals of a saved row.
- An entry that can't be written doesn't affect the surrounding transaction.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from django.apps import apps
from django.contrib.auth import get_user_model
from django.db import router, transaction
from django.db.models import Model
from django.db.models.signals import post_save, pre_save

from django_dcron.jobs.audit.differences import (
    Values,
    changed_message,
    differences,
    values_of,
)
from django_dcron.jobs.audit.entries import change_message
from django_dcron.models import Calendar, Job

Message = str | list[dict[str, Any]]

ADDITION, CHANGE, DELETION = 1, 2, 3
"""The action flags of Django's admin log."""


def log_addition(user: Any, row: Job | Calendar) -> None:
    log_additions(user, [row])


def log_additions(user: Any, rows: Sequence[Job | Calendar]) -> None:
    _log_all(
        user,
        [(row, row.pk, ADDITION, change_message([{"added": {}}], [], row.version)) for row in rows],
    )


def log_change(user: Any, row: Job | Calendar, before: Values) -> None:
    """Record an edit. ``before`` is the result of ``values_of`` when the row was read."""
    log_changes(user, [(row, before)])


def log_changes(user: Any, edits: Sequence[tuple[Job | Calendar, Values]]) -> None:
    """Record edits of rows of one model, each with its values before the edit."""
    _log_all(user, [(row, row.pk, CHANGE, _edit_message(row, before)) for row, before in edits])


def _edit_message(row: Job | Calendar, before: Values) -> Message:
    changes = differences(type(row), before, values_of(row))
    parts = [changed_message(type(row), changes)] if changes else []
    return change_message(parts, changes, row.version)


def log_action(user: Any, row: Model, before: Values, message: str) -> None:
    """Record an action on a job or a run as text. ``before``: see ``log_change``."""
    log_actions(user, [(row, before, message)])


def log_actions(user: Any, actions: Sequence[tuple[Model, Values, str]]) -> None:
    """Record actions on rows of one model: row, its values before, and text. See ``log_action``."""
    _log_all(
        user,
        [
            (row, row.pk, CHANGE, _action_message(row, before, message))
            for row, before, message in actions
        ],
    )


def _action_message(row: Model, before: Values, message: str) -> Message:
    changes = differences(type(row), before, values_of(row))
    if not (changes and isinstance(row, Job)):
        return message
    return change_message([changed_message(Job, changes)], changes, row.version, message)


def log_message(user: Any, row: Model, message: str) -> None:
    """Record an action as text only."""
    _log(user, row, row.pk, CHANGE, message)


def log_deletion(user: Any, row: Job | Calendar, key: Any) -> None:
    """Record a deletion. ``key`` is the deleted row's primary key."""
    _log(user, row, key, DELETION, "")


def _log(user: Any, row: Model, key: Any, flag: int, message: Message) -> None:
    _log_all(user, [(row, key, flag, message)])


def _log_all(user: Any, entries: Sequence[tuple[Model, Any, int, Message]]) -> None:
    """Write entries about rows of one model: row, key, action flag and message."""
    if not apps.is_installed("django.contrib.admin") or not isinstance(user, get_user_model()):
        return
    from django.contrib.admin.models import LogEntry
    from django.contrib.contenttypes.models import ContentType

    written = [
        LogEntry(
            user_id=user.pk,
            content_type_id=ContentType.objects.get_for_model(row).pk,
            object_id=str(key),
            object_repr=str(row)[:200],
            action_flag=flag,
            change_message=message if isinstance(message, str) else json.dumps(message),
        )
        for row, key, flag, message in entries
    ]
    using = router.db_for_write(LogEntry)
    with transaction.atomic(using=using):
        # Projects forward entries from the signals, which a bulk insertion doesn't send.
        has_listeners = pre_save.has_listeners(LogEntry) or post_save.has_listeners(LogEntry)
        if len(written) == 1 or has_listeners:
            for entry in written:
                entry.save(using=using)
        else:
            LogEntry.objects.using(using).bulk_create(written)
