"""Edit one job, and show the changed fields and the next occurrence."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from typing import Any

from django.db import transaction

from django_dcron.db.routing import alias_for
from django_dcron.jobs.representation import JOB_FIELDS, Document, portable_document
from django_dcron.management.dcron.bulk_actions import job_keys
from django_dcron.management.dcron.output import GOOD, Output, iso, time_text
from django_dcron.models import Cursor, Job
from django_dcron.utils.json_values import same_json

Changes = Mapping[str, tuple[Any, Any]]
"""The old and the new JSON value of each changed field."""


def perform_edit(output: Output, job: Job, edit: Callable[[], object], *, is_dry: bool) -> None:
    """Show what ``edit`` changes in ``job``. If ``is_dry``, nothing stays saved."""
    before, label, next_before = portable_document(job), job_keys(job), next_occurrence_of(job)
    with rolled_back(is_dry):
        edit()
        next_after = next_occurrence_of(job)
    changes = changed_values(before, portable_document(job))
    if output.is_json:
        output.json({"version": 1, **label, **edit_document(changes, next_after, is_dry=is_dry)})
        return
    for text in change_texts(changes):
        output.line(f"{label['job']}: {text}", GOOD)
    if not changes:
        output.line(f"{label['job']}: nothing to change")
    if next_after != next_before:
        output.line(f"{label['job']}: next occurrence: {time_text(next_after)}")
    if is_dry:
        output.line("Nothing was changed.")


@contextmanager
def rolled_back(is_dry: bool) -> Iterator[None]:
    """Roll back what the block writes, if ``is_dry``."""
    if not is_dry:
        yield
        return
    using = alias_for(Job)
    with transaction.atomic(using=using):
        yield
        transaction.set_rollback(True, using=using)


def changed_values(before: Document, after: Document) -> Changes:
    """Return the old and the new JSON value of each changed field."""
    return {
        name: (before[name], value)
        for name, value in after.items()
        if not same_json(before[name], value)
    }


def edit_document(changes: Changes, next_at: datetime | None, *, is_dry: bool) -> dict[str, Any]:
    """Return the fields of the JSON output for a job, without secrets."""
    redacted = {name: JOB_FIELDS[name].redacted_change(*each) for name, each in changes.items()}
    return {"dry_run": is_dry, "changes": redacted, "next_at": iso(next_at)}


def change_texts(changes: Changes) -> Iterator[str]:
    for name, (was, now) in changes.items():
        old, new = JOB_FIELDS[name].change_texts(was, now)
        yield f"{name}: {old} -> {new}"


def next_occurrence_of(job: Job) -> datetime | None:
    """Return the job's next occurrence, or None."""
    rows = Cursor.objects.using(alias_for(Cursor)).filter(pk=job.pk)
    return rows.values_list("next_at", flat=True).first()
