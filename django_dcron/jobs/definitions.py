"""Record which definition of its job each attempt runs.

A save stores the job's definition. The start of an attempt references the latest one, which costs
no statement (``runs.start_facts``). Before the worker calls the job's code, it compares the
definition with the job that it has read. If they differ, because the job was written without
``saving``, the worker stores another definition.

Invariants:

- The attempt references its definition before the job's code is called.
- The definition is the job as the worker has read it, even if the job has been changed since.
- Equal definitions of a job are one row, regardless of the processes that store them.
- The definition that was stored last is the latest one. Retention relies on it
  (``jobs.definition_retention``).
- A field with its default value doesn't count, so that a release with a new field doesn't change
  any definition.
- Storing is safe to repeat.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from hashlib import sha1
from operator import attrgetter
from typing import Any
from uuid import UUID

from django.db import connections
from django.db.models import QuerySet

from django_dcron.db.now import UtcNow
from django_dcron.db.routing import alias_for
from django_dcron.jobs.representation import PORTABLE_JOB_FIELDS, Document, to_json
from django_dcron.models import Attempt, Definition, Job

_NAMESPACE = UUID("8b7d2f0e-5c1a-4e57-9a43-1f6f0c3a9d21")
"""The namespace of the keys, which are UUIDs of version 5. MariaDB 10.11 refuses some UUIDs of
version 8, and all that have no version.
"""

_NOT_RECORDED = frozenset({"description", "declared", "enabled", "pause_reason", "paused_until"})
"""Fields that don't affect a run that has started."""

RECORDED_FIELDS = tuple(field for field in PORTABLE_JOB_FIELDS if field.name not in _NOT_RECORDED)
"""The fields of a job that a definition contains."""

_NAMES = tuple(field.attname for field in RECORDED_FIELDS)
_VALUES_OF = attrgetter(*_NAMES)
_DEFAULTS = tuple(
    None if field.name == "timezone" else field.model_field.get_default()
    for field in RECORDED_FIELDS
)
"""The default time zone depends on a setting, so it is always a part of the definition."""
_ENCODER = json.JSONEncoder(default=to_json, sort_keys=True)


def definition_id(job: Job) -> UUID:
    """Return the key of the definition that ``job`` has now.

    It needs no query and must be fast, because each start calls it.
    """
    values = zip(_NAMES, _VALUES_OF(job), _DEFAULTS, strict=True)
    changed = [(name, value) for name, value, default in values if value != default]
    text = _sorted_json([job.pk, changed]).encode()
    return UUID(bytes=sha1(_NAMESPACE.bytes + text, usedforsecurity=False).digest()[:16], version=5)


def _sorted_json(value: Any) -> str:
    """Return the value as JSON. Databases store the keys of objects in different orders."""
    try:
        return _ENCODER.encode(value)
    except TypeError:  # keys of different types, which are texts in the database
        return _ENCODER.encode(json.loads(json.dumps(value, default=to_json)))


def content_of(job: Job) -> Document:
    """Return the recorded fields of the job."""
    return {field.name: field.json_of(job) for field in RECORDED_FIELDS}


def definitions() -> QuerySet[Definition]:
    return Definition.objects.using(alias_for(Definition))


def store_definitions(jobs: Sequence[Job]) -> None:
    """Store the current definitions of ``jobs`` as the latest ones, in one statement."""
    if not jobs:
        return
    now: Any = UtcNow()
    rows = [
        Definition(
            id=definition_id(job),
            job_id=job.pk,
            version=job.version,
            content=content_of(job),
            current_since=now,
        )
        for job in jobs
    ]
    has_target = connections[alias_for(Definition)].features.supports_update_conflicts_with_target
    definitions().bulk_create(
        rows,
        update_conflicts=True,
        update_fields=["current_since"],
        unique_fields=["id"] if has_target else None,
    )


def record_definition(job: Job, attempt: int) -> None:
    """Store the current definition of ``job``, and let an attempt reference it.

    ``attempt`` is the key of the attempt's row.
    """
    store_definitions([job])
    _reference(attempt, definition_id(job))


def forget_definition(attempt: int) -> None:
    """Let the attempt with this key reference no definition."""
    _reference(attempt, None)


def _reference(attempt: int, key: UUID | None) -> None:
    attempts = Attempt.objects.using(alias_for(Attempt))
    attempts.filter(pk=attempt).update(definition=key)
