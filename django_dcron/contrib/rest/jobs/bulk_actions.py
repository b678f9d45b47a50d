"""Pause, resume or run many jobs in one request. A refused job doesn't stop the others."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from django.utils.translation import gettext as _
from rest_framework import serializers

from django_dcron import control
from django_dcron.contrib.rest.base_serializers import AnySerializer
from django_dcron.contrib.rest.jobs.bulk import MAX_JOBS, SavedJobSerializer
from django_dcron.contrib.rest.jobs.selecting import SelectedJobs, SelectedJobsSerializer
from django_dcron.contrib.rest.jobs.serializers import PauseSerializer
from django_dcron.contrib.rest.jobs.triggering import (
    ReceiptSerializer,
    TriggerSerializer,
    has_arguments,
    receipt,
)
from django_dcron.jobs.batching import refusal_text
from django_dcron.models import Job, Run


class PauseManySerializer(SelectedJobsSerializer, PauseSerializer):
    """The jobs to pause, with one reason and end for all."""


class TriggerManySerializer(SelectedJobsSerializer, TriggerSerializer):
    """The jobs to run, with the same arguments for all."""


class UnchangedJobSerializer(AnySerializer):
    id = serializers.IntegerField(read_only=True)
    detail = serializers.CharField(read_only=True, help_text="Why the job is unchanged.")


class BulkResponseSerializer(AnySerializer):
    refused = UnchangedJobSerializer(
        many=True, read_only=True, help_text="The jobs for which the action isn't possible."
    )
    next = serializers.IntegerField(
        read_only=True,
        allow_null=True,
        help_text=f"If more than {MAX_JOBS} jobs match: repeat the request with this value as "
        "`after`. Otherwise null.",
    )


class SwitchedJobsSerializer(BulkResponseSerializer):
    results = SavedJobSerializer(many=True, read_only=True, help_text="The changed jobs.")
    skipped = UnchangedJobSerializer(
        many=True,
        read_only=True,
        help_text="Matching jobs to which the action doesn't apply, such as jobs to pause that are "
        "already paused.",
    )


class TriggeredJobsSerializer(BulkResponseSerializer):
    results = ReceiptSerializer(many=True, read_only=True, help_text="The runs, one per job.")


def switch_jobs(
    selected: SelectedJobs, switch: Callable[[Sequence[Job]], Mapping[int, Exception]]
) -> dict[str, Any]:
    """Switch the jobs and return the response.

    ``switch`` returns the errors of the refused jobs by position.
    """
    jobs = selected.rows
    errors = {jobs[position].pk: error for position, error in switch(jobs).items()}
    return {
        "results": [job for job in jobs if job.pk not in errors],
        "refused": _refused(selected, errors),
        "skipped": [{"id": pk, "detail": why} for pk, why in selected.skipped.items()],
        "next": selected.next_after,
    }


def trigger_jobs(
    selected: SelectedJobs,
    args: list[Any] | None,
    kwargs: dict[str, Any] | None,
    key: str | None,
    url_of: Callable[[Run], str],
) -> dict[str, Any]:
    """Create a run of each job and return the response.

    With a key, a job that has a run with this key gets no second one. It is refused if that run has
    other arguments.
    """
    made = control.trigger_many(selected.rows, args=args, kwargs=kwargs, idempotency_key=key)
    errors: dict[int, Exception] = {}
    runs: list[Run] = []
    reused: dict[int, str] = {}
    for job, result in zip(selected.rows, made, strict=True):
        if isinstance(result, Exception):
            errors[job.pk] = result
        elif not has_arguments(result, args, kwargs):
            reused[job.pk] = _("The key was used for run %(run)s with other arguments.") % {
                "run": result.pk
            }
        else:
            runs.append(result)
    return {
        "results": [receipt(run, url_of(run)) for run in runs],
        "refused": _refused(selected, errors, reused),
        "next": selected.next_after,
    }


def _refused(
    selected: SelectedJobs, errors: Mapping[int, Exception], texts: Mapping[int, str] | None = None
) -> list[dict[str, Any]]:
    reasons = {
        job.pk: refusal_text(errors[job.pk], job) for job in selected.rows if job.pk in errors
    }
    reasons |= selected.missing | dict(texts or {})
    return [{"id": pk, "detail": reasons[pk]} for pk in sorted(reasons)]
