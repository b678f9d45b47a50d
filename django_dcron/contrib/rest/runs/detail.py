"""One run: read it with the output of its attempts, cancel it, rerun it."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.http import HttpResponse
from django.utils.translation import gettext as _
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiResponse
from rest_framework import serializers
from rest_framework.exceptions import NotFound
from rest_framework.request import Request
from rest_framework.response import Response

from django_dcron import control
from django_dcron.contrib.rest import fields
from django_dcron.contrib.rest.history import entry_of
from django_dcron.contrib.rest.jobs.actions import Nothing
from django_dcron.contrib.rest.permissions import may, require_other_arguments
from django_dcron.contrib.rest.runs.representation import (
    RunDetailSerializer,
    RunSerializer,
    attempts_of,
)
from django_dcron.contrib.rest.schema import LOCATION, Operation
from django_dcron.contrib.rest.serializing import Strict
from django_dcron.contrib.rest.view import View, address_of, row_or_404
from django_dcron.diagnosis.chains import followed_run, followed_run_id
from django_dcron.diagnosis.scope import Scope
from django_dcron.jobs import audit_messages
from django_dcron.jobs.audit_log import note_action
from django_dcron.jobs.audit_reason import LONGEST_REASON, signed_reason
from django_dcron.models import Run

TEXTS = ("log", "message", "traceback", "result")


def the_run(run_id: str, scope: Scope) -> Run:
    try:
        key = UUID(run_id)
    except ValueError:
        raise NotFound from None
    return row_or_404(scope.runs.select_related("job"), key)


class RunDetail(View):
    operations = {
        "GET": Operation(
            "read_run",
            "Get a run, with its attempts if the user may view them",
            {200: RunDetailSerializer()},
            needs=("view_run",),
        )
    }

    def get(self, request: Request, run_id: str) -> Response:
        run: Any = the_run(run_id, self.scope)
        run.shown_attempts = (
            attempts_of(run, self.scope) if may(request.user, "view_attempt") else None
        )
        run.follows_id = followed_run_id(run)
        if run.follows_id and self.scope.narrows(Run) and followed_run(run, self.scope) is None:
            # Both fields name a run that is hidden or deleted.
            run.follows_id = run.idempotency_key = None
        return Response(RunDetailSerializer(run).data)


class LogQuery(Strict):
    attempt = serializers.IntegerField(
        required=False,
        min_value=1,
        max_value=32_767,
        help_text="The number of the attempt. Defaults to the latest.",
    )
    text = serializers.ChoiceField(TEXTS, default="log", help_text="The text to return.")


class Log(View):
    operations = {
        "GET": Operation(
            "read_log",
            "Get the complete log, traceback, message or result of an attempt as plain text",
            {(200, "text/plain"): OpenApiResponse(OpenApiTypes.STR)},
            needs=("view_run", "view_attempt"),
            query=LogQuery,
        )
    }

    def get(self, request: Request, run_id: str) -> HttpResponse:
        run, asked = the_run(run_id, self.scope), self.query(request)
        attempts = self.scope.attempts.filter(run=run.pk).order_by("-number")
        if "attempt" in asked:
            attempts = attempts.filter(number=asked["attempt"])
        text: str | None = attempts.values_list(asked["text"], flat=True).first()
        if text is None:
            raise NotFound(_("The run has no attempt with this number."))
        # Browsers must not interpret a job's output as HTML.
        headers = {"X-Content-Type-Options": "nosniff"}
        return HttpResponse(text, content_type="text/plain; charset=utf-8", headers=headers)


class CancelSerializer(Strict):
    reason = fields.Text(
        required=False,
        allow_blank=True,
        default="",
        max_length=LONGEST_REASON,
        help_text="The reason. The user's name is added.",
    )


class Cancel(View):
    operations = {
        "POST": Operation(
            "cancel_run",
            "Cancel a run; a running one is asked to stop",
            {200: RunSerializer()},
            needs=("view_run", "cancel_run"),
            body=CancelSerializer(),
            refusals={409: "The run has already finished."},
        )
    }

    def post(self, request: Request, run_id: str) -> Response:
        run, asked = the_run(run_id, self.scope), self.validated(CancelSerializer, request.data)
        control.cancel(run, signed_reason(asked["reason"], request.user.get_username()))
        with entry_of(run):
            note_action(request.user, run, {}, audit_messages.cancelled(run))
        return Response(RunSerializer(run).data)


class Rerun(View):
    operations = {
        "POST": Operation(
            "rerun_run",
            "Run a finished run again, as a new run",
            {201: RunSerializer()},
            needs=("view_run", "rerun_run"),
            body=Nothing(),
            headers=(LOCATION,),
            refusals={
                403: "The user lacks a permission. Runs whose arguments differ from the "
                "job's also require run_job_with_arguments.",
                409: "The run hasn't finished, or its job has been deleted.",
            },
        )
    }

    def post(self, request: Request, run_id: str) -> Response:
        self.validated(Nothing, request.data)
        run = the_run(run_id, self.scope)
        if run.has_other_arguments:
            require_other_arguments(request)
        made = control.rerun(run)
        with entry_of(run):
            note_action(request.user, run, {}, audit_messages.rerun(made))
        data: dict[str, Any] = RunSerializer(made).data
        return Response(data, status=201, headers={"Location": address_of(request, "run", made.pk)})
