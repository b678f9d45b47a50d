"""The endpoints of runs."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.http import HttpResponse
from django.utils.translation import gettext as _
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiResponse
from rest_framework.decorators import action
from rest_framework.exceptions import NotFound, PermissionDenied
from rest_framework.request import Request
from rest_framework.response import Response

from django_dcron import control
from django_dcron.contrib.rest.base_serializers import EmptySerializer
from django_dcron.contrib.rest.pagination import page_of, page_response
from django_dcron.contrib.rest.permissions import has_model_permission, require_other_arguments
from django_dcron.contrib.rest.runs import cancelling, listing
from django_dcron.contrib.rest.runs.listing import RunQuery
from django_dcron.contrib.rest.runs.serializers import (
    CancelSerializer,
    LogQuery,
    RerunSerializer,
    RunDetailSerializer,
    RunPageSerializer,
    RunSerializer,
    visible_attempts_of,
)
from django_dcron.contrib.rest.schema import LOCATION, operation
from django_dcron.contrib.rest.viewsets import BaseViewSet, row_or_404, row_url
from django_dcron.diagnosis.chains import followed_run, followed_run_id
from django_dcron.jobs.action_texts import signed_reason
from django_dcron.models import Run


class RunViewSet(BaseViewSet):
    lookup_url_kwarg = "run_id"

    @operation(
        "list_runs",
        "List runs, latest first",
        {200: RunPageSerializer()},
        permissions=("view_run",),
        query=RunQuery,
    )
    def list(self, request: Request) -> Response:
        query = self.validate(RunQuery, request.query_params)
        if listing.filters_by_job(query) and not has_model_permission(request.user, "view_job"):
            raise PermissionDenied(
                _(
                    "You don't have permission to view jobs, so you can't filter by job, "
                    "namespace or tag."
                )
            )
        page = page_of(
            listing.filter_by_index(query, self.scope),
            listing.order_of(query),
            query,
            listing.other_filters(query, self.scope),
        )
        return page_response(request, page, RunSerializer(page.rows, many=True).data)

    @operation(
        "read_run",
        "Get a run, with its attempts if the user may view them",
        {200: RunDetailSerializer()},
        permissions=("view_run",),
    )
    def retrieve(self, request: Request, run_id: str) -> Response:
        run: Any = self._run(run_id)
        run.shown_attempts = None
        if has_model_permission(request.user, "view_attempt"):
            sees_jobs = has_model_permission(request.user, "view_job")
            run.shown_attempts = visible_attempts_of(run, self.scope, with_definitions=sees_jobs)
        run.follows_id = followed_run_id(run)
        if run.follows_id and self.scope.narrows(Run) and followed_run(run, self.scope) is None:
            # Both fields name a run that is hidden or deleted.
            run.follows_id = run.idempotency_key = None
        return Response(RunDetailSerializer(run).data)

    @action(detail=True)
    @operation(
        "read_log",
        "Get the complete log, traceback, message or result of an attempt as plain text",
        {(200, "text/plain"): OpenApiResponse(OpenApiTypes.STR)},
        permissions=("view_run", "view_attempt"),
        query=LogQuery,
    )
    def log(self, request: Request, run_id: str) -> HttpResponse:
        run, query = self._run(run_id), self.validate(LogQuery, request.query_params)
        attempts = self.scope.attempts.filter(run=run.pk).order_by("-number")
        if "attempt" in query:
            attempts = attempts.filter(number=query["attempt"])
        text: str | None = attempts.values_list(query["text"], flat=True).first()
        if text is None:
            raise NotFound(_("The run has no attempt with this number."))
        # Browsers must not interpret a job's output as HTML.
        headers = {"X-Content-Type-Options": "nosniff"}
        return HttpResponse(text, content_type="text/plain; charset=utf-8", headers=headers)

    @action(detail=True, methods=["post"])
    @operation(
        "cancel_run",
        "Cancel a run; a running one is asked to stop",
        {200: RunSerializer()},
        permissions=("view_run", "cancel_run"),
        body=CancelSerializer(),
        error_responses={409: "The run has already finished."},
    )
    def cancel(self, request: Request, run_id: str) -> Response:
        run, values = self._run(run_id), self.validate(CancelSerializer, request.data)
        control.cancel(run, signed_reason(values["reason"], request.user.get_username()))
        return Response(RunSerializer(run).data)

    @action(detail=False, methods=["post"], url_path="bulk/cancel")
    @operation(
        "cancel_runs",
        f"Cancel up to {cancelling.MAX_RUNS} runs, by id or by their jobs; running ones are asked "
        "to stop",
        {200: cancelling.CancelledRunsSerializer()},
        permissions=("view_run", "cancel_run"),
        body=cancelling.CancelManySerializer(),
        error_responses={
            403: "The user lacks a permission. To select jobs, view_job is required as well."
        },
    )
    def cancel_many(self, request: Request) -> Response:
        values = self.validate(cancelling.CancelManySerializer, request.data)
        if "jobs" in values and not has_model_permission(request.user, "view_job"):
            raise PermissionDenied(
                _("You don't have permission to view jobs, so you can't select runs by their jobs.")
            )
        reason = signed_reason(values["reason"], request.user.get_username())
        cancelled = cancelling.cancel_runs(values, self.scope, reason)
        return Response(cancelling.CancelledRunsSerializer(cancelled).data)

    @action(detail=True, methods=["post"])
    @operation(
        "rerun_run",
        "Run a finished run again, as a new run",
        {201: RerunSerializer()},
        permissions=("view_run", "rerun_run"),
        body=EmptySerializer(),
        headers=(LOCATION,),
        error_responses={
            403: "The user lacks a permission. Runs whose arguments differ from the "
            "job's also require run_job_with_arguments.",
            409: "The run hasn't finished, or its job has been deleted.",
        },
    )
    def rerun(self, request: Request, run_id: str) -> Response:
        self.validate(EmptySerializer, request.data)
        run = self._run(run_id)
        if run.has_other_arguments:
            require_other_arguments(request)
        created = control.rerun(run)
        data: dict[str, Any] = RerunSerializer(created).data
        headers = {"Location": row_url(request, "run", created.pk)}
        return Response(data, status=201, headers=headers)

    def _run(self, run_id: str) -> Run:
        try:
            key = UUID(run_id)
        except ValueError:
            raise NotFound from None
        return row_or_404(self.scope.runs.select_related("job"), key)
