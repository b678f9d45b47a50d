"""Read and write the entries of jobs and calendars in Django's admin log.

Invariants:

- Changes made outside the admin and the REST API (by code, ``sync`` or the scheduler) leave no
  entry. Each entry has the job's ``version``, which counts every save, so gaps are visible.
- Manual runs are recorded with the runs (``jobs.audit.log``), so they don't slow down reading the
  changes of a job.
- An action that changed no field of a job, such as a backfill, is recorded as text only. It is in
  the log but isn't a change. However many there are, the changes are found.
- Django's own pages and other tools can read every entry. Additional data is stored next to the
  keys that they read.
- For entries of an earlier release or of other tools, only Django's text is known.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from django.apps import apps

from django_dcron.models import Job

if TYPE_CHECKING:
    from django.contrib.admin.models import LogEntry

READ = 500
"""How many of the latest entries are read."""


@dataclass(frozen=True, slots=True)
class FieldChange:
    field: str
    old: Any
    new: Any
    """JSON values; long ones are truncated."""


@dataclass(frozen=True, slots=True)
class LoggedChange:
    at: datetime
    by: str
    message: str
    """Description of the change."""
    fields: tuple[FieldChange, ...] = ()
    version: int | None = None
    """The row's version after the change."""
    is_addition: bool = False

    def of(self, field: str) -> FieldChange | None:
        return next((change for change in self.fields if change.field == field), None)

    @property
    def switched(self) -> bool | None:
        """Whether the change enabled or paused the job; None if neither."""
        change = self.of("enabled")
        return bool(change.new) if change else None


def logged_changes_of(job: Job) -> list[LoggedChange]:
    """Return the changes of the job, oldest first; empty if the admin isn't installed."""
    if not apps.is_installed("django.contrib.admin"):
        return []
    from django.contrib.admin.models import LogEntry
    from django.contrib.contenttypes.models import ContentType

    entries = LogEntry.objects.filter(
        content_type=ContentType.objects.get_for_model(Job),
        object_id=str(job.pk),
        change_message__startswith="[",  # structured messages, by Django and by ``change_message``
    )
    latest = entries.select_related("user").order_by("-action_time", "-pk")[:READ]
    return [read_change(entry) for entry in reversed(latest)]


def change_message(
    parts: list[dict[str, Any]], fields: list[FieldChange], version: int, message: str = ""
) -> list[dict[str, Any]]:
    """Return an entry's message: the parts as Django writes them, and ours for ``read_change``."""
    first, *others = parts or [{}]
    ours: dict[str, Any] = {"version": version}
    if fields:
        ours["values"] = [[change.field, change.old, change.new] for change in fields]
    if message:
        ours["message"] = message
    return [first | {"dcron": ours}, *others]


def read_change(entry: LogEntry) -> LoggedChange:
    ours = _dcron_part(entry.change_message)
    return LoggedChange(
        at=entry.action_time,
        by=entry.user.get_username(),
        message=ours.get("message") or entry.get_change_message(),
        fields=tuple(FieldChange(*values) for values in ours.get("values", ())),
        version=ours.get("version"),
        is_addition=entry.is_addition(),
    )


def _dcron_part(text: str) -> dict[str, Any]:
    try:
        parts = json.loads(text) if text.startswith("[") else []
    except ValueError:
        return {}
    ours = parts[0].get("dcron") if parts and isinstance(parts[0], dict) else None
    return ours if isinstance(ours, dict) else {}
