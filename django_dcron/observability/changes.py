"""What is on record about the changes of a job or a calendar: what the admin's log says of them, who, when and from what to what.

Invariants:

- A change made past the admin and the REST API (by code, by ``sync``, by the scheduler itself) leaves no entry. The job's
  ``version``, which each entry carries, counts every save: it says how many there were, not what they were.
- Runs by hand, or by a program all day, are noted under the runs (``noting``): they cost the reading of a job's changes nothing.
- What was done to a job otherwise and changed no field of it (a backfill) is noted as a text alone: it is in the log, and is no
  change. However much of it there is, the changes are found.
- An entry is one that Django's own pages and other tools can read: what is ours stands beside what they look at.
- Entries that are not ours, of an earlier release or written by hand, are changes of which only Django's text is known.
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
"""Of the latest so many entries."""


@dataclass(frozen=True, slots=True)
class FieldChange:
    field: str
    old: Any
    new: Any
    """As JSON has them; long ones are shortened."""


@dataclass(frozen=True, slots=True)
class Change:
    at: datetime
    by: str
    said: str
    """What was done, in words."""
    fields: tuple[FieldChange, ...] = ()
    version: int | None = None
    """The row's, after it."""
    is_addition: bool = False

    def of(self, field: str) -> FieldChange | None:
        return next((change for change in self.fields if change.field == field), None)

    @property
    def switched(self) -> bool | None:
        """Whether the job was enabled by it, or paused; None: neither."""
        change = self.of("enabled")
        return bool(change.new) if change else None


def changes_of(job: Job) -> list[Change]:
    """Oldest first. None where the admin is not installed."""
    if not apps.is_installed("django.contrib.admin"):
        return []
    from django.contrib.admin.models import LogEntry
    from django.contrib.contenttypes.models import ContentType

    entries = LogEntry.objects.filter(
        content_type=ContentType.objects.get_for_model(Job),
        object_id=str(job.pk),
        change_message__startswith="[",  # as Django writes what has parts, and we
    )
    latest = entries.select_related("user").order_by("-action_time", "-pk")[:READ]
    return [read(entry) for entry in reversed(latest)]


def write(
    parts: list[dict[str, Any]], fields: list[FieldChange], version: int, said: str = ""
) -> list[dict[str, Any]]:
    """``parts``: the entry's message as Django makes it; the answer says the same to Django, and more to ``read``."""
    first, *others = parts or [{}]
    ours: dict[str, Any] = {"version": version}
    if fields:
        ours["values"] = [[change.field, change.old, change.new] for change in fields]
    if said:
        ours["said"] = said
    return [first | {"dcron": ours}, *others]


def read(entry: LogEntry) -> Change:
    ours = _ours(entry.change_message)
    return Change(
        at=entry.action_time,
        by=entry.user.get_username(),
        said=ours.get("said") or entry.get_change_message(),
        fields=tuple(FieldChange(*values) for values in ours.get("values", ())),
        version=ours.get("version"),
        is_addition=entry.is_addition(),
    )


def _ours(message: str) -> dict[str, Any]:
    try:
        parts = json.loads(message) if message.startswith("[") else []
    except ValueError:
        return {}
    ours = parts[0].get("dcron") if parts and isinstance(parts[0], dict) else None
    return ours if isinstance(ours, dict) else {}
