"""The endpoints that create, change, pause, resume or run many jobs in one request."""

from __future__ import annotations

from functools import partial

from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response

from django_dcron import control
from django_dcron.contrib.rest.jobs import bulk
from django_dcron.contrib.rest.jobs.bulk_actions import (
    PausedOrResumedJobsSerializer,
    PauseManySerializer,
    TriggeredJobsSerializer,
    TriggerManySerializer,
    pause_or_resume_jobs,
    trigger_jobs,
)
from django_dcron.contrib.rest.jobs.selecting import SelectedJobsSerializer, select_jobs
from django_dcron.contrib.rest.jobs.triggering import IDEMPOTENCY_KEY, idempotency_key
from django_dcron.contrib.rest.permissions import require_other_arguments
from django_dcron.contrib.rest.schema import operation
from django_dcron.contrib.rest.viewsets import BaseViewSet, row_url
from django_dcron.jobs.action_texts import signed_reason
from django_dcron.jobs.bulk_skips import why_not_paused, why_not_resumed
from django_dcron.models import Run


class BulkJobViewSet(BaseViewSet):
    @action(detail=False, methods=["post"], url_path="bulk")
    @operation(
        "create_jobs",
        f"Create up to {bulk.MAX_JOBS} jobs, or none if one is invalid",
        {201: bulk.SavedJobsSerializer()},
        permissions=("add_job",),
        body=bulk.NewJobsSerializer(),
        error_responses=bulk.ERROR_RESPONSES,
    )
    def create_many(self, request: Request) -> Response:
        edits = bulk.read_new_jobs(bulk.read_items(request.data), self.scope)
        jobs = bulk.save_edits(edits, self.scope)
        return Response(bulk.SavedJobsSerializer({"results": jobs}).data, status=201)

    @create_many.mapping.patch
    @operation(
        "change_jobs",
        f"Update fields of up to {bulk.MAX_JOBS} jobs, or of none if one is refused",
        {200: bulk.SavedJobsSerializer()},
        permissions=("change_job",),
        body=bulk.ChangedJobsSerializer(),
        error_responses=bulk.ERROR_RESPONSES,
    )
    def change_many(self, request: Request) -> Response:
        edits = bulk.read_changed_jobs(bulk.read_items(request.data), self.scope)
        jobs = bulk.save_edits(edits, self.scope)
        return Response(bulk.SavedJobsSerializer({"results": jobs}).data)

    @action(detail=False, methods=["post"], url_path="bulk/pause")
    @operation(
        "pause_jobs",
        f"Pause up to {bulk.MAX_JOBS} jobs, by id or filter; runs in progress continue",
        {200: PausedOrResumedJobsSerializer()},
        permissions=("view_job", "pause_job"),
        body=PauseManySerializer(),
    )
    def pause_many(self, request: Request) -> Response:
        values = self.validate(PauseManySerializer, request.data)
        reason = signed_reason(values["reason"], request.user.get_username())
        selected = select_jobs(values, self.scope, why_not_paused)
        # As in the command line, a filter or an empty request doesn't replace an earlier pause. An
        # empty request replaces only the wait for the handover, which would enable the job.
        by_id = "ids" in values
        pause = partial(
            control.pause_many,
            reason=reason,
            until=values["until"],
            replace=by_id and not {"reason", "until"}.isdisjoint(request.data),
            replace_wait=by_id,
        )
        changed = pause_or_resume_jobs(selected, pause)
        return Response(PausedOrResumedJobsSerializer(changed).data)

    @action(detail=False, methods=["post"], url_path="bulk/resume")
    @operation(
        "resume_jobs",
        f"Resume up to {bulk.MAX_JOBS} jobs, by id or filter; occurrences before now are not run",
        {200: PausedOrResumedJobsSerializer()},
        permissions=("view_job", "pause_job"),
        body=SelectedJobsSerializer(),
    )
    def resume_many(self, request: Request) -> Response:
        values = self.validate(SelectedJobsSerializer, request.data)
        selected = select_jobs(values, self.scope, why_not_resumed)
        changed = pause_or_resume_jobs(selected, control.resume_many)
        return Response(PausedOrResumedJobsSerializer(changed).data)

    @action(detail=False, methods=["post"], url_path="bulk/trigger")
    @operation(
        "trigger_jobs",
        f"Run up to {bulk.MAX_JOBS} jobs now, by id or filter, even if they are paused",
        {200: TriggeredJobsSerializer()},
        permissions=("view_job", "trigger_job"),
        body=TriggerManySerializer(),
        headers=(IDEMPOTENCY_KEY,),
    )
    def trigger_many(self, request: Request) -> Response:
        key = idempotency_key(request)
        values = self.validate(TriggerManySerializer, request.data)
        args, kwargs = values.get("args"), values.get("kwargs")
        selected = select_jobs(values, self.scope)
        runs = (Run(job=job, args=args, kwargs=kwargs) for job in selected.rows)
        if any(run.has_other_arguments for run in runs):
            require_other_arguments(request)
        url_of = partial(_run_url, request)
        triggered = trigger_jobs(selected, args, kwargs, key, url_of)
        return Response(TriggeredJobsSerializer(triggered).data)


def _run_url(request: Request, run: Run) -> str:
    return row_url(request, "run", run.pk)
