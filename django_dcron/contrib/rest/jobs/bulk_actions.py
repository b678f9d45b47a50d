"""Pause, resume or run many jobs in one request. A refused job doesn't stop the others."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rest_framework import serializers

from django_dcron import control
from django_dcron.contrib.rest.base_serializers import AnySerializer
from django_dcron.contrib.rest.jobs.bulk import MAX_JOBS, SavedJobSerializer
from django_dcron.contrib.rest.jobs.selecting import (
    ReasonsById,
    SelectedJobs,
    SelectedJobsSerializer,
)
from django_dcron.contrib.rest.jobs.serializers import PauseSerializer
from django_dcron.contrib.rest.jobs.triggering import (
    ReceiptSerializer,
    TriggerSerializer,
    receipt,
)
from django_dcron.jobs.batching import refusal_text
from django_dcron.jobs.bulk_skips import is_paused_already
from django_dcron.models import Job, Run


class PauseManySerializer(SelectedJobsSerializer, PauseSerializer):
    """The jobs to pause, with one reason and end for all."""


class TriggerManySerializer(SelectedJobsSerializer, TriggerSerializer):
    """The jobs to run, with the same arguments for all."""


class UnchangedJobSerializer(AnySerializer):
    """A job that the request didn't pause, resume or run."""

    id = serializers.IntegerField(read_only=True)
    detail = serializers.CharField(
        read_only=True, help_text="Why the action wasn't applied to the job."
    )


class BulkResponseSerializer(AnySerializer):
    refused = UnchangedJobSerializer(
        many=True, read_only=True, help_text="The jobs to which the action couldn't be applied."
    )
    next = serializers.IntegerField(
        read_only=True,
        allow_null=True,
        help_text=f"If more than {MAX_JOBS} jobs match: repeat the request with this value as "
        "`after`. Otherwise null.",
    )


class PausedOrResumedJobsSerializer(BulkResponseSerializer):
    results = SavedJobSerializer(
        many=True, read_only=True, help_text="The jobs that were paused or resumed."
    )
    skipped = UnchangedJobSerializer(
        many=True,
        read_only=True,
        help_text="The matching jobs that need no change, such as jobs to pause that are already "
        "paused.",
    )


class TriggeredJobsSerializer(BulkResponseSerializer):
    results = ReceiptSerializer(many=True, read_only=True, help_text="The runs, one per job.")


def pause_or_resume_jobs(
    selected: SelectedJobs, pause_or_resume: Callable[[Sequence[Job]], Mapping[int, Exception]]
) -> dict[str, Any]:
    """Pause or resume the jobs and return the response.

    ``pause_or_resume`` returns the errors of the refused jobs by their positions in its argument.
    """
    jobs = selected.rows
    errors = {jobs[position].pk: error for position, error in pause_or_resume(jobs).items()}
    unchanged = {pk: error for pk, error in errors.items() if is_paused_already(error)}
    refused = {pk: error for pk, error in errors.items() if pk not in unchanged}
    skipped = selected.skipped | _reasons(selected, unchanged)
    return {
        "results": [job for job in jobs if job.pk not in errors],
        "refused": _unchanged_jobs(_reasons(selected, refused) | selected.missing),
        "skipped": _unchanged_jobs(skipped),
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

    ``key`` is an idempotency key. A job that has a run with this key gets no second one, and is
    refused if that run has other arguments.
    """
    results = control.trigger_many(selected.rows, args=args, kwargs=kwargs, idempotency_key=key)
    errors: dict[int, Exception] = {}
    receipts: list[dict[str, Any]] = []
    for job, result in zip(selected.rows, results, strict=True):
        if isinstance(result, Exception):
            errors[job.pk] = result
        else:
            receipts.append(receipt(result, job, url_of(result)))
    return {
        "results": receipts,
        "refused": _unchanged_jobs(_reasons(selected, errors) | selected.missing),
        "next": selected.next_after,
    }


def _reasons(selected: SelectedJobs, errors: Mapping[int, Exception]) -> ReasonsById:
    return {job.pk: refusal_text(errors[job.pk], job) for job in selected.rows if job.pk in errors}


def _unchanged_jobs(reasons: ReasonsById) -> list[dict[str, Any]]:
    return [{"id": pk, "detail": reasons[pk]} for pk in sorted(reasons)]
