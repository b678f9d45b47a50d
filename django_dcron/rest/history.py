"""The history of a job, which the admin shows: a change by the API is in Django's own log beside those made there.

Invariants:

- An entry is of a change of the definition, or of a backfill. What programs do all day (run a job, cancel a run) leaves none: its
  runs are on record, and no index leads to the entries of a job.
- It names a user that the project's table has: one that only a token speaks of leaves none, nor is there any without the admin.
"""

from __future__ import annotations

import json
from typing import Any

from django.apps import apps
from django.contrib.auth import get_user_model

from django_dcron.models import Job
from django_dcron.observability.changes import write
from django_dcron.observability.differences import Values, changed, differences, values_of

ADDITION, CHANGE, DELETION = 1, 2, 3
"""As Django's log has them."""


def note_addition(user: Any, job: Job) -> None:
    _note(user, job, job.pk, ADDITION, write([{"added": {}}], [], job.version))


def note_change(user: Any, job: Job, before: Values, said: str = "") -> None:
    """``before``: what ``values_of`` said of the job as it was read for the change."""
    changes = differences(before, values_of(job))
    parts = [changed(changes)] if changes else []
    _note(user, job, job.pk, CHANGE, write(parts, changes, job.version, said))


def note_deletion(user: Any, job: Job, key: Any) -> None:
    """``key``: what was the job's."""
    _note(user, job, key, DELETION, [])


def _note(user: Any, job: Job, key: Any, flag: int, message: list[dict[str, Any]]) -> None:
    if not apps.is_installed("django.contrib.admin") or not isinstance(user, get_user_model()):
        return
    from django.contrib.admin.models import LogEntry
    from django.contrib.contenttypes.models import ContentType

    LogEntry.objects.create(
        user_id=user.pk,
        content_type_id=ContentType.objects.get_for_model(Job).pk,
        object_id=str(key),
        object_repr=str(job)[:200],
        action_flag=flag,
        change_message=json.dumps(message) if message else "",
    )
