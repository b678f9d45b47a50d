"""Pause or resume many jobs in one request. A refused job doesn't stop the others."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from django.utils.translation import gettext as _
from rest_framework import serializers

from django_dcron.contrib.rest import fields
from django_dcron.contrib.rest.base_serializers import AnySerializer, StrictSerializer
from django_dcron.contrib.rest.jobs.bulk import MAX_JOBS, SavedJobSerializer
from django_dcron.contrib.rest.jobs.serializers import PauseSerializer
from django_dcron.contrib.rest.viewsets import LARGEST_KEY
from django_dcron.diagnosis.scope import Scope
from django_dcron.jobs.batching import refusal_text
from django_dcron.models import Job


class SelectedJobsSerializer(StrictSerializer):
    ids = serializers.ListField(
        child=fields.StrictIntegerField(min_value=1, max_value=LARGEST_KEY),
        allow_empty=False,
        max_length=MAX_JOBS,
        help_text="The jobs.",
    )


class PauseManySerializer(SelectedJobsSerializer, PauseSerializer):
    """The jobs to pause, with one reason and end for all."""


class RefusedJobSerializer(AnySerializer):
    id = serializers.IntegerField(read_only=True)
    detail = serializers.CharField(read_only=True, help_text="Why the job is unchanged.")


class SwitchedJobsSerializer(AnySerializer):
    results = SavedJobSerializer(many=True, read_only=True, help_text="The changed jobs.")
    refused = RefusedJobSerializer(many=True, read_only=True, help_text="The unchanged jobs.")


def switch_jobs(
    ids: Sequence[int],
    scope: Scope,
    switch: Callable[[Sequence[Job]], Mapping[int, Exception]],
) -> dict[str, Any]:
    """Switch the jobs that the user sees, and return the response.

    ``switch`` returns the errors of the refused jobs by position.
    """
    ids = list(dict.fromkeys(ids))
    found = scope.jobs.in_bulk(ids)
    jobs = [found[pk] for pk in ids if pk in found]
    errors = switch(jobs)
    refused = {pk: _("There is no job with this id.") for pk in ids if pk not in found}
    refused |= {
        jobs[position].pk: refusal_text(error, jobs[position]) for position, error in errors.items()
    }
    return {
        "results": [job for job in jobs if job.pk not in refused],
        "refused": [{"id": pk, "detail": refused[pk]} for pk in ids if pk in refused],
    }
