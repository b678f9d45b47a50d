"""Show the job definitions that the attempts of a run executed, and later changes of the job.

Invariants:

- The fields of a job are shown only to users who may view jobs, without secrets.
- One query reads the definitions of the attempts that the page lists.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from uuid import UUID

from django.utils.text import capfirst
from django.utils.translation import ngettext

from django_dcron.admin.audit_log import ChangedField, is_code, shown_change, shown_value
from django_dcron.diagnosis.definitions import changes_since
from django_dcron.jobs.definitions import definitions
from django_dcron.jobs.representation import JOB_FIELDS, Document
from django_dcron.models import Attempt, Definition, Job


@dataclass(frozen=True, slots=True)
class ShownField:
    label: str
    value: str
    is_code: bool


@dataclass(frozen=True, slots=True)
class ShownDefinition:
    """The definition that one or several consecutive attempts executed."""

    attempts: str
    release: str
    version: int | None
    """None if the definition isn't recorded."""
    fields: tuple[ShownField, ...] = ()
    changes: tuple[ChangedField, ...] = ()
    """The fields that differ in the job now."""


def definitions_of(attempts: Sequence[Attempt]) -> dict[UUID, Definition]:
    """Return the definitions that the ``attempts`` reference, by key."""
    keys = {each.definition_id for each in attempts if each.definition_id}
    return definitions().in_bulk(keys) if keys else {}


def content_of_attempt(attempt: Attempt) -> Document:
    """Return the definition that the attempt ran; empty if it is unrecorded."""
    definition = next(iter(definitions_of([attempt]).values()), None)
    content: Document = definition.content if definition else {}
    return content


def shown_definitions(
    attempts: Sequence[Attempt], rows: Mapping[UUID, Definition], job: Job
) -> list[ShownDefinition]:
    """Return the definitions that the ``attempts`` executed. ``rows``: see ``definitions_of``."""
    groups = groupby(attempts, lambda each: (each.definition_id, each.release))
    return [
        _shown_definition(list(group), release, rows.get(key) if key else None, job)
        for (key, release), group in groups
    ]


def _shown_definition(
    attempts: list[Attempt], release: str, definition: Definition | None, job: Job
) -> ShownDefinition:
    numbers = sorted(each.number for each in attempts)
    text = ngettext("Attempt {numbers}", "Attempts {numbers}", len(numbers))
    title = text.format(numbers=", ".join(map(str, numbers)))
    if definition is None:
        return ShownDefinition(title, release, None)
    changes = changes_since(definition.content, job)
    return ShownDefinition(
        title,
        release,
        definition.version,
        tuple(_shown_fields(definition.content)),
        tuple(shown_change(Job, change) for change in changes),
    )


def _shown_fields(content: Document) -> Iterator[ShownField]:
    """Yield the recorded fields in the order of the form."""
    for name, field in JOB_FIELDS.items():
        if name in content:
            label = capfirst(str(field.model_field.verbose_name))
            value = shown_value(Job, name, content[name])
            yield ShownField(label, value, is_code(Job, name))
