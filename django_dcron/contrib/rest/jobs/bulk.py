"""Create or change many jobs in one request: all of them, or none."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

from django.core.exceptions import ValidationError
from django.db import transaction
from django.utils import translation
from django.utils.translation import gettext as _
from rest_framework import serializers

from django_dcron import control
from django_dcron.contrib.rest import fields
from django_dcron.contrib.rest.base_serializers import (
    AnySerializer,
    StrictSerializer,
)
from django_dcron.contrib.rest.jobs.serializers import WRITABLE, JobSerializer
from django_dcron.contrib.rest.problems import (
    AlreadyExists,
    RefusedRows,
    by_fields,
    has_only_taken_names,
)
from django_dcron.contrib.rest.scope import check_visible
from django_dcron.contrib.rest.viewsets import LARGEST_KEY
from django_dcron.db.routing import alias_for
from django_dcron.diagnosis.scope import Scope
from django_dcron.exceptions import BulkSaveError, Conflict
from django_dcron.jobs import chains
from django_dcron.jobs.batch_reading import clean_each
from django_dcron.models import Job

MAX_JOBS = 1_000
"""The maximum number of jobs in one request."""
LIST: Any = {"many": True, "allow_empty": False, "max_length": MAX_JOBS}
ERROR_RESPONSES = {409: "A job was changed or deleted since its version. Nothing was saved."}

Errors = dict[str, Any]
"""Messages by the path of the field in the body, such as ``jobs.3.schedule``."""


@dataclass(frozen=True, slots=True)
class JobEdit:
    """One job of a request, before it is saved."""

    job: Job
    stored: Job | None = None
    """The job as it is stored. None: a new job."""
    version: int | None = None
    """The version that the edit is based on. None: a new job."""


class ReferenceSerializer(AnySerializer):
    """The job to update, and the version that the update is based on."""

    id = fields.StrictIntegerField(
        min_value=1, max_value=LARGEST_KEY, help_text="The job to update."
    )
    version = fields.StrictIntegerField(
        min_value=1,
        help_text="The version of the job as it was read. If the job was changed since, the "
        "request is refused.",
    )


class ChangedJobSerializer(ReferenceSerializer, JobSerializer):
    """Fields of a job to update. The other fields stay as they are."""

    class Meta(JobSerializer.Meta):
        read_only_fields = tuple(
            name for name in JobSerializer.Meta.read_only_fields if name not in ("id", "version")
        )
        extra_kwargs = {name: {"required": False} for name in WRITABLE}


class NewJobsSerializer(StrictSerializer):
    jobs = JobSerializer(**LIST)


class ChangedJobsSerializer(StrictSerializer):
    jobs = ChangedJobSerializer(**LIST)


class SavedJobSerializer(AnySerializer):
    id = serializers.IntegerField(read_only=True)
    version = serializers.IntegerField(read_only=True)
    namespace = serializers.CharField(read_only=True)
    name = serializers.CharField(read_only=True)


class SavedJobsSerializer(AnySerializer):
    results = SavedJobSerializer(
        many=True, read_only=True, help_text="The saved jobs, in the order of the request."
    )


def read_items(data: Any) -> list[Any]:
    """Return the jobs of a body. Raises ``ValidationError`` unless it is a list of valid length."""
    items = JobListSerializer(data=data)
    items.is_valid(raise_exception=True)
    return list(items.validated_data["jobs"])


class JobListSerializer(StrictSerializer):
    jobs = serializers.ListField(allow_empty=False, max_length=MAX_JOBS)


def read_new_jobs(items: Sequence[Any], scope: Scope) -> list[JobEdit]:
    """Return the jobs to create. Raises ``ValidationError`` by path."""
    serializer = JobSerializer(context={"scope": scope})
    edits: dict[int, JobEdit] = {}
    errors: Errors = {}
    for position, item in enumerate(items):
        try:
            edits[position] = JobEdit(Job(**serializer.run_validation(item)))
        except serializers.ValidationError as error:
            errors |= _at(position, error.detail)
    _raise_if(errors, edits)
    return [*edits.values()]


def read_changed_jobs(items: Sequence[Any], scope: Scope) -> list[JobEdit]:
    """Return the jobs to change. Raises ``ValidationError`` by path."""
    reference = ReferenceSerializer()
    serializer = ChangedJobSerializer(context={"scope": scope}, partial=True)
    references: dict[int, dict[str, int]] = {}
    errors: Errors = {}
    for position, item in enumerate(items):
        try:
            references[position] = reference.run_validation(item)
        except serializers.ValidationError as error:
            errors |= _at(position, error.detail)
    rows = scope.jobs.in_bulk([read["id"] for read in references.values()])
    edits: dict[int, JobEdit] = {}
    for position, read in references.items():
        row = rows.get(read["id"])
        if row is None:
            errors |= _at(position, {"id": [_("There is no job with this id.")]})
            continue
        job = copy.copy(row)  # the list may name a job twice
        serializer.instance = job
        try:
            values = serializer.run_validation(items[position])
        except serializers.ValidationError as error:
            errors |= _at(position, error.detail)
            continue
        for name, value in values.items():
            if name not in ("id", "version"):
                setattr(job, name, value)
        edits[position] = JobEdit(job, row, read["version"])
    _raise_if(errors, edits)
    return [*edits.values()]


def save_edits(edits: Sequence[JobEdit], scope: Scope) -> list[Job]:
    """Save all jobs within the user's scope, or none. Return the jobs.

    A job may keep the hidden predecessors that it has. Raises ``RefusedRows`` by path if all errors
    are conflicts, else ``ValidationError``.
    """
    jobs = [edit.job for edit in edits]
    narrows = scope.narrows(Job)
    if narrows:
        _raise_if(_errors_of_hidden_predecessors(edits, scope))
    with transaction.atomic(using=alias_for(Job)) if narrows else nullcontext():
        try:
            control.save_many(jobs, expected_versions=[edit.version for edit in edits])
        except BulkSaveError as error:
            raise _refusal(error.errors, jobs, hides_names=narrows) from None
        check_visible(jobs, scope)
    return jobs


def _errors_of_hidden_predecessors(edits: Sequence[JobEdit], scope: Scope) -> Errors:
    jobs = [edit.job for edit in edits]
    allowed = chains.visible_keys(jobs, scope.jobs) | {(job.namespace, job.name) for job in jobs}
    errors: Errors = {}
    for position, edit in enumerate(edits):
        kept = () if edit.stored is None else edit.stored.after
        try:
            chains.require_visible(edit.job, allowed, kept)
        except ValidationError as error:
            errors |= _at(position, by_fields(error).detail)
    return errors


def _refusal(
    found: Mapping[int, Exception], jobs: Sequence[Job], *, hides_names: bool
) -> Exception:
    errors: Errors = {}
    for position, error in found.items():
        match error:
            case Conflict():
                errors |= _at(position, {"version": [error.translate(translation)]})
            case ValidationError():
                shown = chains.without_names(error) if hides_names else error
                errors |= _at(position, by_fields(shown).detail)
            case _:
                return error
    if all(isinstance(error, Conflict) for error in found.values()):
        return RefusedRows(errors)
    is_named_once = len({(job.namespace, job.name) for job in jobs}) == len(jobs)
    if is_named_once and all(map(has_only_taken_names, found.values())):
        return AlreadyExists(errors)
    return serializers.ValidationError(errors)


def _at(position: int, detail: Any) -> Errors:
    """Return the errors of one job by their paths in the body."""
    if not isinstance(detail, Mapping):
        return {f"jobs.{position}": detail}
    return {f"jobs.{position}.{name}": messages for name, messages in detail.items()}


def _raise_if(errors: Errors, edits: Mapping[int, JobEdit] | None = None) -> None:
    """Raise ``ValidationError`` if there are errors, also with those of ``edits``."""
    if not errors:
        return
    found = clean_each([edit.job for edit in (edits or {}).values()], alias_for(Job))
    for position, job_errors in zip(edits or (), found, strict=True):
        if job_errors:
            errors = errors | _at(position, by_fields(ValidationError(job_errors)).detail)
    raise serializers.ValidationError(errors)
