"""Cancel many runs in one request: runs by id, or the unfinished runs of selected jobs."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.db.models import Q
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from rest_framework import serializers
from rest_framework.exceptions import ValidationError

from django_dcron import control
from django_dcron.contrib.rest import fields
from django_dcron.contrib.rest.base_serializers import AnySerializer
from django_dcron.contrib.rest.jobs.selecting import (
    AFTER_WITH_IDS,
    JobFilterSerializer,
    matching_jobs,
)
from django_dcron.contrib.rest.runs.serializers import CancelSerializer
from django_dcron.contrib.rest.viewsets import LARGEST_KEY
from django_dcron.db.now import database_now
from django_dcron.db.routing import alias_for
from django_dcron.diagnosis.scope import Scope
from django_dcron.jobs.batching import refusal_text
from django_dcron.models import Run
from django_dcron.models.run import claimed_ahead
from django_dcron.policies.lifecycle import UNFINISHED, State

MAX_RUNS = 1_000
"""The maximum number of runs in one request."""


class PositionField(fields.StrictCharField):
    """The job and the key of the last run of a page, such as ``17:0199c1f2-…``.

    Both are needed: the run may be deleted or hidden before the next request.
    """

    default_error_messages = {
        "invalid_position": gettext_lazy("Use `next` of the previous response unchanged.")
    }

    def to_internal_value(self, data: Any) -> tuple[int, UUID]:  # type: ignore[override]
        job, _colon, run = super().to_internal_value(data).partition(":")
        try:
            job_id, run_id = int(job), UUID(run)
        except ValueError:
            self.fail("invalid_position")
        if not (job.isascii() and job.isdecimal() and 0 < job_id <= LARGEST_KEY):
            self.fail("invalid_position")
        return job_id, run_id


def _position_of(run: Run) -> str:
    return f"{run.job_id}:{run.pk}"


class CancelManySerializer(CancelSerializer):
    """The runs to cancel: either `ids` or `jobs`."""

    ids = serializers.ListField(
        child=fields.StrictUuidField(),
        required=False,
        allow_empty=False,
        max_length=MAX_RUNS,
        help_text="The runs.",
    )
    jobs = JobFilterSerializer(
        required=False,
        help_text="Selects jobs, whose unfinished runs are cancelled. Their schedules continue. "
        "Without ids, runs whose scheduled time is in the future are omitted.",
    )
    after = PositionField(
        required=False,
        help_text=f"If the jobs have more than {MAX_RUNS} unfinished runs: `next` of the "
        "previous response. Not with the ids of runs.",
    )

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        if ("ids" in attrs) == ("jobs" in attrs):
            raise ValidationError(_("Send either ids or jobs."))
        if "ids" in attrs and "after" in attrs:
            raise ValidationError({"after": [AFTER_WITH_IDS]})
        return attrs


class CancelledRunSerializer(AnySerializer):
    id = serializers.UUIDField(read_only=True)
    job = serializers.IntegerField(source="job_id", read_only=True)
    state = serializers.ChoiceField(
        [state.value for state in State],
        read_only=True,
        help_text="`cancelled`, or `running` if the run was asked to stop.",
    )


class RefusedRunSerializer(AnySerializer):
    id = serializers.UUIDField(read_only=True)
    detail = serializers.CharField(read_only=True, help_text="Why the run isn't cancelled.")


class CancelledRunsSerializer(AnySerializer):
    results = CancelledRunSerializer(
        many=True, read_only=True, help_text="The runs that are cancelled or asked to stop."
    )
    refused = RefusedRunSerializer(many=True, read_only=True, help_text="The other runs.")
    next = serializers.CharField(
        read_only=True,
        allow_null=True,
        help_text=f"If the jobs have more than {MAX_RUNS} unfinished runs: repeat the request with "
        "this value as `after`. Otherwise null.",
    )


def cancel_runs(values: dict[str, Any], scope: Scope, reason: str) -> dict[str, Any]:
    """Cancel the visible runs of a request and return the response."""
    missing: list[UUID] = []
    next_after = None
    if "ids" in values:
        found = scope.runs.select_related("job").in_bulk(values["ids"])
        ids = list(dict.fromkeys(values["ids"]))
        runs = [found[pk] for pk in ids if pk in found]
        missing = [pk for pk in ids if pk not in found]
    else:
        runs = _unfinished_runs(values, scope)
        if len(runs) > MAX_RUNS:
            runs = runs[:MAX_RUNS]
            next_after = _position_of(runs[-1])
    errors = control.cancel_many(runs, reason)
    refused = [
        {"id": runs[position].pk, "detail": refusal_text(error, runs[position])}
        for position, error in errors.items()
    ]
    refused += [{"id": pk, "detail": _("There is no run with this id.")} for pk in missing]
    return {
        "results": [run for position, run in enumerate(runs) if position not in errors],
        "refused": refused,
        "next": next_after,
    }


def _unfinished_runs(values: dict[str, Any], scope: Scope) -> list[Run]:
    """Return the unfinished runs of the selected jobs, job by job, at most ``MAX_RUNS`` + 1.

    With ``after``, the rest of that job's runs comes first. Cancelling the others may have changed
    the job's state, so the filter by state doesn't apply to it. Selected jobs may have been deleted
    since the first request. Filters omit runs that are claimed ahead.
    """
    chosen = values["jobs"]
    if "ids" in chosen and "after" not in values:
        visible = {*matching_jobs(chosen, scope).values_list("pk", flat=True)}
        if unknown := [pk for pk in chosen["ids"] if pk not in visible]:
            message = _("There is no job with the id %(id)s.")
            raise ValidationError({"jobs": [message % {"id": pk} for pk in dict.fromkeys(unknown)]})
    jobs = matching_jobs(chosen, scope).using(None).values("pk")
    runs = scope.runs.filter(state__in=UNFINISHED).select_related("job")
    if "ids" not in chosen:
        runs = runs.exclude(claimed_ahead(database_now(alias_for(Run))))
    if "after" in values:
        job_id, run_id = values["after"]
        in_any_state = {name: value for name, value in chosen.items() if name != "state"}
        begun = matching_jobs(in_any_state, scope).using(None).filter(pk=job_id).values("pk")
        rest = Q(job__in=begun, pk__gt=run_id)
        runs = runs.filter(rest | Q(job__in=jobs.filter(pk__gt=job_id)))
    else:
        runs = runs.filter(job__in=jobs)
    return list(runs.order_by("job_id", "pk")[: MAX_RUNS + 1])
