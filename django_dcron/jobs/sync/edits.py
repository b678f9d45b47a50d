"""Find the fields of declared jobs that a person changed."""

from __future__ import annotations

from django.core.exceptions import ValidationError

from django_dcron import targets
from django_dcron.db.routing import alias_for
from django_dcron.jobs.representation import JOB_FIELDS, PORTABLE_JOB_FIELDS
from django_dcron.jobs.sync.changes import ChangeKind, SyncChange, kept_text
from django_dcron.jobs.sync.stored import (
    stored_declaration,
    stored_default,
    to_stored,
    value_in_declaration,
)
from django_dcron.models import Job
from django_dcron.models.job_states import AUTOMATIC_PAUSES
from django_dcron.utils.json_values import same_json

_COMPARED_SEPARATELY = frozenset(
    {"namespace", "name", "declared", "enabled", "pause_reason", "paused_until"}
)


def declared_texts(job: Job) -> dict[str, str]:
    """Return the declared value, as text, of each field that a person changed.

    Fields of a pause are omitted.
    """
    edited = _edited_definition_fields(job)
    return {
        name: field.text(value_in_declaration(field, job.declared or {}))
        for name, field in JOB_FIELDS.items()
        if name in edited
    }


def edited_fields(job: Job) -> set[str]:
    """Return the fields of a declared job that a person changed, including those of a pause."""
    declared = job.declared or {}
    edited = _edited_definition_fields(job)
    was_enabled = job.enabled and declared.get("enabled") is False
    if is_paused_by_person(job) or was_enabled:
        return edited | {"enabled", "pause_reason", "paused_until"}
    return edited


def is_paused_by_person(job: Job) -> bool:
    return not job.enabled and job.pause_reason not in AUTOMATIC_PAUSES


def undeclared_edits() -> list[SyncChange]:
    """Return the edited fields of declared jobs that code doesn't name. A sync never writes them.

    ``plan`` has the fields that code names.
    """
    declared = {declaration.key: declaration for declaration in targets.declarations()}
    rows = Job.objects.using(alias_for(Job)).filter(declared__isnull=False)
    jobs = {(job.namespace, job.name): job for job in rows}
    changes = []
    for key, declaration in declared.items():
        if (job := jobs.get(key)) is None:
            continue
        try:
            named = {**(job.declared or {}), **stored_declaration(declaration)}
        except ValidationError:
            continue  # the plan contains the error
        edited = _edited_definition_fields(job) - named.keys()
        details = [
            kept_text(job, field, stored_default(field), "default")
            for name, field in JOB_FIELDS.items()
            if name in edited
        ]
        if details:
            changes.append(SyncChange(ChangeKind.KEEP, str(job), tuple(details), key))
    return changes


def _edited_definition_fields(job: Job) -> set[str]:
    declared = job.declared or {}
    return {
        field.name
        for field in PORTABLE_JOB_FIELDS
        if field.name not in _COMPARED_SEPARATELY
        and not same_json(to_stored(field.value_of(job)), value_in_declaration(field, declared))
    }
