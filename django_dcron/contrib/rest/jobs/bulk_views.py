"""The endpoints that create, change, pause or resume many jobs in one request."""

from __future__ import annotations

from functools import partial

from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response

from django_dcron import control
from django_dcron.contrib.rest.jobs import bulk
from django_dcron.contrib.rest.jobs.bulk_switching import (
    PauseManySerializer,
    SelectedJobsSerializer,
    SwitchedJobsSerializer,
    switch_jobs,
)
from django_dcron.contrib.rest.schema import operation
from django_dcron.contrib.rest.viewsets import (
    BaseViewSet,
)
from django_dcron.jobs.action_texts import signed_reason


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
        jobs = bulk.new_jobs(bulk.read_items(request.data), self.scope)
        bulk.save_all(jobs, self.scope)
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
        jobs, versions, rows = bulk.changed_jobs(bulk.read_items(request.data), self.scope)
        bulk.save_all(jobs, self.scope, versions, rows)
        return Response(bulk.SavedJobsSerializer({"results": jobs}).data)

    @action(detail=False, methods=["post"], url_path="bulk/pause")
    @operation(
        "pause_jobs",
        f"Pause up to {bulk.MAX_JOBS} jobs; runs in progress continue",
        {200: SwitchedJobsSerializer()},
        permissions=("view_job", "pause_job"),
        body=PauseManySerializer(),
    )
    def pause_many(self, request: Request) -> Response:
        values = self.validate(PauseManySerializer, request.data)
        reason = signed_reason(values["reason"], request.user.get_username())
        pause = partial(control.pause_many, reason=reason, until=values["until"])
        switched = switch_jobs(values["ids"], self.scope, pause)
        return Response(SwitchedJobsSerializer(switched).data)

    @action(detail=False, methods=["post"], url_path="bulk/resume")
    @operation(
        "resume_jobs",
        f"Resume up to {bulk.MAX_JOBS} jobs; occurrences before now are not run",
        {200: SwitchedJobsSerializer()},
        permissions=("view_job", "pause_job"),
        body=SelectedJobsSerializer(),
    )
    def resume_many(self, request: Request) -> Response:
        ids = self.validate(SelectedJobsSerializer, request.data)["ids"]
        switched = switch_jobs(ids, self.scope, control.resume_many)
        return Response(SwitchedJobsSerializer(switched).data)
