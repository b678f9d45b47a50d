"""Show the definition that a run used, and how its job differs now. Secrets are redacted."""

from __future__ import annotations

from typing import Any

from django_dcron.jobs.audit.differences import FieldChange
from django_dcron.jobs.definitions import RECORDED_FIELDS, content_of
from django_dcron.jobs.representation import Document, redact_document, to_json
from django_dcron.models import Attempt, Job
from django_dcron.utils.json_values import same_json


def changes_since(content: Document, job: Job) -> tuple[FieldChange, ...]:
    """Return the fields of ``job`` that differ from a recorded definition, as JSON."""
    return changes_between(content, content_of(job))


def changes_between(old: Document, new: Document) -> tuple[FieldChange, ...]:
    """Return the fields that differ between two definitions, as JSON."""
    changes = []
    for field in RECORDED_FIELDS:
        # A definition of an earlier release lacks newer fields. Their defaults change nothing.
        default = to_json(field.model_field.get_default())
        then, now = (content.get(field.name, default) for content in (old, new))
        if not same_json(then, now):
            changes.append(FieldChange(field.name, *field.redacted_change(then, now)))
    return tuple(changes)


def definition_document(attempt: Attempt) -> dict[str, Any] | None:
    """Return the definition that an attempt ran, and the changes of its job since, as JSON.

    Returns None if no definition is recorded. Queries the definition and the job, unless
    ``attempt`` was read together with them.
    """
    definition = attempt.definition
    if definition is None:
        return None
    changes = changes_since(definition.content, attempt.run.job)
    return {
        "version": definition.version,
        "content": redact_document(definition.content),
        "changes": [{"field": each.field, "then": each.old, "now": each.new} for each in changes],
    }
